// The mainloop of GEMMs on the tensor cores by mma.sync; its policies are in tensorop.cu.
//
// A CTA computes a tile BM×BN of c. Its warps are SLICES groups of WM×WN warps. All threads copy k-tiles of
// SLICES·BK to a pipeline of STAGES in shared memory, by cp.async. A slice multiplies its own BK of each
// k-tile (intra-CTA split-K); the slices' sums are added once, at the end, in order. CTAs of a cluster may
// share a tile as well (cluster split-K).
//
//   stage      | slice 0 | slice 1 | slice 0 | slice 1 | ...      SLICES = 2
//              |    BK   |    BK   |
//              |      k-tile       |      k-tile       |
//
// A warp's tile is as large as its registers allow, which saves reads of shared memory; slices put more warps
// on a CTA's tile.
#pragma once

#include "gemm/mma.cuh"
#include "gemm/split_k.cuh"

namespace gemm {
namespace tensorop {

template <int BM_, int BN_, int BK_, int WM_, int WN_, int SLICES_, int STAGES_, int CTAS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int CTAS = CTAS_;  // on an SM, by its registers
  static constexpr int SLICE = 32 * WM * WN, THREADS = SLICE * SLICES;
  static constexpr int K_TILE = BK * SLICES, K8S = BK / 8;
  static constexpr int MI = BM / WM / 16, NI = BN / WN / 8;  // a warp's tiles of 16×8
  // Floats of a row, and of a slice's sums, which overwrite the stages.
  static constexpr int LD = BN + 8, PART = BM * LD;
  static_assert(MI * WM * 16 == BM && NI * WN * 8 == BN, "warps cover the tile");
  static_assert(K8S % 2 == 0, "every k-tile begins with the same of two sets of registers");
};

// Tile is an operand's tile in shared memory, X rows (of m or n) by BK, in the order of global memory: k is
// contiguous if K, and otherwise rows are. Lane 4g + t reads k = 2t and 2t+1 of row g. These strides put the
// lanes in 32 different banks.
template <bool K_, int X_, int BK_>
struct Tile {
  static constexpr bool K = K_;
  static constexpr int X = X_, BK = BK_, STRIDE = K ? BK + 8 : X + 4, SIZE = K ? X * STRIDE : BK * STRIDE;
  static_assert(K ? STRIDE % 16 == 8 : STRIDE % 8 == 4, "no bank conflicts");
};

// Rows maps row g of fragment o to a row of the tile. Where rows are contiguous, a lane reads its row of
// four, two or one n8 (or m8) fragments at once, so those rows are neighbours. Five fragments are read as
// four and one:
//
//   N = 5, rows of the tile:  0 1 2 3   4 5 6 7  ...  28..31   32 .. 39
//   fragment:                 0 1 2 3   0 1 2 3  ...  0 1 2 3   4 .. 4
//   its g:                    0 0 0 0   1 1 1 1  ...  7 7 7 7   0 .. 7
template <bool K, int N>
struct Rows {
  static __device__ constexpr int at_once(int o) { return K || o == N / 2 * 2 ? 1 : o / 4 * 4 + 4 > N ? 2 : 4; }
  static __device__ constexpr int row(int o, int i) { return o / at_once(o) * 8 * at_once(o) + i * at_once(o) + o % at_once(o); }
};

template <typename T, int N>
struct Fragments {
  using R = Rows<T::K, N>;
  unsigned first;  // address of the lane's first k in the first stage; if T::K, in the lane's row
  int g;

  __device__ Fragments(unsigned tile, int row, int k) : g(threadIdx.x % 32 / 4) {
    k += threadIdx.x % 4 * 2;
    first = tile + 4 * (T::K ? (row + g) * T::STRIDE + k : k * T::STRIDE + row);
  }

  // read reads two k of each of N fragments, from the k8-th eight k of the slice.
  __device__ void read(float (&f)[N][2], unsigned stage, int k8) const {
    float v[4];
#pragma unroll
    for (int o = 0; o < N; o += R::at_once(o)) {
      if constexpr (T::K) {
        ld_shared<2>(v, first + stage + 4 * (8 * k8 + o * 8 * T::STRIDE));
        f[o][0] = v[0], f[o][1] = v[1];
      } else {
#pragma unroll
        for (int k = 0; k < 2; k++) {
          unsigned from = first + stage + 4 * ((8 * k8 + k) * T::STRIDE + o * 8 + g * R::at_once(o));
          if (R::at_once(o) == 4) ld_shared<4>(v, from);
          else if (R::at_once(o) == 2) ld_shared<2>(v, from);
          else ld_shared<1>(v, from);
#pragma unroll
          for (int i = 0; i < R::at_once(o); i++) f[o + i][k] = v[i];
        }
      }
    }
  }
};

// Loader copies an operand's k-tiles. A thread copies EACH float4s of a k-tile, from lines that are APART
// lines apart. ALIGNED: all rows are whole float4.
template <typename T, int THREADS, bool ALIGNED>
struct Loader {
  static constexpr int LINES = T::K ? T::X : T::BK, LINE = (T::K ? T::BK : T::X) / 4;
  static constexpr int APART = THREADS / LINE, EACH = ceil_div(LINES, APART);
  static_assert(APART > 0, "the threads cover a line");

