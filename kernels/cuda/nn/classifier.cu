// The classifier, the last layer of a network, in one kernel: linear + softmax + cross-entropy
// and their gradients, with sums in float32; and the reduction of losses over batches.
//
//   z[rows,classes]    = x[rows,k]·w[k,classes]
//   loss[rows]         = ln Σ exp(z - max) - (z[label] - max)
//   correct[rows]      = 1 where the first largest z is the label's, else 0
//   grad[rows,classes] = (softmax(z) - onehot(label))/rows
//   dx[rows,k]         = grad·wᵀ where x > 0, else 0
//
// with label = labels[indices[row]]. With so few classes separate kernels would be bound by latency, so
// one kernel does all.
#include "nn/classifier.cuh"
#include "nn/classifier_tiles.cuh"

namespace {

// With few rows of up to four values a thread, each CTA processes one row at a time: blockIdx.x, blockIdx.x +
// gridDim.x, ... A thread holds the weights of its four k, for the logits and again for the gradient. They are
// read before pdl_wait, through shared memory so that reads are whole cache lines.
template <int SIZE, typename Value>
__global__ void __launch_bounds__(SIZE, 512 / SIZE) classifier_row(const Args<Value> p) {
  constexpr int CLASSES = 10, PARTS = SIZE / 32;  // one a warp
  __shared__ float parts[2][PARTS][16];
  extern __shared__ __align__(16) float staged[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, k = 4 * threadIdx.x;
  alignas(16) float w[4][CLASSES];
  auto read_weights = [&] {
    read_floats<SIZE>(p, p.w, p.k * CLASSES, [&](int i, float v) { staged[i] = v; });
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 4 * CLASSES; e += 4)
      *(float4 *)(&w[0][0] + e) = k < p.k ? *(const float4 *)(staged + k * CLASSES + e) : make_float4(0, 0, 0, 0);
  };
  // A row's label and values come while the row before is computed.
  decltype(raw4_l2(p.x)) next;
  int next_label = 0;
  auto read_label = [&](int64_t row) { next_label = row < p.rows ? p.labels[p.indices[row]] : 0; };
  auto read_values = [&](int64_t row) { next = row < p.rows && k < p.k ? raw4_l2(p.x + row * p.k + k) : decltype(next)(); };
  read_label(blockIdx.x);
  if (p.prefetch_w) read_weights();
  pdl_wait();
  read_values(blockIdx.x);
  if (!p.prefetch_w) read_weights();

  float scale = 1.f / p.rows;
  int buffer = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, buffer ^= 1) {
    alignas(16) float values[4], sum[16] = {};
    *(float4 *)values = four_of(next);
    int label = next_label;
    read_values(row + gridDim.x);
    read_label(row + gridDim.x);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int c = 0; c < CLASSES; c++) sum[c] += values[i] * w[i][c];
    float whole = warp_sums(sum);
    if (lane % 2 == 0) parts[buffer][warp][lane / 2] = whole;
    __syncthreads();  // one a row: the next writes the other parts

    float z = 0;
#pragma unroll
    for (int v = 0; v < PARTS; v++) z += parts[buffer][v][lane % 16];
    // The last warp has the fewest k.
    float g = softmax(p, CLASSES, scale, row, label, z, warp == PARTS - 1 && lane < 16, warp == 0 && lane < 16);
    if (!p.dx) continue;
    float grads[CLASSES], d[4] = {};
    broadcast(grads, g);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int c = 0; c < CLASSES; c++) d[i] += grads[c] * w[i][c];
      if (!(values[i] > 0)) d[i] = 0;
    }
    if (k < p.k) store4(p.dx + row * p.k + k, *(const float4 *)d);
  }
}

// With more rows each warp processes one at a time, since a CTA that processes row after row waits at a barrier
// for each. The weights are in shared memory, a line for each of ten classes. k is a multiple of four, at most
// 4·MOST_FOURS for each lane.
constexpr int MOST_FOURS = 16;

