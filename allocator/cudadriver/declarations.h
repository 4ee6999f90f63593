// The part of CUDA's driver API that the package uses, declared by hand so that a build
// needs no toolkit. Names, without the prefix cd_ or CD_, and layouts are those of the CUDA
// Driver API Reference Manual: section Data types used by CUDA driver, and the sections named
// above each group of functions. declarations_test.go compares them with a cuda.h.
#ifndef CUDADRIVER_DECLARATIONS_H
#define CUDADRIVER_DECLARATIONS_H

#include <stddef.h>
#include <stdint.h>

// CUdeviceptr and CUmemGenericAllocationHandle are 64-bit numbers, CUresult and CUdevice
// ints; contexts, streams, events and pools are pointers.
typedef uint64_t cd_deviceptr, cd_allocation;
typedef struct cd_context *cd_context;
typedef struct cd_stream *cd_stream;
typedef struct cd_event *cd_event;
typedef struct cd_pool *cd_pool;

enum {
  CD_SUCCESS = 0,                                     // CUresult
  CD_ERROR_INVALID_VALUE = 1,
  CD_ERROR_OUT_OF_MEMORY = 2,
  CD_ERROR_INVALID_DEVICE = 101,
  CD_ERROR_NOT_READY = 600,
  CD_ERROR_NOT_SUPPORTED = 801,
  CD_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CD_STREAM_NON_BLOCKING = 1,                         // CUstream_flags
  CD_STREAM_CAPTURE_MODE_RELAXED = 2,                 // CUstreamCaptureMode
  CD_STREAM_CAPTURE_STATUS_NONE = 0,                  // CUstreamCaptureStatus
  CD_EVENT_DISABLE_TIMING = 2,                        // CUevent_flags
  CD_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102, // CUdevice_attribute
  CD_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CD_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CD_MEMHOSTALLOC_PORTABLE = 1,                       // flags of cuMemHostAlloc
  CD_MEM_ALLOCATION_TYPE_PINNED = 1,                  // CUmemAllocationType
  CD_MEM_LOCATION_TYPE_DEVICE = 1,                    // CUmemLocationType
  CD_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,       // CUmemAllocationHandleType
  CD_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,             // CUmemAccess_flags
  CD_MEM_ALLOC_GRANULARITY_MINIMUM = 0,               // CUmemAllocationGranularity_flags
  CD_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1, // CUmemPool_attribute
  CD_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC = 2,
  CD_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
  CD_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
  CD_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
  CD_MEMPOOL_ATTR_RESERVED_MEM_HIGH = 6,
  CD_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,         // CUgraphMem_attribute
  CD_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH = 3,
};

typedef struct {  // CUmemLocation
  int type, id;
} cd_location;

typedef struct {  // CUmemAllocationProp
  int type, requestedHandleTypes;
  cd_location location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} cd_allocation_prop;

typedef struct {  // CUmemAccessDesc
  cd_location location;
  int flags;
} cd_access_desc;

typedef struct {  // CUmemPoolProps; fields that later versions gave names were reserved, 0
  int allocType, handleTypes;
  cd_location location;
  void *win32SecurityAttributes;
  unsigned char reserved[64];
} cd_pool_props;

// CD_FUNCTIONS(F) is F(name, arguments...) for each function. All return a CUresult.
#define CD_FUNCTIONS(F) \
  /* Error Handling; Initialization; Device, Primary Context and Context Management */ \
  F(cuGetErrorName, int error, const char **name) \
  F(cuInit, unsigned flags) \
  F(cuDeviceGetCount, int *count) \
  F(cuDeviceGet, int *device, int ordinal) \
  F(cuDeviceGetAttribute, int *value, int attribute, int device) \
  F(cuDevicePrimaryCtxRetain, cd_context *context, int device) \
  F(cuCtxGetCurrent, cd_context *context) \
  F(cuCtxSetCurrent, cd_context context) \
  F(cuCtxSynchronize, void) \
  /* Peer Context Memory Access */ \
  F(cuDeviceCanAccessPeer, int *can, int device, int peer) \
  /* Memory Management */ \
  F(cuMemAlloc_v2, cd_deviceptr *addr, size_t bytes) \
  F(cuMemFree_v2, cd_deviceptr addr) \
  F(cuMemGetInfo_v2, size_t *available, size_t *total) \
  F(cuMemHostAlloc, void **p, size_t bytes, unsigned flags) \
  F(cuMemFreeHost, void *p) \
  F(cuMemcpyDtoH_v2, void *to, cd_deviceptr from, size_t bytes) \
  F(cuMemcpyHtoD_v2, cd_deviceptr to, const void *from, size_t bytes) \
  /* Stream Management */ \
  F(cuStreamCreate, cd_stream *stream, unsigned flags) \
  F(cuStreamSynchronize, cd_stream stream) \
  F(cuStreamDestroy_v2, cd_stream stream) \
  F(cuStreamWaitEvent, cd_stream stream, cd_event event, unsigned flags) \
  F(cuStreamIsCapturing, cd_stream stream, int *status) \
  F(cuThreadExchangeStreamCaptureMode, int *mode) \
  /* Event Management */ \
  F(cuEventCreate, cd_event *event, unsigned flags) \
  F(cuEventRecord, cd_event event, cd_stream stream) \
  F(cuEventQuery, cd_event event) \
  F(cuEventSynchronize, cd_event event) \
  F(cuEventDestroy_v2, cd_event event) \
  /* Virtual Memory Management: CUDA 10.2 */ \
  F(cuMemGetAllocationGranularity, size_t *bytes, const cd_allocation_prop *prop, int option) \
  F(cuMemAddressReserve, cd_deviceptr *addr, size_t bytes, size_t alignment, cd_deviceptr wanted, unsigned long long flags) \
  F(cuMemAddressFree, cd_deviceptr addr, size_t bytes) \
  F(cuMemCreate, cd_allocation *handle, size_t bytes, const cd_allocation_prop *prop, unsigned long long flags) \
  F(cuMemRelease, cd_allocation handle) \
  F(cuMemMap, cd_deviceptr addr, size_t bytes, size_t offset, cd_allocation handle, unsigned long long flags) \
  F(cuMemUnmap, cd_deviceptr addr, size_t bytes) \
  F(cuMemSetAccess, cd_deviceptr addr, size_t bytes, const cd_access_desc *access, size_t count) \
  F(cuMemExportToShareableHandle, void *exported, cd_allocation handle, int type, unsigned long long flags) \
  F(cuMemImportFromShareableHandle, cd_allocation *handle, void *exported, int type) \
  /* Stream Ordered Memory Allocator: CUDA 11.2 */ \
  F(cuMemPoolCreate, cd_pool *pool, const cd_pool_props *props) \
  F(cuMemPoolDestroy, cd_pool pool) \
  F(cuMemPoolSetAttribute, cd_pool pool, int attribute, void *value) \
  F(cuMemPoolGetAttribute, cd_pool pool, int attribute, void *value) \
  F(cuMemPoolTrimTo, cd_pool pool, size_t keep) \
  F(cuMemAllocFromPoolAsync, cd_deviceptr *addr, size_t bytes, cd_pool pool, cd_stream stream) \
  F(cuMemFreeAsync, cd_deviceptr addr, cd_stream stream) \
  /* Graph Management: CUDA 11.4 */ \
  F(cuDeviceGetGraphMemAttribute, int device, int attribute, void *value) \
  F(cuDeviceSetGraphMemAttribute, int device, int attribute, void *value) \
  F(cuDeviceGraphMemTrim, int device)

#endif
