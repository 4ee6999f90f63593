// Step changes weights where no GEMM's epilogue does. Round copies float32 to values.
#include "gemm/gemm.cuh"

namespace {

__global__ void step(float *w, const float *dw, float rate, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) w[i] += -rate * dw[i];
}

template <typename Value>
__global__ void round_values(Value *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(y + i, x[i]);
}

}  // namespace

int kernels_step(uintptr_t stream, uintptr_t w, uintptr_t dw, float rate, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  return n == 0 ? int(cudaSuccess) : launch_elements(stream, n, step, ptr<float>(w), ptr<float>(dw), rate, n);
}

int kernels_round(uintptr_t stream, int precision, uintptr_t y, uintptr_t x, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, round_values<Value>, ptr<Value>(y), ptr<float>(x), n);
  });
}
