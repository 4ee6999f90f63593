// Axpy and AddAndZero.
#include "launch.cuh"

namespace {

__global__ void axpy(float *y, const float *x, float alpha, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) y[i] += alpha * x[i];
}

// It runs beside GEMMs, which want the SMs more.
constexpr unsigned ADD_AND_ZERO_CTAS = 264;

__device__ bool whole_float4(const void *y, const void *x) {
  return (reinterpret_cast<uintptr_t>(y) | reinterpret_cast<uintptr_t>(x)) % sizeof(float4) == 0;
}

__global__ void add_and_zero(kernels_add_pairs d) {
  int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, stride = int64_t(gridDim.x) * blockDim.x;
  for (int a = 0; a < d.count; a++) {
    float *y = reinterpret_cast<float *>(d.pairs[a].y), *x = reinterpret_cast<float *>(d.pairs[a].x);
    int64_t n = d.pairs[a].n, fours = whole_float4(y, x) ? n / 4 : 0;
    float4 *y4 = reinterpret_cast<float4 *>(y), *x4 = reinterpret_cast<float4 *>(x);
    for (int64_t i = first; i < fours; i += stride) {
      float4 v = y4[i], add = x4[i];
      y4[i] = {v.x + add.x, v.y + add.y, v.z + add.z, v.w + add.w};
      x4[i] = {0, 0, 0, 0};
    }
    for (int64_t i = 4 * fours + first; i < n; i += stride) {
      y[i] += x[i];
      x[i] = 0;
    }
  }
}

}  // namespace

int kernels_axpy(uintptr_t stream, uintptr_t y, uintptr_t x, float alpha, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  axpy<<<ctas(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(y), ptr<float>(x), alpha, n);
  return launched();
}

int kernels_add_and_zero(uintptr_t stream, kernels_add_pairs d) {
  if (d.count < 0 || d.count > KERNELS_MAX_GROUP) return cudaErrorInvalidValue;
  int64_t most = 0;
  for (int i = 0; i < d.count; i++) {
    if (d.pairs[i].n < 0) return cudaErrorInvalidValue;
    most = std::max(most, d.pairs[i].n);
  }
  if (most == 0) return cudaSuccess;
  add_and_zero<<<std::min(ctas(most, 4 * 256), ADD_AND_ZERO_CTAS), 256, 0, stream_of(stream)>>>(d);
  return launched();
}
