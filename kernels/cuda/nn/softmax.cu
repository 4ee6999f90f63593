// Softmax of rows, cross-entropy and its gradient, a kernel each, where they are not fused with the
// last layer (classifier.cu):
//
//   p[rows,cols]  = exp(x - max)/Σ exp(x - max)
//   loss[rows]    = ln Σ exp(x - max) - (x[label] - max), correct[rows] = 1 where the first largest x is the label's
//   dx[rows,cols] = (p - onehot(label))/rows
#include "bf16.cuh"
#include "launch.cuh"
#include "warp.cuh"

namespace {

// exp_sum finds the row's maximum, and Σ exp(x - max).
__device__ void exp_sum(const float *x, int64_t cols, int lane, float &largest, float &sum) {
  float best = -INFINITY;
  for (int64_t j = lane; j < cols; j += 32) best = fmaxf(best, x[j]);
  largest = warp_max(best);
  float s = 0;
  for (int64_t j = lane; j < cols; j += 32) s += expf(x[j] - largest);
  sum = warp_sum(s);
}

// One warp a row.
__global__ void softmax(float *p, const float *x, int64_t rows, int64_t cols) {
  int lane = threadIdx.x % 32;
  int64_t stride = int64_t(gridDim.x) * (blockDim.x / 32);
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; i < rows; i += stride) {
    float largest, sum;
    exp_sum(x + i * cols, cols, lane, largest, sum);
    for (int64_t j = lane; j < cols; j += 32) p[i * cols + j] = expf(x[i * cols + j] - largest) / sum;
  }
}

// One warp a row.
__global__ void cross_entropy(float *loss, float *correct, const float *x, const int32_t *labels, int64_t rows, int64_t cols) {
  int lane = threadIdx.x % 32;
  int64_t stride = int64_t(gridDim.x) * (blockDim.x / 32);
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32; i < rows; i += stride) {
    const float *row = x + i * cols;
    int64_t label = labels[i];
    float largest, sum;
    exp_sum(row, cols, lane, largest, sum);
    bool valid = label >= 0 && label < cols, before = false;  // a largest stands before the label's
    for (int64_t j = lane; valid && j < label; j += 32) before |= row[j] == largest;
    bool first = __ballot_sync(ALL, before) == 0;
    if (lane) continue;
    loss[i] = valid ? logf(sum) - (row[label] - largest) : NAN;
    correct[i] = valid && first && row[label] == largest ? 1 : 0;
  }
}

template <typename Value>
__global__ void softmax_cross_entropy_backward(Value *dx, const float *p, const int32_t *labels, int64_t rows, int64_t cols) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * cols; i += stride)
    store(dx + i, (p[i] - (i % cols == labels[i / cols] ? 1.f : 0.f)) * (1.f / rows));
}

}  // namespace

int kernels_softmax(uintptr_t stream, uintptr_t p, uintptr_t x, int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (rows == 0 || cols == 0) return cudaSuccess;
  softmax<<<ctas(rows, 4), 128, 0, stream_of(stream)>>>(ptr<float>(p), ptr<float>(x), rows, cols);
  return launched();
}

int kernels_cross_entropy(uintptr_t stream, uintptr_t loss, uintptr_t correct, uintptr_t x, uintptr_t labels, int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  cross_entropy<<<ctas(rows, 4), 128, 0, stream_of(stream)>>>(ptr<float>(loss), ptr<float>(correct), ptr<float>(x), ptr<int32_t>(labels), rows, cols);
  return launched();
}

int kernels_softmax_cross_entropy_backward(uintptr_t stream, int precision, uintptr_t dx, uintptr_t p, uintptr_t labels, int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (rows == 0 || cols == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, rows * cols, softmax_cross_entropy_backward<Value>, ptr<Value>(dx), ptr<float>(p), ptr<int32_t>(labels), rows,
                           cols);
  });
}
