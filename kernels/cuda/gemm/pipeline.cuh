// What the layers of few rows share, and the updates on the tensor cores.
#ifndef FEW_LINES_CUH
#define FEW_LINES_CUH

#include <type_traits>

#include "few.cuh"
#include "tensor.cuh"

namespace few {

using namespace matmuls;

constexpr int WARPS = 7;
constexpr int CHUNK = 16, TURN = CHUNK * WARPS;  // k of a layer that a warp, or all of them, multiply at once
constexpr int BM = 16, BN = 24;                  // the tile of a layer

// What is known of the lines of the operands: nothing; that they are quads on 16-byte
// boundaries; that those of the batch are whole chunks; that they can be copied in bulk.
enum Lines { SINGLE, QUADS, WHOLE, BULK };

template <bool BULK_, int BLOCKS_ = 2, int AT_MOST_ = 0>
struct Block {
  static constexpr int THREADS = 32 * WARPS, BLOCKS = BLOCKS_, AT_MOST = AT_MOST_, CLUSTER = BULK_ ? bulk::PAIR : 1;

  using Params = typename std::conditional<BULK_, BulkArgs, Args>::type;
};

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

// What the operands of a product allow.
inline Lines lines(const Args &p, bool batch) {
  if (!(p.vector_a && p.vector_b && p.vector_c) || !p.k) return SINGLE;
  if (!batch) return bulk::possible() && p.k <= 128 ? BULK : QUADS;
  return p.k % CHUNK ? QUADS : bulk::possible() ? BULK : WHOLE;
}

// with calls f with lines as a type.
template <typename F>
int with(Lines lines, F f) {
  switch (lines) {
    case SINGLE: return f(std::integral_constant<Lines, SINGLE>());
    case QUADS: return f(std::integral_constant<Lines, QUADS>());
    case WHOLE: return f(std::integral_constant<Lines, WHOLE>());
#if HAVE_BULK
    case BULK: return f(std::integral_constant<Lines, BULK>());
#endif
  }
  return cudaErrorInvalidValue;
}

}  // namespace few

#endif
