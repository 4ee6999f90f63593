// What the products of few rows share, on the tensor cores and on the CUDA cores: how a
// struct P of one, with FLOATS of shared memory, tiles and run, becomes a kernel; two
// of them side by side too.
#ifndef FEW_CUH
#define FEW_CUH

#include "matmul.cuh"

namespace matmuls {

constexpr int WARPS = 8, THREADS = 32 * WARPS;

inline int64_t tiles_of(const Args &p, int bm, int bn) { return int64_t((p.m + bm - 1) / bm) * ((p.n + bn - 1) / bn); }

template <typename P>
__global__ void __launch_bounds__(THREADS, 2) product(const Args p) {
  extern __shared__ __align__(16) float shared[];
  P::run(p, blockIdx.x, shared);
}

// both makes two products side by side, the first blocks p.
template <typename P, typename Q>
__global__ void __launch_bounds__(THREADS, 2) both(const Args p, int p_tiles, const Args q) {
  extern __shared__ __align__(16) float shared[];
  if (blockIdx.x < p_tiles) P::run(p, blockIdx.x, shared);
  else Q::run(q, blockIdx.x - p_tiles, shared);
}

template <typename P>
int launch(uintptr_t stream, const Args &p) {
  constexpr int BYTES = 4 * P::FLOATS;
  static const int allowed = done(cudaFuncSetAttribute(product<P>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  if (allowed != cudaSuccess) return allowed;
  if (P::tiles(p) > INT32_MAX) return cudaErrorInvalidValue;
  return ::launch(stream, {unsigned(P::tiles(p)), THREADS, BYTES}, product<P>, p);
}

template <typename P, typename Q>
int launch(uintptr_t stream, const Args &p, const Args &q) {
  constexpr int BYTES = 4 * (P::FLOATS > Q::FLOATS ? P::FLOATS : Q::FLOATS);
  static const int allowed = done(cudaFuncSetAttribute(both<P, Q>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  if (allowed != cudaSuccess) return allowed;
  if (P::tiles(p) + Q::tiles(q) > INT32_MAX) return cudaErrorInvalidValue;
  return ::launch(stream, {unsigned(P::tiles(p) + Q::tiles(q)), THREADS, BYTES}, both<P, Q>, p, int(P::tiles(p)), q);
}

}  // namespace matmuls

#endif
