// Reductions over a warp.
#pragma once

constexpr unsigned ALL = 0xffffffffu;

// warp_max and warp_sum combine v over LANES neighbouring lanes, and give all of them the result. All lanes
// of the warp call them together. The order of additions is fixed.
template <int LANES = 32>
__device__ float warp_max(float v) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(ALL, v, d));
  return v;
}

template <int LANES = 32>
__device__ float warp_sum(float v) {
#pragma unroll
  for (int d = LANES / 2; d > 0; d /= 2) v += __shfl_xor_sync(ALL, v, d);
  return v;
}

// warp_sums sums sixteen values over the warp: lane l returns the sum of value l/2. A lane passes on the half
// of its values that it does not keep: 16 exchanges, where warp_sum would take 80.
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
