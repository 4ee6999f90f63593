// What the kernels of the classifier share: their arguments, how they read weights, and the softmax with its gradient.
#pragma once

#include "bf16.cuh"
#include "launch.cuh"
#include "warp.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

// Value is the type of values: float or bf16.
template <typename Value>
struct Args {
  Value *grad, *dx;
  float *loss, *correct;
  const Value *x, *w;
  const uint8_t *labels;
  const int32_t *indices;
  int64_t rows;
  int classes, k;
  bool prefetch_w, aligned_w;  // w may be read before pdl_wait; it is on a boundary of four values
};

// softmax has the logits of a row, z, one class a lane, in each half of the warp. It returns the gradient of
// the class, and writes the loss, whether it is correct, and the gradients.
template <typename Value>
__device__ float softmax(const Args<Value> &p, int classes, float scale, int64_t row, int label, float z, bool write_loss, bool write_grad) {
  int half = threadIdx.x & 16, own = threadIdx.x % 16;
  bool real = own < classes;
  if (!real) z = -INFINITY;
  float largest = warp_max<16>(z), e = real ? expf(z - largest) : 0, total = warp_sum<16>(e);
  unsigned first = __ballot_sync(ALL, real && z == largest) >> half & 0xffff;
  float at_label = __shfl_sync(ALL, z, half + (label & 15));
  if (write_loss && own == 0) {
    p.loss[row] = label < classes ? logf(total) - (at_label - largest) : NAN;
    p.correct[row] = first && __ffs(first) - 1 == label ? 1 : 0;
  }
  float g = (e / total - (own == label ? 1.f : 0.f)) * scale;
  if (p.dx && write_grad && real) store(p.grad + row * classes + own, g);
  return g;
}

// read_floats calls put(i, v) for every i of n weights, whose value is v. It reads several before the first.
template <int SIZE, typename Value, typename Put>
__device__ void read_floats(const Args<Value> &p, const Value *from, int n, Put put) {
  constexpr int BATCH = 8;
  int fours = p.aligned_w ? n / 4 : 0;
  for (int first = threadIdx.x; first < fours; first += SIZE * BATCH) {
    decltype(raw4_l2(from)) v[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; b++)
      if (first + b * SIZE < fours) v[b] = raw4_l2(from, first + b * SIZE);
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      int i = 4 * (first + b * SIZE);
      float4 four = four_of(v[b]);
      if (i < 4 * fours) put(i, four.x), put(i + 1, four.y), put(i + 2, four.z), put(i + 3, four.w);
    }
  }
#pragma unroll 1
  for (int i = 4 * fours + threadIdx.x; i < n; i += SIZE) put(i, ld_l2(from + i));
}

// broadcast gives every lane the values of the first N.
template <int N>
__device__ void broadcast(float (&v)[N], float own) {
#pragma unroll
  for (int i = 0; i < N; i++) v[i] = __shfl_sync(ALL, own, i);
}

}  // namespace