// nvcc must be told that two CTAs are enough, or it spills registers for more.
template <typename Value>
__global__ void __launch_bounds__(THREADS, 2) classifier_warps(const Args<Value> p) {
  constexpr int CLASSES = 10;
  extern __shared__ __align__(16) float staged[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, line = p.k + 4, fours = p.k / 4;
  auto stage = [&] {
    for (int i = threadIdx.x; i < p.k * CLASSES; i += THREADS) staged[i % CLASSES * line + i / CLASSES] = ld_l2(p.w + i);
  };
  if (p.prefetch_w) stage();
  pdl_wait();
  if (!p.prefetch_w) stage();
  __syncthreads();
  auto weights = [&](int c, int q) { return *(const float4 *)(staged + c * line + 4 * q); };

  float scale = 1.f / p.rows;
  for (int64_t row = int64_t(blockIdx.x) * WARPS + warp; row < p.rows; row += int64_t(gridDim.x) * WARPS) {
    float sum[16] = {};
    uint64_t positive = 0;  // bits of this lane's k
#pragma unroll(4)
    for (int i = 0; i < MOST_FOURS; i++) {
      int q = lane + 32 * i;
      if (q >= fours) break;
      float4 v = ld4_l2(p.x + row * p.k, q);
      positive |= uint64_t(int(v.x > 0) | int(v.y > 0) << 1 | int(v.z > 0) << 2 | int(v.w > 0) << 3) << (4 * i);
#pragma unroll
      for (int c = 0; c < CLASSES; c++) {
        float4 w = weights(c, q);
        sum[c] += v.x * w.x, sum[c] += v.y * w.y, sum[c] += v.z * w.z, sum[c] += v.w * w.w;
      }
    }
    float z = __shfl_sync(ALL, warp_sums(sum), lane % 16 * 2), grads[CLASSES];
    broadcast(grads, softmax(p, CLASSES, scale, row, p.labels[p.indices[row]], z, lane < 16, lane < 16));
    if (!p.dx) continue;
#pragma unroll 2
    for (int q = lane; q < fours; q += 32) {
      float4 d = {};
#pragma unroll
      for (int c = 0; c < CLASSES; c++) {
        float4 w = weights(c, q);
        d.x += grads[c] * w.x, d.y += grads[c] * w.y, d.z += grads[c] * w.z, d.w += grads[c] * w.w;
      }
      store4(p.dx + row * p.k, make_float4(positive & 1 ? d.x : 0, positive & 2 ? d.y : 0, positive & 4 ? d.z : 0, positive & 8 ? d.w : 0), q);
      positive >>= 4;
    }
  }
}

template <typename Value>
int run_warps(uintptr_t stream, const Args<Value> &p) {
  constexpr int MOST = 4 * 10 * (4 * 32 * MOST_FOURS + 4);
  if (int code = opt_in_shared<classifier_warps<Value>>(MOST)) return code;
  int64_t ctas = (p.rows + WARPS - 1) / WARPS, most = 2 * int64_t(device().sms);
  return launch(stream, {unsigned(std::min(ctas, most)), THREADS, size_t(4) * 10 * (p.k + 4)}, classifier_warps<Value>, p);
}

// row_bytes is the most dynamic shared memory of classifier_row.
constexpr int row_bytes(int size) { return 4 * 4 * 10 * size; }

template <int SIZE, typename Value>
int run_row(uintptr_t stream, const Args<Value> &p) {
  if (int code = opt_in_shared<classifier_row<SIZE, Value>>(row_bytes(SIZE))) return code;
  // Rows beyond what the SMs hold at once find the weights already read.
  int64_t most = 2 * int64_t(device().sms);
  return launch(stream, {unsigned(p.rows < most ? p.rows : most), SIZE, size_t(4) * p.k * p.classes}, classifier_row<SIZE, Value>, p);
}

// The loss reduction: the mean loss of each batch of rows, and how many are correct. One CTA
// a batch: thread t adds rows t, t + THREADS, ..., then the threads' sums are added in a tree.
__global__ void __launch_bounds__(THREADS) loss_reduction(float *out, const float *loss, const float *correct, int64_t rows, int64_t batch) {
  __shared__ float losses[WARPS], corrects[WARPS];
  pdl_wait();
  int64_t start = blockIdx.x * batch, count = min(batch, rows - start);
  float l = 0, c = 0;
  for (int64_t i = threadIdx.x; i < count; i += THREADS) l += loss[start + i], c += correct[start + i];
  l = warp_sum(l), c = warp_sum(c);
  if (threadIdx.x % 32 == 0) losses[threadIdx.x / 32] = l, corrects[threadIdx.x / 32] = c;
  __syncthreads();
  if (threadIdx.x) return;
  for (int w = 1; w < WARPS; w++) l += losses[w], c += corrects[w];
  out[2 * blockIdx.x] = l / count;
  out[2 * blockIdx.x + 1] = c;
}

template <typename Value>
int run_of(uintptr_t stream, const kernels_classifier_args &c) {
  constexpr int FOUR = 4 * sizeof(Value);
  int64_t rows = c.rows, classes = c.classes, k = c.k;
  Args<Value> p = {ptr<Value>(c.dlogits),
                   ptr<Value>(c.dx),
                   ptr<float>(c.loss),
                   ptr<float>(c.correct),
                   ptr<Value>(c.x),
                   ptr<Value>(c.w),
                   ptr<uint8_t>(c.labels),
                   ptr<int32_t>(c.indices),
                   rows,
                   int(classes),
                   int(k),
                   (c.prefetch & KERNELS_PREFETCH_B) != 0,
                   c.w % FOUR == 0};
  bool fours = k % 4 == 0 && (c.x | c.dx) % FOUR == 0;
  if (fours && classes == 10 && rows <= 2 * device().sms) {
    if (k <= 4 * THREADS) return run_row<THREADS>(stream, p);
    if (k <= 8 * THREADS && row_bytes(2 * THREADS) + 2048 <= device().shared) return run_row<2 * THREADS>(stream, p);
  } else if (fours && classes == 10 && rows * k <= 2 << 20 && k <= 4 * 32 * MOST_FOURS && device().shared >= 160 << 10) {
    return run_warps(stream, p);
  }
  if (classes == 10) return fours ? run_tiles<10, true, true>(stream, p) : run_tiles<10, true, false>(stream, p);
  return fours ? run_tiles<16, false, true>(stream, p) : run_tiles<16, false, false>(stream, p);
}

}  // namespace

int kernels_classifier(uintptr_t stream, int precision, kernels_classifier_args c) {
  if (c.rows < 0 || c.k < 0 || c.k > 1 << 30 || c.classes < 1 || c.classes > 16) return cudaErrorInvalidValue;
  if (c.rows == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) { return run_of<decltype(value)>(stream, c); });
}

int kernels_reduce_loss(uintptr_t stream, uintptr_t out, uintptr_t loss, uintptr_t correct, int64_t rows, int64_t batch) {
  if (rows < 0 || batch < 1) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  int64_t batches = (rows - 1) / batch + 1;
  if (batches > INT32_MAX) return cudaErrorInvalidValue;
  return launch(stream, {unsigned(batches), THREADS}, loss_reduction, ptr<float>(out), ptr<float>(loss), ptr<float>(correct), rows, batch);
}
