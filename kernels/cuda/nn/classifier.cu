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

// softmax has the logits of a row, z, one class a lane in every half of the warp. It
// returns the gradient of the class, and writes the loss, whether it is correct, and the gradients.
template <typename Value>
__device__ float softmax(const Args<Value> &p, int classes, float scale, int64_t row, int label, float z, bool write_loss, bool write_grad) {
  int lane = threadIdx.x % 32, own = lane % 16;
  bool real = own < classes;
  if (!real) z = -INFINITY;
  float largest = warp_max<16>(z), e = real ? expf(z - largest) : 0, total = warp_sum<16>(e);
  if (write_loss) {
    unsigned first = __ballot_sync(ALL, real && z == largest);
    float at_label = __shfl_sync(ALL, z, label & 15);
    if (lane == 0) {
      p.loss[row] = label < classes ? logf(total) - (at_label - largest) : NAN;
      p.correct[row] = first && __ffs(first) - 1 == label ? 1 : 0;
    }
  }
  float g = (e / total - (own == label ? 1.f : 0.f)) * scale;
  if (p.dx && write_grad && real && lane < 16) store(p.grad + row * classes + own, g);
  return g;
}

// broadcast gives every lane the values of the first N.
template <int N>
__device__ void broadcast(float (&v)[N], float own) {
#pragma unroll
  for (int i = 0; i < N; i++) v[i] = __shfl_sync(ALL, own, i);
}

// Weights are a thread's part of w: of every SIZE-th four of k, HELD of them in registers, or
// with HELD 0 of every SIZE-th k, read again each time. CLASSES: at least the number of classes;
// EXACT: exactly.
template <int CLASSES, bool EXACT, int HELD, int SIZE, typename Value>
struct Weights {
  static constexpr int KS = HELD ? 4 * HELD : 1;
  const Args<Value> &p;
  const int classes = EXACT ? CLASSES : p.classes;
  alignas(16) float held[KS][CLASSES];

  __device__ explicit Weights(const Args<Value> &args) : p(args) {}

  // first is the first k of the thread's i-th four.
  static __device__ int first(int i) { return 4 * (int(threadIdx.x) + i * SIZE); }

  __device__ void read(int k, float (&w)[CLASSES]) const {
#pragma unroll
    for (int c = 0; c < CLASSES; c++) w[c] = k < p.k && c < classes ? ld_l2(p.w + int64_t(k) * classes + c) : 0;
  }

  // hold reads the weights to hold: through shared memory, so that reads are whole cache lines.
  __device__ void hold(float *staged) {
    if (!HELD) return;
    int count = p.k * classes;
    for (int i = threadIdx.x * 4; i < count; i += SIZE * 4) {
      if (p.aligned_w && i + 4 <= count) {
        *(float4 *)(staged + i) = ld4_l2(p.w + i);
      } else {
        for (int e = i; e < min(i + 4, count); e++) staged[e] = ld_l2(p.w + e);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      int k = first(i);
      if (EXACT) {
#pragma unroll
        for (int e = 0; e < 4 * CLASSES; e += 4)
          *(float4 *)(&held[4 * i][0] + e) = k < p.k ? *(const float4 *)(staged + k * CLASSES + e) : make_float4(0, 0, 0, 0);
      } else {
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int c = 0; c < CLASSES; c++) held[4 * i + e][c] = k < p.k && c < classes ? staged[(k + e) * classes + c] : 0;
      }
    }
  }
};