  const float *from;
  unsigned to;
  // width is that of a row in global memory. x_left counts the rows from this thread's first on.
  int width, line, column, x_left;
  bool aligned;

  __device__ Loader(const float *operand, bool aligned_, int width_, int x0, int x_end, int k0, unsigned tile)
      : width(width_), line(threadIdx.x / LINE), column(threadIdx.x % LINE * 4), aligned(aligned_) {
    from = operand + (T::K ? int64_t(x0 + line) * width + k0 + column : int64_t(k0 + line) * width + x0 + column);
    x_left = x_end - x0 - (T::K ? line : column);
    to = tile + 4 * (line * T::STRIDE + column);
  }

  // next copies the next k-tile to a stage. k_left of its k are valid, the rest becomes zeros.
  __device__ void next(unsigned stage, int k_left) {
    k_left -= T::K ? column : line;
    int lines_left = T::K ? x_left : k_left, columns_left = T::K ? k_left : x_left;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      bool mine = (APART * LINE == THREADS || line < APART) && (LINES % APART == 0 || line < LINES - i * APART);
      unsigned at = to + stage + 4 * i * APART * T::STRIDE;
      const float *source = from + int64_t(i * APART) * width;
      if (ALIGNED) cp_async_float4_if(mine, at, source, columns_left > 0 && i * APART < lines_left);
      else if (mine) cp_async_float4(aligned, at, source, i * APART < lines_left ? columns_left : 0);
    }
    from += T::K ? T::BK : int64_t(T::BK) * width;
  }
};

template <int LAYOUT, typename C>
struct Stages {
  using A = Tile<LAYOUT != TN, C::BM, C::K_TILE>;
  using B = Tile<LAYOUT == NT, C::BN, C::K_TILE>;
  static constexpr int STAGE = 4 * (A::SIZE + B::SIZE), ALL = C::STAGES * STAGE, PARTS = 4 * C::SLICES * C::PART;
  static constexpr int BYTES = ALL > PARTS ? ALL : PARTS;
  static constexpr int INBOX = inbox_bytes(C::BM, C::BN);
};

// Mainloop sums a warp's part of its slice. Fragments are double-buffered in registers: eight k are
// multiplied while the next eight are read and split, with no branch between, so that both overlap within a
// warp; a scheduler has only two warps to choose from.
template <int LAYOUT, bool X3, bool ALIGNED, typename C>
struct Mainloop {
  using S = Stages<LAYOUT, C>;
  using A = typename S::A;
  using B = typename S::B;
  static constexpr int STAGE = S::STAGE;

  // k_end is the end of this CTA's k, from 0. wm and wn are the warp's first row and column in the tile.
  int k_tiles, k_end, slice, wm, wn;
  Loader<A, C::THREADS, ALIGNED> load_a;
  Loader<B, C::THREADS, ALIGNED> load_b;
  Fragments<A, 2 * C::MI> read_a;
  Fragments<B, C::NI> read_b;
  float fa[2 * C::MI][2], fb[C::NI][2];
  unsigned a[2][2 * C::MI][2], a_lo[2][2 * C::MI][2], b[2][C::NI][2], b_lo[2][C::NI][2];
  float sum[C::MI][C::NI][4] = {};

  __device__ Mainloop(const Gemm &g, int m0, int n0, int k0, int k1, unsigned stages)
      : k_tiles(ceil_div(k1 - k0, C::K_TILE)), k_end(k1 - k0), slice(threadIdx.x / C::SLICE), wm(threadIdx.x % C::SLICE / 32 / C::WN * (C::MI * 16)),
        wn(threadIdx.x / 32 % C::WN * (C::NI * 8)), load_a(g.a, g.aligned_a, A::K ? g.k : g.m, m0, g.m, k0, stages),
        load_b(g.b, g.aligned_b, B::K ? g.k : g.n, n0, g.n, k0, stages + 4 * A::SIZE), read_a(stages, wm, slice * C::BK),
        read_b(stages + 4 * A::SIZE, wn, slice * C::BK) {}

