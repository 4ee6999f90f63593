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
#include <type_traits>

#include "bf16.cuh"
#include "gemm/cluster.cuh"
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
    for (int r = 0; r < ROWS; r++) broadcast(grads[r], softmax(p, classes, scale, row(r), p.labels[p.indices[row(r)]], z[r], lane < 16, lane < 16));
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

// Work is how the rest is divided: among clusters, the CTAs of a cluster, and the warps of a CTA.
struct Work {
  int64_t rows;  // of a cluster
  int warp_rows, groups, slice, chunk, line, kept, ranks, bytes;
};

// Tile is the kernel for all other rows. The CTAs of a cluster share k: each has a slice. Of a CTA's warps,
// those of a band have the same rows and divide the slice among them, so each is also of one of some groups.
// The weights are in shared memory, a line for each class, a chunk of the slice at a time if it does not fit.
// The gradient takes the chunks from the last to the first, so that it finds one there, as does the next tile.
//
// The order of additions: the k of a lane, lanes as in warp_sums, groups, CTAs. FOURS: rows are whole fours
// on their boundaries, so that a lane reads four neighbouring k; else it reads every 32nd.
template <int CLASSES, bool EXACT, bool FOURS, typename Value>
struct Tile {
  static constexpr int ROWS = CLASSES > 10 ? 4 : 8;  // the most rows of a warp: its sums are in registers
  using Raw = std::conditional_t<FOURS, decltype(raw4_l2((const Value *)nullptr)), float4>;
  static constexpr int AHEAD = 128 / (ROWS * sizeof(Raw));  // blocks of k whose values are on their way

  const Args<Value> &p;
  const Work &t;
  const int classes = EXACT ? CLASSES : p.classes, rank = gemm::cluster_ctarank(), ranks = gemm::cluster_nctarank();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % t.groups, band = warp / t.groups, slots = WARPS / t.groups * ROWS;
  const int first_k = min(p.k, t.slice *rank), length = min(p.k - first_k, t.slice), chunks = (length + t.chunk - 1) / t.chunk;
  float *weights;      // [classes][t.line]
  uint32_t *positive;  // [t.kept][THREADS]: where x is positive, four bits a row
  float *sums;         // [2][ranks][slots][16]: of the tile and the next, which another CTA may have reached
  float *parts;        // [WARPS][ROWS][16]: sums of each warp, then gradients
  int held = 0;        // the chunk in weights
  int64_t row;         // the warp's first, of this tile
  int count;           // its rows

  __device__ Tile(const Args<Value> &args, const Work &work, float *shared) : p(args), t(work), weights(shared) {
    positive = reinterpret_cast<uint32_t *>(weights + classes * t.line) + threadIdx.x;
    sums = weights + classes * t.line + t.kept * THREADS;
    parts = sums + 2 * ranks * slots * 16;
  }

  __device__ int chunk_length(int chunk) const { return min(length - chunk * t.chunk, t.chunk); }
  __device__ int blocks(int n) const { return (n + 128 * t.groups - 1) / (128 * t.groups); }
  // at is where this lane's four of the warp's i-th block of 128 begin.
  __device__ int at(int i) const { return 128 * (t.groups * i + group) + (FOURS ? 4 : 1) * lane; }

  __device__ void stage(int chunk) {
    int from = first_k + chunk * t.chunk;
    read_floats<THREADS>(p, p.w + int64_t(from) * classes, chunk_length(chunk) * classes,
                         [&](int i, float v) { weights[unsigned(i) % unsigned(classes) * t.line + unsigned(i) / unsigned(classes)] = v; });
  }

  __device__ void hold(int chunk) {
    if (chunk == held) return;
    __syncthreads();
    stage(chunk);
    held = chunk;
    __syncthreads();
  }

