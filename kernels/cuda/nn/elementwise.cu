// Axpy.
#include "launch.cuh"

namespace {

__global__ void axpy(float *y, const float *x, float alpha, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) y[i] += alpha * x[i];
}

}  // namespace

int kernels_axpy(uintptr_t stream, uintptr_t y, uintptr_t x, float alpha, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  axpy<<<ctas(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(y), ptr<float>(x), alpha, n);
  return launched();
}
