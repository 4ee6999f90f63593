// Activate, y[n] = f(x[n]), and ActivateBackward, the gradient through f, where no GEMM has them as its
// epilogue. A new activation is a struct like Relu, and its row. The second argument of its backward is
// the output if package nn calls it fused, as Relu is, else the input. Package nn lists all files that
// it needs.
#include "gemm/epilogue.cuh"

namespace {

using gemm::Relu;

// Value is the type of values: float or bf16.
template <typename F, typename Value>
__global__ void activate(Value *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(y + i, F::forward(x[i]));
}

template <typename F, typename Value>
__global__ void activate_backward(Value *dx, const float *dy, const Value *y, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(dx + i, F::backward(dy[i], to_float(y[i])));
}

template <typename Value>
struct Activation {
  void (*forward)(Value *y, const float *x, int64_t n);
  void (*backward)(Value *dx, const float *dy, const Value *y, int64_t n);
};

// By their numbers in package nn.
template <typename Value>
const Activation<Value> activations[] = {{activate<Relu, Value>, activate_backward<Relu, Value>}};

bool valid(int a, int64_t n) { return a >= 0 && a < int(std::size(activations<float>)) && n >= 0; }

}  // namespace

int kernels_activate(uintptr_t stream, int precision, int a, uintptr_t y, uintptr_t x, int64_t n) {
  if (!valid(a, n)) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, activations<Value>[a].forward, ptr<Value>(y), ptr<float>(x), n);
  });
}

int kernels_activate_backward(uintptr_t stream, int precision, int a, uintptr_t dx, uintptr_t dy, uintptr_t y, int64_t n) {
  if (!valid(a, n)) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, activations<Value>[a].backward, ptr<Value>(dx), ptr<float>(dy), ptr<Value>(y), n);
  });
}