  // read reads the lane's four values of each row from k on, of which n are the chunk's.
  __device__ void read(Raw (&to)[ROWS], int64_t k, int i, int n) const {
    int e = at(i);
    const Value *x = p.x + row * p.k + k + e;
#pragma unroll
    for (int r = 0; r < ROWS; r++, x += p.k) {
      if constexpr (FOURS) to[r] = r < count && e < n ? raw4_l2(x) : Raw();
      else {
        auto one = [&](int j) { return r < count && e + j < n ? ld_l2(x + j) : 0; };
        to[r] = make_float4(one(0), one(32), one(64), one(96));
      }
    }
  }

  // weight returns the weights of a class for the lane's four. Past the end they are others, which are finite
  // if all are.
  __device__ float4 weight(int c, int i, int n) const {
    const float *w = weights + c * t.line;
    int e = at(i);
    if constexpr (FOURS) return *(const float4 *)(w + min(e, n - 4));
    else return make_float4(w[min(e, n - 1)], w[min(e + 32, n - 1)], w[min(e + 64, n - 1)], w[min(e + 96, n - 1)]);
  }

  static __device__ uint32_t signs(const Raw (&x)[ROWS]) {
    uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float4 v = four_of(x[r]);
      bits |= (uint32_t(v.x > 0) | uint32_t(v.y > 0) << 1 | uint32_t(v.z > 0) << 2 | uint32_t(v.w > 0) << 3) << (4 * r);
    }
    return bits;
  }

  __device__ void logits() {
    float sum[ROWS][16] = {};
    for (int chunk = 0, block = 0; chunk < chunks; chunk++) {
      hold(chunk);
      int n = chunk_length(chunk), end = blocks(n);
      int64_t k = first_k + int64_t(chunk) * t.chunk;
      Raw next[AHEAD][ROWS];
#pragma unroll
      for (int a = 0; a < AHEAD; a++) read(next[a], k, a, n);
      for (int i0 = 0; i0 < end; i0 += AHEAD) {
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
          int i = i0 + a;
          if (i >= end) break;
          Raw x[ROWS];
#pragma unroll
          for (int r = 0; r < ROWS; r++) x[r] = next[a][r];
          read(next[a], k, i + AHEAD, n);
          if (p.dx && block < t.kept) positive[block * THREADS] = signs(x);
          block++;
#pragma unroll
          for (int c = 0; c < CLASSES; c++) {
            if (!EXACT && c >= classes) break;
            float4 w = weight(c, i, n);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
              float4 v = four_of(x[r]);
              sum[r][c] += v.x * w.x, sum[r][c] += v.y * w.y, sum[r][c] += v.z * w.z, sum[r][c] += v.w * w.w;
            }
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float whole = warp_sums(sum[r]);
      if (lane % 2 == 0) parts[(warp * ROWS + r) * 16 + lane / 2] = whole;
    }
  }

  // exchange adds the sums of the groups, and gives them to all CTAs of the cluster.
  __device__ void exchange(int buffer) {
    __syncthreads();
    if (int i = threadIdx.x; i < slots * 4) {
      const float *from = parts + i / (4 * ROWS) * t.groups * (16 * ROWS) + i % (4 * ROWS) * 4;
      float4 v = *(const float4 *)from;
      for (int g = 1; g < t.groups; g++) {
        float4 u = *(const float4 *)(from + g * (16 * ROWS));
        v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
      }
      float *to = sums + (buffer * ranks + rank) * slots * 16 + 4 * i;
      if (ranks == 1) *(float4 *)to = v;
      if constexpr (gemm::CLUSTERS)
        for (int r = 0; ranks > 1 && r < ranks; r++) gemm::st_shared_cluster(gemm::mapa(to, r), v);
    }
    if (ranks == 1) __syncthreads();
    else if constexpr (gemm::CLUSTERS) gemm::barrier_cluster();
  }

  // gradient stores dx of the warp's rows, whose gradients by class are in parts.
  __device__ void gradient() {
    float grads[ROWS][CLASSES];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
      for (int c = 0; c < CLASSES; c++) grads[r][c] = parts[(warp * ROWS + r) * 16 + c];
    for (int chunk = chunks - 1; chunk >= 0; chunk--) {
      hold(chunk);
      int n = chunk_length(chunk), before = chunk * blocks(t.chunk);
      int64_t k = first_k + int64_t(chunk) * t.chunk;
      for (int i = 0; at(i) < n; i++) {
        uint32_t bits;
        if (before + i < t.kept) {
          bits = positive[(before + i) * THREADS];
        } else {
          Raw x[ROWS];
          read(x, k, i, n);
          bits = signs(x);
        }
        float4 d[ROWS] = {};
#pragma unroll
        for (int c = 0; c < CLASSES; c++) {
          if (!EXACT && c >= classes) break;
          float4 w = weight(c, i, n);
#pragma unroll
          for (int r = 0; r < ROWS; r++) {
            float g = grads[r][c];
            d[r].x += g * w.x, d[r].y += g * w.y, d[r].z += g * w.z, d[r].w += g * w.w;
          }
        }
        Value *dx = p.dx + row * p.k + k + at(i);
#pragma unroll
        for (int r = 0; r < ROWS; r++, dx += p.k) {
          if (r >= count) break;
          uint32_t b = bits >> 4 * r;
          float4 v = make_float4(b & 1 ? d[r].x : 0, b & 2 ? d[r].y : 0, b & 4 ? d[r].z : 0, b & 8 ? d[r].w : 0);
          if constexpr (FOURS) {
            st4_l2(dx, v);
          } else {
            int left = n - at(i);
            store(dx, v.x);
            if (left > 32) store(dx + 32, v.y);
            if (left > 64) store(dx + 64, v.z);
            if (left > 96) store(dx + 96, v.w);
          }
        }
      }
    }
  }

  // run computes the tile of rows from first on, of which the cluster has those up to end.
  __device__ void run(int64_t first, int64_t end, int buffer, float scale) {
    row = first + band * t.warp_rows, count = int(max(int64_t(0), min(int64_t(t.warp_rows), end - row)));
    int label = lane < count ? p.labels[p.indices[row + lane]] : 0;
    logits();
    exchange(buffer);
    bool writes = rank == 0 && group == 0;
    if (!p.dx && !writes) return;
#pragma unroll 2
    for (int r0 = 0; r0 < ROWS; r0 += 2) {
      int r = r0 + lane / 16;
      float z = 0;
      for (int q = 0; q < ranks; q++) z += sums[((buffer * ranks + q) * slots + band * ROWS + r) * 16 + lane % 16];
      bool write = writes && r < count;
      parts[(warp * ROWS + r) * 16 + lane % 16] = softmax(p, classes, scale, row + r, __shfl_sync(ALL, label, r), z, write, write);
    }
    __syncwarp();
    if (p.dx) gradient();
  }
};

