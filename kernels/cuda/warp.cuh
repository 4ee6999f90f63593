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

// half_max and half_sum are of the sixteen lanes of a half.
__device__ inline float half_max(float v) {
#pragma unroll
  for (int d = 8; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(ALL, v, d));
  return v;
}

__device__ inline float half_sum(float v) {
#pragma unroll
  for (int d = 8; d > 0; d /= 2) v += __shfl_xor_sync(ALL, v, d);
  return v;
}

// warp_sums sums sixteen values over the warp: lane l returns the sum of value l/2. Each
// lane passes on the half of them that it does not keep, so it is 16 exchanges, not 80.
__device__ inline float warp_sums(float (&v)[16]) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int d = 16; d > 1; d /= 2) {
    bool upper = lane & d;
#pragma unroll
    for (int i = 0; i < d / 2; i++) {
      float keep = upper ? v[i + d / 2] : v[i], pass = upper ? v[i] : v[i + d / 2];
      v[i] = keep + __shfl_xor_sync(ALL, pass, d);
    }
  }
  return v[0] + __shfl_xor_sync(ALL, v[0], 1);
}

#endif
