// Scale, axpy and sum.
#include "launch.cuh"

namespace {

__global__ void scale(float *x, float alpha, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) x[i] *= alpha;
}

__global__ void axpy(float *y, const float *x, float alpha, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) y[i] += alpha * x[i];
}

constexpr int SUM_THREADS = 1024;

// One block, so that the order of the additions is fixed and no scratch memory
// is needed: thread t adds x[t], x[t+1024], ..., then the threads' sums are
// added in a tree. What is summed here is short, the losses of an epoch.
__global__ void __launch_bounds__(SUM_THREADS) sum(float *out, const float *x, int64_t n) {
  __shared__ float part[SUM_THREADS];
  float s = 0;
  for (int64_t i = threadIdx.x; i < n; i += SUM_THREADS) s += x[i];
  part[threadIdx.x] = s;
  for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *out = part[0];
}

}  // namespace

int kernels_scale(uintptr_t stream, uintptr_t x, float alpha, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  scale<<<blocks(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(x), alpha, n);
  return launched();
}

int kernels_axpy(uintptr_t stream, uintptr_t y, uintptr_t x, float alpha, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  axpy<<<blocks(n, 256), 256, 0, stream_of(stream)>>>(ptr<float>(y), ptr<float>(x), alpha, n);
  return launched();
}

int kernels_sum(uintptr_t stream, uintptr_t out, uintptr_t x, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  sum<<<1, SUM_THREADS, 0, stream_of(stream)>>>(ptr<float>(out), ptr<float>(x), n);
  return launched();
}
