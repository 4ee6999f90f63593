// The classifier for every number of rows, inputs and classes: clusters of CTAs that share the inputs.
#pragma once

#include <type_traits>

#include "gemm/cluster.cuh"
#include "nn/classifier.cuh"

namespace {

// Work is how rows and inputs are divided among clusters, the CTAs of a cluster, and the warps of a CTA.
struct Work {
  int64_t rows;  // of a cluster
  int warp_rows, groups, slice, chunk, line, kept, ranks, bytes;
};

// Tile computes some rows of a cluster. Each CTA of the cluster has a slice of k. The warps of a band have the same
// rows, and divide the slice of their CTA: one has its group's part.
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

}  // namespace
