// Activate, ReLU of x[n], and ActivateBackward, the gradient through it, where no GEMM has them as its
// epilogue.
#include "gemm/epilogue.cuh"

namespace {

using gemm::Relu;

// Value is the type of values: float or bf16.
template <typename Value>
__global__ void activate(Value *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(y + i, Relu::forward(x[i]));
}

template <typename Value>
__global__ void activate_backward(Value *dx, const float *dy, const Value *y, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(dx + i, Relu::backward(dy[i], to_float(y[i])));
}

}  // namespace

int kernels_activate(uintptr_t stream, int precision, uintptr_t y, uintptr_t x, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, activate<Value>, ptr<Value>(y), ptr<float>(x), n);
  });
}

int kernels_activate_backward(uintptr_t stream, int precision, uintptr_t dx, uintptr_t dy, uintptr_t y, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, activate_backward<Value>, ptr<Value>(dx), ptr<float>(dy), ptr<Value>(y), n);
  });
}
