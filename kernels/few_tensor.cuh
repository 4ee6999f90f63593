// What the products of few rows on the tensor cores share.
#ifndef FEW_TENSOR_CUH
#define FEW_TENSOR_CUH

#include <type_traits>

#include "bulk.cuh"
#include "few.cuh"
#include "tensor.cuh"

namespace few {

using namespace matmuls;

constexpr int WARPS = 7;
constexpr int CHUNK = 16;  // k that a warp of a layer multiplies at once

// What is known of the lines of the operands: nothing; that they are quads on 16-byte
// boundaries; that those of the batch are whole chunks; that they can be copied in bulk.
enum Lines { SINGLE, QUADS, WHOLE, BULK };

struct BulkArgs : Args {
  bulk::Map map[3];
};

template <bool BULK_, int BLOCKS_ = 2, bool ALONE_ = false>
struct Block {
  static constexpr int THREADS = 32 * WARPS, BLOCKS = BLOCKS_, CLUSTER = BULK_ ? bulk::PAIR : 1;
  static constexpr bool ALONE = ALONE_;

  using Params = typename std::conditional<BULK_, BulkArgs, Args>::type;
};

inline int pairs(int n) { return (n + bulk::PAIR - 1) / bulk::PAIR * bulk::PAIR; }

// quad reads four floats, or as many as left says and zeros, from L2: the L1 of
// this multiprocessor may hold what was there before.
template <bool VECTOR>
__device__ float4 quad(const float *from, int left) {
  float v[4] = {};
  if (VECTOR) {
    if (left > 0) return __ldcg((const float4 *)from);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < left) v[i] = __ldcg(from + i);
  }
  return make_float4(v[0], v[1], v[2], v[3]);
}

template <bool VECTOR>
__device__ void store_quad(float *to, float4 v, int left) {
  if (VECTOR) {
    if (left > 0) *(float4 *)to = v;
  } else {
    if (left > 0) to[0] = v.x;
    if (left > 1) to[1] = v.y;
    if (left > 2) to[2] = v.z;
    if (left > 3) to[3] = v.w;
  }
}

// Sums are a warp's, of 16 rows by NI eights of columns.
template <bool THREE, int NI>
struct Sums {
  float c[NI][4] = {};

  // add adds the products of eight k: a lane has two of them, of rows g and g+8 and of
  // column g of each eight. A byte is exact and has no rest.
  template <bool BYTES>
  __device__ void add(const float (&fa)[2][2], const float (&fb)[NI][2]) {
    unsigned a[2][2], a_rest[2][2], b[NI][2], b_rest[NI][2];
    if (BYTES) {
#pragma unroll
      for (int r = 0; r < 2; r++) a[r][0] = __float_as_uint(fa[r][0]), a[r][1] = __float_as_uint(fa[r][1]);
    } else {
      split<THREE>(a, a_rest, fa);
    }
    split<THREE>(b, b_rest, fb);
    if (THREE) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[j], a[0], a[1], b_rest[j]);
    }
    if (THREE && !BYTES) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[j], a_rest[0], a_rest[1], b[j]);
    }
#pragma unroll
    for (int j = 0; j < NI; j++) mma(c[j], a[0], a[1], b[j]);
  }
};

}  // namespace few

#endif