// With few rows each CTA processes one row at a time: blockIdx.x, blockIdx.x + gridDim.x, ... A thread
// has its part of the weights for the logits and again for the gradient, prefetched before pdl_wait.
// The function is long because both halves of a row use the same registers: the weights, the row's
// values, and those of the next row, which load meanwhile.
template <int CLASSES, bool EXACT, int HELD, int SIZE, typename Value>
__global__ void __launch_bounds__(SIZE, HELD == 1 && SIZE == THREADS && EXACT ? 2 : 1) classifier(const Args<Value> p) {
  constexpr int PARTS = SIZE / 32;  // one a warp
  __shared__ float parts[2][PARTS][16];
  extern __shared__ __align__(16) float staged[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  using W = Weights<CLASSES, EXACT, HELD, SIZE, Value>;
  W weights(p);
  const int classes = weights.classes;
  auto &held = weights.held;
  // A row's label and values come while the row before is computed.
  decltype(raw4_l2(p.x)) next[HELD ? HELD : 1];
  int next_label = 0;
  auto read_label = [&](int64_t row) { next_label = row < p.rows ? p.labels[p.indices[row]] : 0; };
  auto read_values = [&](int64_t row) {
#pragma unroll
    for (int i = 0; i < HELD; i++) next[i] = row < p.rows && W::first(i) < p.k ? raw4_l2(p.x + row * p.k + W::first(i)) : decltype(raw4_l2(p.x))();
  };
  read_label(blockIdx.x);
  if (p.prefetch_w) weights.hold(staged);
  pdl_wait();
  read_values(blockIdx.x);
  if (!p.prefetch_w) weights.hold(staged);

  float scale = 1.f / p.rows;
  int buffer = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, buffer ^= 1) {
    const Value *x = p.x + row * p.k;
    alignas(16) float values[W::KS], sum[16] = {};
#pragma unroll
    for (int i = 0; i < HELD; i++) *(float4 *)(values + 4 * i) = four_of(next[i]);
    int label = next_label;
    read_values(row + gridDim.x);
    read_label(row + gridDim.x);
#pragma unroll
    for (int i = 0; i < 4 * HELD; i++)
#pragma unroll
      for (int c = 0; c < CLASSES; c++) sum[c] += values[i] * held[i][c];
    if (!HELD)
      for (int k = threadIdx.x; k < p.k; k += SIZE) {
        float w[CLASSES], v = ld_l2(x + k);
        weights.read(k, w);
#pragma unroll
        for (int c = 0; c < CLASSES; c++) sum[c] += v * w[c];
      }
    float whole = warp_sums(sum);
    if (lane % 2 == 0) parts[buffer][warp][lane / 2] = whole;
    __syncthreads();  // one a row: the next writes the other parts

    float z = 0;
#pragma unroll
    for (int v = 0; v < PARTS; v++) z += parts[buffer][v][lane % 16];
    // The last warp has the fewest k.
    float g = softmax(p, classes, scale, row, label, z, warp == PARTS - 1, warp == 0);
    if (!p.dx) continue;
    float grads[CLASSES];
    broadcast(grads, g);
    auto gradient = [&](float v, const float(&w)[CLASSES]) {
      float d = 0;
#pragma unroll
      for (int c = 0; c < CLASSES; c++)
        if (EXACT || c < classes) d += grads[c] * w[c];
      return v > 0 ? d : 0;
    };
    Value *dx = p.dx + row * p.k;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      int s = 4 * i;
      if (W::first(i) < p.k)
        store4(dx + W::first(i), make_float4(gradient(values[s], held[s]), gradient(values[s + 1], held[s + 1]), gradient(values[s + 2], held[s + 2]),
                                             gradient(values[s + 3], held[s + 3])));
    }
    if (!HELD)
      for (int k = threadIdx.x; k < p.k; k += SIZE) {
        float w[CLASSES];
        weights.read(k, w);
        store(dx + k, gradient(ld_l2(x + k), w));
      }
  }
}

// With many rows each warp processes ROWS at a time, since a CTA that processes row after row waits at a
// barrier for each. The weights are in shared memory, a line for each class. k is a multiple of four, at
// most 4·MOST_FOURS for each lane.
constexpr int MOST_FOURS = 16;