  // load copies a k-tile to a stage; past the last one it copies zeros, which no thread reads.
  __device__ void load(int k_tile, unsigned stage, bool of_a, bool of_b) {
    if (of_a) load_a.next(stage, k_end - k_tile * C::K_TILE);
    if (of_b) load_b.next(stage, k_end - k_tile * C::K_TILE);
  }

  __device__ void read(unsigned stage, int k8) {
    read_a.read(fa, stage, k8);
    read_b.read(fb, stage, k8);
  }

  __device__ void split(int into) {
    split_tf32<X3>(a[into], a_lo[into], fa);
    split_tf32<X3>(b[into], b_lo[into], fb);
  }

  __device__ void multiply(float (&to)[C::MI][C::NI][4], int from, int i) {
    auto &as = a[from], &as_lo = a_lo[from];
    auto &bs = b[from], &bs_lo = b_lo[from];
    if (X3) {
#pragma unroll
      for (int j = 0; j < C::NI; j++) mma_sync(to[i][j], as_lo[2 * i], as_lo[2 * i + 1], bs[j]);
#pragma unroll
      for (int j = 0; j < C::NI; j++) mma_sync(to[i][j], as[2 * i], as[2 * i + 1], bs_lo[j]);
    }
#pragma unroll
    for (int j = 0; j < C::NI; j++) mma_sync(to[i][j], as[2 * i], as[2 * i + 1], bs[j]);
  }

  __device__ static void wait() {
    cp_async_wait_group<C::STAGES - 2>();
    // All threads' copies of this k-tile have landed, and no thread still reads the stage before it.
    __syncthreads();
  }

  __device__ static void next_stage(unsigned &stage) { stage = stage == S::ALL - STAGE ? 0 : stage + STAGE; }

  __device__ void run() {
    unsigned read_stage = 0, write_stage = S::ALL - STAGE;
    wait();
    read(read_stage, 0);
    split(0);
#pragma unroll 1
    for (int i = 0; i < k_tiles; i++) {
      // 3xtf32 promotes sums after each k-tile: see Accumulators::promote in mma.cuh.
      float partial[C::MI][C::NI][4] = {};
      auto &to = X3 ? partial : sum;
#pragma unroll
      for (int k8 = 0; k8 < C::K8S; k8++) {
        if (k8 == C::K8S - 1) {
          next_stage(read_stage);
          wait();
        }
        read(read_stage, (k8 + 1) % C::K8S);
#pragma unroll
        for (int h = 0; h < (C::MI + 1) / 2; h++) multiply(to, k8 % 2, h);
        if (k8 == 0) {  // after the reads of fragments, which would queue behind the copies
          load(i + C::STAGES - 1, write_stage, true, true);
          cp_async_commit_group();
          next_stage(write_stage);
        }
        split((k8 + 1) % 2);
#pragma unroll
        for (int h = (C::MI + 1) / 2; h < C::MI; h++) multiply(to, k8 % 2, h);
      }
      if (X3) {
#pragma unroll
        for (int h = 0; h < C::MI; h++)
#pragma unroll
          for (int j = 0; j < C::NI; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[h][j][e] += partial[h][j][e];
      }
    }
  }

  // store_shared writes a slice's sums to shared memory. A lane has columns 2t and 2t+1 of each n8 fragment
  // and row g of each m8 fragment; Rows says where those lie.
  __device__ void store_shared(float *shared) const {
    using RowsA = Rows<A::K, 2 * C::MI>;
    using RowsB = Rows<B::K, C::NI>;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * C::MI; i++)
#pragma unroll
      for (int j = 0; j < C::NI; j += RowsB::at_once(j)) {
        float *to = shared + slice * C::PART + (wm + RowsA::row(i, g)) * C::LD + wn + RowsB::row(j, 2 * t);
        auto at = [&](int o, int e) { return sum[i / 2][min(j + o, C::NI - 1)][i % 2 * 2 + e]; };
        if (RowsB::at_once(j) == 4) {
          *(float4 *)to = make_float4(at(0, 0), at(1, 0), at(2, 0), at(3, 0));
          *(float4 *)(to + 4) = make_float4(at(0, 1), at(1, 1), at(2, 1), at(3, 1));
        } else if (RowsB::at_once(j) == 2) {
          *(float4 *)to = make_float4(at(0, 0), at(1, 0), at(0, 1), at(1, 1));
        } else {
          *(float2 *)to = make_float2(at(0, 0), at(0, 1));
        }
      }
  }
};

}  // namespace tensorop
}  // namespace gemm
