// Reductions over a warp.
#ifndef WARP_CUH
#define WARP_CUH

constexpr unsigned ALL = 0xffffffffu;

// All lanes of a warp call these together; the xor pattern adds in the same
// order whatever the timing, and gives every lane the result.
__device__ inline float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(ALL, v, d));
  return v;
}

__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(ALL, v, d);
  return v;
}

#endif
