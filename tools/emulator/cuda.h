// The part of CUDA's driver that kernels need for copies in bulk.
#ifndef CUDA_H
#define CUDA_H

#include <cstdint>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_INVALID_CONTEXT = 201 };

enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT32 };
enum { CU_TENSOR_MAP_INTERLEAVE_NONE };
enum { CU_TENSOR_MAP_SWIZZLE_NONE };
enum { CU_TENSOR_MAP_L2_PROMOTION_L2_128B };
enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE };

struct alignas(64) CUtensorMap {
  char *array;
  unsigned rank;
  uint32_t tile[3];
  uint64_t counts[3], strides[3];  // strides: in bytes
};

CUresult cuTensorMapEncodeTiled(CUtensorMap *, int type, cuuint32_t rank, void *array, const cuuint64_t *counts, const cuuint64_t *strides,
                                const cuuint32_t *tile, const cuuint32_t *steps, int interleave, int swizzle, int promotion, int fill);

#endif
