// Axpy and AddUpdates.
#include "launch.cuh"

namespace {

__global__ void axpy(float *y, const float *x, float alpha, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) y[i] += alpha * x[i];
}

__device__ bool whole_float4(const void *w, const void *x, int64_t stride) {
  return (reinterpret_cast<uintptr_t>(w) | reinterpret_cast<uintptr_t>(x)) % sizeof(float4) == 0 && stride % 4 == 0;
}

__device__ float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

// add_updates_of is kernels_add_updates of n elements of one array: floats, or float4.
template <typename T>
__device__ void add_updates_of(T *w, T *x, int64_t first, int64_t n, int64_t stride, int ranks, int own) {
  for (int64_t i = first + int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    T was = w[i], sum = x[i];
    for (int r = 1; r < ranks; r++) sum = sum + x[r * stride + i];
    w[i] = was + sum;
    x[own * stride + i] = T{};
  }
}

__global__ void add_updates(kernels_updates u) {
  pdl_wait();
  for (int a = 0; a < u.count; a++) {
    auto &of = u.of[a];
    float *w = reinterpret_cast<float *>(of.w), *x = reinterpret_cast<float *>(of.x);
    int64_t fours = whole_float4(w, x, of.stride) ? of.n / 4 : 0;
    add_updates_of(reinterpret_cast<float4 *>(w), reinterpret_cast<float4 *>(x), 0, fours, of.stride / 4, of.ranks, of.own);
    add_updates_of(w, x, 4 * fours, of.n, of.stride, of.ranks, of.own);
  }
}

}  // namespace

int kernels_axpy(uintptr_t stream, uintptr_t y, uintptr_t x, float alpha, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  axpy<<<ctas(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(y), ptr<float>(x), alpha, n);
  return launched();
}

int kernels_add_updates(uintptr_t stream, kernels_updates u) {
  constexpr int THREADS = 256, CTAS_PER_SM = 2048 / THREADS;
  if (u.count < 0 || u.count > KERNELS_MAX_GROUP) return cudaErrorInvalidValue;
  int64_t most = 0;
  for (int i = 0; i < u.count; i++) {
    auto &of = u.of[i];
    if (of.n < 0 || of.ranks < 1 || of.own < 0 || of.own >= of.ranks || of.ranks > 1 && of.stride < of.n) return cudaErrorInvalidValue;
    most = std::max(most, of.n);
  }
  if (most == 0) return cudaSuccess;
  return launch(stream, {std::min(ctas(most, 4 * THREADS), unsigned(CTAS_PER_SM * device().sms)), THREADS}, add_updates, u);
}