template <int CLASSES, bool EXACT, bool FOURS, typename Value>
__global__ void __launch_bounds__(THREADS, 1) classifier_tiles(const Args<Value> p, const Work t) {
  extern __shared__ __align__(16) float shared[];
  Tile<CLASSES, EXACT, FOURS, Value> tile(p, t, shared);
  if constexpr (gemm::CLUSTERS)
    if (tile.ranks > 1) gemm::barrier_cluster_arrive();
  if (!p.prefetch_w) pdl_wait();
  tile.stage(0);
  if (p.prefetch_w) pdl_wait();
  __syncthreads();
  if constexpr (gemm::CLUSTERS)
    if (tile.ranks > 1) gemm::barrier_cluster_wait();  // the others run, so their shared memory can be written
  int64_t first = blockIdx.x / tile.ranks * t.rows, end = min(p.rows, first + t.rows);
  for (int buffer = 0; first < end; first += WARPS / t.groups * t.warp_rows, buffer ^= 1) tile.run(first, end, buffer, 1.f / p.rows);
}

// work_of divides rows into clusters of that many CTAs, and warps into groups. It returns an estimate of the
// time, in ns on an H200; 0 if it does not fit.
int64_t work_of(Work &t, int64_t rows, int64_t k, int classes, int most_rows, int ranks, int groups) {
  auto up = [](int64_t n, int64_t d) { return (n + d - 1) / d; };
  int bands = WARPS / groups, block = 128 * groups;
  int64_t clusters = std::min(rows, gemm::ctas_at_once(ranks) / ranks);
  if (!clusters) return 0;
  t.rows = up(rows, clusters);
  int64_t tiles = up(t.rows, bands * most_rows);
  t.warp_rows = up(t.rows, tiles * bands);
  t.groups = groups, t.ranks = ranks;
  t.slice = up(up(k, ranks), 32) * 32;
  int64_t blocks = up(t.slice, block);
  int sums = 4 * 16 * most_rows * (2 * ranks * bands + WARPS), all = device().shared - sums;
  t.kept = std::min<int64_t>(blocks, device().shared / 4 / (4 * THREADS));
  int64_t fits = (all - 4 * THREADS * t.kept) / (4 * classes) - 4;
  t.chunk = t.slice <= fits ? blocks * block : fits / block * block;
  if (t.chunk < block) return 0;
  t.line = std::min(t.slice, t.chunk) + 4;
  // With PDL, CTAs start while the kernel before still runs. Two would share a free SM, and other SMs would
  // be idle later, so each asks for more than half of an SM's shared memory.
  t.bytes = std::max(4 * classes * t.line + 4 * THREADS * t.kept + sums, device().shared / 2 + 1024);
  int64_t staged = t.slice + 2 * (up(t.slice, t.chunk) - 1) * t.chunk * tiles;
  return tiles * (blocks * 190 * most_rows + (ranks > 1 ? 1800 : 1200)) + staged * classes / 25;
}

