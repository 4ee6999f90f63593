// Activate, y[n] = f(x[n]), and ActivateBackward, the gradient through f, where no GEMM has them as its
// epilogue. A new activation is a struct like Relu, and its row. The second argument of its backward is
// the output if package nn calls it fused, as Relu is, else the input. Package nn lists all files that
// it needs.
#include "gemm/epilogue.cuh"

namespace {

using gemm::Relu;

template <typename F>
__global__ void activate(float *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) y[i] = F::forward(x[i]);
}

template <typename F>
__global__ void activate_backward(float *dx, const float *dy, const float *y, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) dx[i] = F::backward(dy[i], y[i]);
}

struct Activation {
  void (*forward)(float *y, const float *x, int64_t n);
  void (*backward)(float *dx, const float *dy, const float *y, int64_t n);
};

// By their numbers in package nn.
const Activation activations[] = {{activate<Relu>, activate_backward<Relu>}};

bool valid(int a, int64_t n) { return a >= 0 && a < int(std::size(activations)) && n >= 0; }

}  // namespace

int kernels_activate(uintptr_t stream, int a, uintptr_t y, uintptr_t x, int64_t n) {
  if (!valid(a, n)) return cudaErrorInvalidValue;
  return n == 0 ? int(cudaSuccess) : launch_elements(stream, n, activations[a].forward, ptr<float>(y), ptr<float>(x), n);
}

int kernels_activate_backward(uintptr_t stream, int a, uintptr_t dx, uintptr_t dy, uintptr_t y, int64_t n) {
  if (!valid(a, n)) return cudaErrorInvalidValue;
  return n == 0 ? int(cudaSuccess) : launch_elements(stream, n, activations[a].backward, ptr<float>(dx), ptr<float>(dy), ptr<float>(y), n);
}
