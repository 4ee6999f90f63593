// The part of CUDA's driver that kernels need for TMA, and allocators for memory.
#ifndef CUDA_H
#define CUDA_H

#include <cstddef>
#include <cstdint>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
};

enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B };
enum { CU_TENSOR_MAP_L2_PROMOTION_L2_128B };
enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

struct alignas(64) CUtensorMap {
  char *array;
  unsigned rank;
  uint32_t tile[3];
  uint64_t counts[3], strides[3];  // strides: in bytes
  bool tf32, swizzled;
  uint32_t bytes;  // of an element
};

CUresult cuTensorMapEncodeTiled(CUtensorMap *, int type, cuuint32_t rank, void *array, const cuuint64_t *counts, const cuuint64_t *strides,
                                const cuuint32_t *tile, const cuuint32_t *steps, int interleave, int swizzle, int promotion, int fill);

// cudadriver_symbol returns the function of a name, or a null pointer.
extern "C" void *cudadriver_symbol(const char *name);
// nccl_function is the same for NCCL, whose functions are cudadriver_symbol's as well.
void *nccl_function(const char *name);

// The functions that package cudadriver calls for allocators. They return what the CUDA function of
// that name does, unless a comment says otherwise. cuMemUnmap waits for the streams; an event always
// reports that its work is done.
typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPool_st *CUmemoryPool;
enum CUdevice_attribute { CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102 };
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemPool_attribute {
  CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
  CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
  CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
};
enum CUgraphMem_attribute { CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH };
struct CUmemLocation {
  int type, id;
};
struct CUmemAllocationProp {
  int type, requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  unsigned char allocFlags[8];
};
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags;
};
struct CUmemPoolProps {
  int allocType, handleTypes;
  CUmemLocation location;
  void *win32SecurityAttributes;
  unsigned char reserved[64];
};

CUresult cuMemAlloc(CUdeviceptr *, size_t bytes);
CUresult cuMemFree(CUdeviceptr);
CUresult cuMemGetInfo(size_t *available, size_t *total);

CUresult cuMemPoolCreate(CUmemoryPool *, const CUmemPoolProps *);
CUresult cuMemPoolDestroy(CUmemoryPool);
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void *);
CUresult cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void *);
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t keep);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t bytes, CUmemoryPool, CUstream);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute, void *);
CUresult cuDeviceSetGraphMemAttribute(CUdevice, CUgraphMem_attribute, void *);
CUresult cuDeviceGraphMemTrim(CUdevice);

CUresult cuMemGetAllocationGranularity(size_t *, const CUmemAllocationProp *, int option);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *, size_t bytes, const CUmemAllocationProp *, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemMap(CUdeviceptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr, size_t bytes, const CUmemAccessDesc *, size_t count);
CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle, int type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *fd, int type);

#endif
