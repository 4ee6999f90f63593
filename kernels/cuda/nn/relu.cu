// ReLU, y[n] = max(0, x[n]), and dReLU, dx[n] = dy[n] where y[n] > 0, else 0, where they are not
// fused with the GEMM before, as its epilogue (gemm.cuh).
#include "launch.cuh"

namespace {

// x < 0 rather than fmaxf, which would turn NaN into 0 and hide it.
__global__ void relu(float *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    float v = x[i];
    y[i] = v < 0 ? 0 : v;
  }
}

__global__ void relu_backward(float *dx, const float *dy, const float *y, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) dx[i] = y[i] > 0 ? dy[i] : 0;
}

}  // namespace

int kernels_relu(uintptr_t stream, uintptr_t y, uintptr_t x, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  relu<<<ctas(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(y), ptr<float>(x), n);
  return launched();
}

int kernels_relu_backward(uintptr_t stream, uintptr_t dx, uintptr_t dy, uintptr_t y, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  relu_backward<<<ctas(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(dx), ptr<float>(dy), ptr<float>(y), n);
  return launched();
}