// With ROWS 1 and EXACT nvcc must be told that two CTAs are enough, or it spills registers for more.
template <int CLASSES, bool EXACT, int ROWS, typename Value>
__global__ void __launch_bounds__(THREADS, ROWS == 1 && EXACT ? 2 : 0) classifier_warps(const Args<Value> p) {
  extern __shared__ __align__(16) float staged[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, classes = EXACT ? CLASSES : p.classes, line = p.k + 4, fours = p.k / 4;
  auto stage = [&] {
    for (int i = threadIdx.x; i < p.k * classes; i += THREADS) staged[i % classes * line + i / classes] = ld_l2(p.w + i);
  };
  if (p.prefetch_w) stage();
  pdl_wait();
  if (!p.prefetch_w) stage();
  __syncthreads();
  auto weights = [&](int c, int q) { return !EXACT && c >= classes ? float4() : *(const float4 *)(staged + c * line + 4 * q); };

  float scale = 1.f / p.rows;
  for (int64_t first = (int64_t(blockIdx.x) * WARPS + warp) * ROWS; first < p.rows; first += int64_t(gridDim.x) * WARPS * ROWS) {
    auto row = [&](int r) { return min(first + r, p.rows - 1); };  // the last one again, past the end
    float sum[ROWS][16] = {};
    uint64_t positive[ROWS] = {};  // bits of this lane's k
#pragma unroll(4 / ROWS)
    for (int i = 0; i < MOST_FOURS; i++) {
      int q = lane + 32 * i;
      if (q >= fours) break;
      float4 v[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        v[r] = ld4_l2(p.x + row(r) * p.k, q);
        positive[r] |= uint64_t(int(v[r].x > 0) | int(v[r].y > 0) << 1 | int(v[r].z > 0) << 2 | int(v[r].w > 0) << 3) << (4 * i);
      }
#pragma unroll
      for (int c = 0; c < CLASSES; c++) {
        float4 w = weights(c, q);
#pragma unroll
        for (int r = 0; r < ROWS; r++) sum[r][c] += v[r].x * w.x, sum[r][c] += v[r].y * w.y, sum[r][c] += v[r].z * w.z, sum[r][c] += v[r].w * w.w;
      }
    }
    float z[ROWS], grads[ROWS][CLASSES];
#pragma unroll
    for (int r = 0; r < ROWS; r++) z[r] = __shfl_sync(ALL, warp_sums(sum[r]), lane % 16 * 2);
#pragma unroll
    for (int r = 0; r < ROWS; r++) broadcast(grads[r], softmax(p, classes, scale, row(r), p.labels[p.indices[row(r)]], z[r], true, true));
    if (!p.dx) continue;
#pragma unroll 2
    for (int q = lane; q < fours; q += 32) {
      float4 d[ROWS] = {};
#pragma unroll
      for (int c = 0; c < CLASSES; c++) {
        float4 w = weights(c, q);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
          d[r].x += grads[r][c] * w.x, d[r].y += grads[r][c] * w.y, d[r].z += grads[r][c] * w.z, d[r].w += grads[r][c] * w.w;
      }
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        uint64_t bits = positive[r];
        store4(p.dx + row(r) * p.k, make_float4(bits & 1 ? d[r].x : 0, bits & 2 ? d[r].y : 0, bits & 4 ? d[r].z : 0, bits & 8 ? d[r].w : 0), q);
        positive[r] = bits >> 4;
      }
    }
  }
}

template <int CLASSES, bool EXACT, int ROWS, typename Value>
int run_many(uintptr_t stream, const Args<Value> &p) {
  constexpr int MOST = 4 * CLASSES * (4 * 32 * MOST_FOURS + 4);
  constexpr auto KERNEL = classifier_warps<CLASSES, EXACT, ROWS, Value>;
  if (int code = opt_in_shared<KERNEL>(MOST)) return code;
  int64_t ctas = (p.rows + WARPS * ROWS - 1) / (WARPS * ROWS), most = 2 * int64_t(device().sms);
  return launch(stream, {unsigned(std::min(ctas, most)), THREADS, size_t(4) * p.classes * (p.k + 4)}, KERNEL, p);
}

template <int CLASSES, bool EXACT, int HELD, int SIZE = THREADS, typename Value>
int run(uintptr_t stream, const Args<Value> &p) {
  // Bytes of staged, and of parts.
  constexpr int MOST = 4 * 4 * HELD * SIZE * CLASSES, STATIC = 4 * 2 * (SIZE / 32) * 16;
  constexpr auto KERNEL = classifier<CLASSES, EXACT, HELD, SIZE, Value>;
  if (MOST + STATIC > device().shared) return run<16, false, 0>(stream, p);
  if (int code = opt_in_shared<KERNEL>(MOST)) return code;
  // Rows beyond what the SMs hold at once find the weights already read.
  int64_t most = 2 * int64_t(device().sms);
  return launch(stream, {unsigned(p.rows < most ? p.rows : most), SIZE, HELD ? size_t(4) * p.k * p.classes : 0}, KERNEL, p);
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
  if (fours && rows > 2 * device().sms && k <= 4 * 32 * MOST_FOURS && device().shared >= 160 << 10)
    return classes != 10                     ? run_many<16, false, 1>(stream, p)
           : rows < 2 * WARPS * device().sms ? run_many<10, true, 1>(stream, p)
                                             : run_many<10, true, 2>(stream, p);  // which halves the reads of the weights
  if (fours && classes == 10 && k <= 4 * THREADS) return run<10, true, 1>(stream, p);
  if (fours && classes == 10 && k <= 8 * THREADS) return run<10, true, 1, 2 * THREADS>(stream, p);
  if (fours && classes == 10 && k <= 16 * THREADS) return run<10, true, 2, 2 * THREADS>(stream, p);
  return fours && k <= 4 * THREADS ? run<16, false, 1>(stream, p) : run<16, false, 0>(stream, p);
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
