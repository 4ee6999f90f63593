// Step changes weights where no GEMM's epilogue does. Round copies float32 to values.
#include "gemm/gemm.cuh"

namespace {

// A new rule is a struct and its row.
struct Sgd {
  static __device__ void step(const kernels_update &u, float &w, float *, float dw) { w += -u.rate * dw; }
};

template <typename Rule>
__global__ void step(const kernels_update u, float *w, float *state, const float *dw, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) Rule::step(u, w[i], state + i, dw[i]);
}

// By their numbers in package nn.
void (*const steps[])(kernels_update, float *, float *, const float *, int64_t) = {step<Sgd>};

template <typename Value>
__global__ void round_values(Value *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(y + i, x[i]);
}

}  // namespace

int kernels_step(uintptr_t stream, kernels_update u, uintptr_t w, uintptr_t state, uintptr_t dw, int64_t n) {
  if (n < 0 || u.rule < 0 || u.rule >= int(std::size(steps))) return cudaErrorInvalidValue;
  return n == 0 ? int(cudaSuccess) : launch_elements(stream, n, steps[u.rule], u, ptr<float>(w), ptr<float>(state), ptr<float>(dw), n);
}

int kernels_round(uintptr_t stream, int precision, uintptr_t y, uintptr_t x, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, round_values<Value>, ptr<Value>(y), ptr<float>(x), n);
  });
}
