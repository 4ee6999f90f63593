// The part of CUDA's driver that kernels need for TMA, and allocators for memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

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

// What package cudadriver uses for allocators. Functions return what the CUDA function of that name does,
// unless a comment says otherwise. cuMemUnmap waits for the streams; an event always reports that its work is
// done.
typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPool_st *CUmemoryPool;
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 };
enum { CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum CUmemPool_attribute {
  CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
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

// cudadriver_symbol returns the function of a name, or a null pointer. It looks in driver.cpp, and in these
// of cuda_runtime.cpp, pages.cpp and nccl.cpp.
extern "C" void *cudadriver_symbol(const char *name);
using Functions = std::map<std::string, void *>;
extern const Functions memory_functions, page_functions, nccl_functions;
#define FUNCTION(f) {#f, reinterpret_cast<void *>(f)}