template <int CLASSES, bool EXACT, bool FOURS, typename Value>
int run_tiles(uintptr_t stream, const Args<Value> &p) {
  constexpr auto KERNEL = classifier_tiles<CLASSES, EXACT, FOURS, Value>;
  if (int code = opt_in_shared<KERNEL>(device().shared)) return code;
  Work best = {};
  int64_t least = INT64_MAX;
  for (int ranks = 1; ranks <= (device().major >= 9 ? gemm::MAX_CLUSTER : 1); ranks *= 2)
    for (int groups = 1; groups <= WARPS; groups *= 2) {
      Work t;
      int64_t time = work_of(t, p.rows, p.k, p.classes, Tile<CLASSES, EXACT, FOURS, Value>::ROWS, ranks, groups);
      if (time && time < least) least = time, best = t;
    }
  int64_t ctas = (p.rows + best.rows - 1) / best.rows * best.ranks;
  return launch(stream, {unsigned(ctas), THREADS, size_t(best.bytes), unsigned(best.ranks)}, KERNEL, p, best);
}

template <int CLASSES, bool EXACT, int ROWS, typename Value>
int run_many(uintptr_t stream, const Args<Value> &p) {
  constexpr int MOST = 4 * CLASSES * (4 * 32 * MOST_FOURS + 4);
  constexpr auto KERNEL = classifier_warps<CLASSES, EXACT, ROWS, Value>;
  if (int code = opt_in_shared<KERNEL>(MOST)) return code;
  int64_t ctas = (p.rows + WARPS * ROWS - 1) / (WARPS * ROWS), most = 2 * int64_t(device().sms);
  return launch(stream, {unsigned(std::min(ctas, most)), THREADS, size_t(4) * p.classes * (p.k + 4)}, KERNEL, p);
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
  if (fours && rows > 2 * device().sms && k <= 4 * 32 * MOST_FOURS && device().shared >= 160 << 10)
    return classes != 10                     ? run_many<16, false, 1>(stream, p)
           : rows < 2 * WARPS * device().sms ? run_many<10, true, 1>(stream, p)
                                             : run_many<10, true, 2>(stream, p);  // which halves the reads of the weights
  if (fours && rows <= 2 * device().sms && classes == 10) {
    if (k <= 4 * THREADS) return run_row<THREADS>(stream, p);
    if (k <= 8 * THREADS && row_bytes(2 * THREADS) + 2048 <= device().shared) return run_row<2 * THREADS>(stream, p);
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
