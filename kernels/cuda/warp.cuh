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
// of its N values that it does not keep: 16 exchanges, where warp_sum would take 80. As a loop over N it would
// have nvcc keep the values in local memory.
template <int N>
__device__ float warp_sums(const float (&v)[N]) {
  if constexpr (N == 1) {
    return v[0] + __shfl_xor_sync(ALL, v[0], 1);
  } else {
    bool upper = threadIdx.x & N;
    float half[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      float low = v[i], high = v[i + N / 2];
      half[i] = (upper ? high : low) + __shfl_xor_sync(ALL, upper ? low : high, N);
    }
    return warp_sums(half);
  }
}
