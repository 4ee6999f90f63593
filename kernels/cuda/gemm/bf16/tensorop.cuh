// The mainloop of GEMMs in bf16 on the tensor cores, by mma.sync m16n8k16; its policies are in tensorop.cu.
//
// A CTA computes a tile BM×BN of c. Its warps are SLICES groups of WM×WN warps. A slice sums its own part of
// the tile's k (intra-CTA split-K), which passes in k-tiles of BK through its own pipeline of STAGES in
// shared memory; so only the threads of a slice wait for each other. The slices' sums are added once, at the
// end, in order. CTAs of a cluster may share a tile as well (cluster split-K).
//
//   k  |           slice 0           |           slice 1           |  ...
//      |   BK   |   BK   |   BK   |  |   BK   |   BK   |   BK   |  |
//
// An operand lies in shared memory as in global memory: ldmatrix reads fragments of either order.
#pragma once

#include <cstring>

#include "gemm/grouped.cuh"
#include "gemm/mma.cuh"
#include "gemm/split_k.cuh"

namespace gemm {
namespace bfloat {

// padded returns the stride of lines of x elements, a multiple of eight: eight lines then begin in different
// banks, for halves that ldmatrix reads and floats that lanes store by float2.
__host__ __device__ constexpr int padded(int x) { return x % 16 ? x : x + 8; }

template <int BM_, int BN_, int BK_, int WM_, int WN_, int SLICES_, int STAGES_, int CTAS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int CTAS = CTAS_;  // on an SM, by its registers
  static constexpr int SLICE = 32 * WM * WN, THREADS = SLICE * SLICES;
  static constexpr int MI = BM / WM / 16, NI = BN / WN / 8;  // a warp's tiles of 16×8
  // Floats of a row, and of a slice's sums, which overwrite the stages.
  static constexpr int LD = padded(BN), PART = BM * LD;
  static_assert(MI * WM * 16 == BM && NI * WN * 8 == BN, "warps cover the tile");
  static_assert(BK % 16 == 0 && STAGES > 1 && SLICES <= 15, "whole multiplications, a pipeline, named barriers");
};

// Tile is an operand's tile in shared memory, X rows (of m or n) by BK, in the order of global memory. Its
// lines have BK elements if K, and otherwise X.
template <bool K_, int X, int BK>
struct Tile {
  static constexpr bool K = K_;
  static constexpr int LINES = K ? X : BK, LINE = K ? BK : X, STRIDE = padded(LINE), BYTES = 2 * LINES * STRIDE;
};

// Fragments reads the fragments of one operand: 16 rows by 16 k of a, or 16 k by 16 columns of b, at once.
// ldmatrix transposes where the lines of a tile are not the rows of a fragment.
template <typename T, bool OF_A>
struct Fragments {
  unsigned first;  // address of the lane's row of the first matrices, in the first stage

  __device__ Fragments(unsigned tile, int x) {
    // The second of the four matrices is below the first, not beside it.
    constexpr bool HALVES = OF_A == T::K;
    int lane = threadIdx.x % 32;
    int line = HALVES ? lane % 16 : lane / 16 * 8 + lane % 8, column = HALVES ? lane / 16 * 8 : lane / 8 % 2 * 8;
    first = tile + 2 * ((line + (T::K ? x : 0)) * T::STRIDE + column + (T::K ? 0 : x));
  }

  // read reads rows x and k of a stage, as multiples of 8 and 16.
  template <int N>
  __device__ void read(unsigned (&r)[N], unsigned stage, int x, int k) const {
    ldmatrix<!T::K>(r, first + stage + 2 * (T::K ? 8 * x * T::STRIDE + 16 * k : 16 * k * T::STRIDE + 8 * x));
  }
};

// ACCESS is how an operand is copied to shared memory.
enum {
  CP_ASYNC,  // rows are whole chunks of eight bf16 on 16-byte boundaries
  PIXELS,    // uint8 input, of rows that are whole chunks of eight on 8-byte boundaries; converted on the way
  ANY,       // any of both, of any alignment
};

// load_eight reads eight bf16 as several V. All rows begin and end on boundaries of the size of V. If fewer
// are left it reads those, and returns zeros for the others.
template <typename V>
__device__ uint4 load_eight(const bf16 *from, int left) {
  constexpr int EACH = sizeof(V) / sizeof(bf16), COUNT = 8 / EACH;
  V v[COUNT] = {};
#pragma unroll
  for (int i = 0; i < COUNT; i++)
    if (i * EACH < left) v[i] = ((const V *)from)[i];
  uint4 eight;
  memcpy(&eight, v, sizeof eight);
  return eight;
}

__device__ inline uint4 load_eight_pixels(const uint8_t *from, int left) {
  unsigned v[8] = {};
#pragma unroll
  for (int i = 0; i < 8; i++)
    if (i < left) v[i] = __float_as_uint(float(from[i])) >> 16;
  return make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
}

// Loader copies an operand's k-tiles. A thread copies EACH chunks of eight elements of a k-tile, from lines
// that are APART lines apart. fetch starts a copy, put ends it; by cp.async put has nothing to do.
template <typename T, int THREADS, int ACCESS>
struct Loader {
  static constexpr int LINE = T::LINE / 8, APART = THREADS / LINE, EACH = ceil_div(T::LINES, APART);
  static_assert(APART > 0, "the threads cover a line");
  using Chunk = typename std::conditional<ACCESS == PIXELS, uint2, uint4>::type;
  struct Fetched {
    Chunk chunk[ACCESS == CP_ASYNC ? 1 : EACH];
  };

  const void *operand;
  const int32_t *indices;  // null, or of the rows of uint8 input
  char *to;
  unsigned to_shared;
  // beyond is how many bytes of a row, and of its address, are beyond 16-byte boundaries.
  int width, line, column, x0, x_end, k0, k_end, beyond;

  __device__ Loader(const float *from, const int32_t *indices_, int width_, int x, int x_end_, int k0_, int k_end_, char *tile, int thread)
      : operand(from), indices(indices_), width(width_), line(thread / LINE), column(thread % LINE * 8), x0(x), x_end(x_end_), k0(k0_), k_end(k_end_),
        beyond(int(uintptr_t(from) | 2 * width_) & 15) {
    to = tile + 2 * (line * T::STRIDE + column);
    to_shared = shared_address((const float *)to);
  }

  __device__ bool mine(int i) const {
    return (APART * LINE == THREADS || line < APART) && ((i + 1) * APART <= T::LINES || line + i * APART < T::LINES);
  }

  // fetch is of the k_tile-th k-tile.
  __device__ void fetch(Fetched &f, int k_tile, unsigned stage) const {
    int k = k0 + k_tile * (T::K ? T::LINE : T::LINES);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      int row = line + i * APART + (T::K ? x0 : k), x = column + (T::K ? k : x0);
      int left = row < (T::K ? x_end : k_end) ? (T::K ? k_end : x_end) - x : 0;
      if constexpr (ACCESS == CP_ASYNC) {
        auto from = (const bf16 *)operand + int64_t(row) * width + x;
        cp_async_float4_if(mine(i), to_shared + stage + 2 * i * APART * T::STRIDE, (const float *)from, left > 0);
      } else {
        f.chunk[i] = {};
        if (!mine(i) || left <= 0) continue;
        if constexpr (ACCESS == PIXELS) {
          f.chunk[i] = *(const uint2 *)((const uint8_t *)operand + int64_t(indices[row]) * width + x);
        } else if (indices) {
          f.chunk[i] = load_eight_pixels((const uint8_t *)operand + int64_t(indices[row]) * width + x, left);
        } else {
          auto from = (const bf16 *)operand + int64_t(row) * width + x;
          f.chunk[i] = beyond == 0       ? *(const uint4 *)from
                       : beyond % 8 == 0 ? load_eight<uint2>(from, left)
                       : beyond % 4 == 0 ? load_eight<unsigned>(from, left)
                                         : load_eight<uint16_t>(from, left);
        }
      }
    }
  }

  __device__ void put(const Fetched &f, unsigned stage) const {
    if constexpr (ACCESS != CP_ASYNC) {
#pragma unroll
      for (int i = 0; i < EACH; i++) {
        auto at = (uint4 *)(to + stage + 2 * i * APART * T::STRIDE);
        if (!mine(i)) continue;
        if constexpr (ACCESS == PIXELS) *at = bf16_pixels(f.chunk[i]);
        else *at = f.chunk[i];
      }
    }
  }
};

// Mainloop sums a warp's part of its slice.
template <int LAYOUT, typename C, int ACCESS_A, int ACCESS_B>
struct Mainloop {
  using A = Tile<LAYOUT != TN, C::BM, C::BK>;
  using B = Tile<LAYOUT == NT, C::BN, C::BK>;
  using LoaderA = Loader<A, C::SLICE, ACCESS_A>;
  using LoaderB = Loader<B, C::SLICE, ACCESS_B>;
  static constexpr int STAGE = A::BYTES + B::BYTES, PIPELINE = C::STAGES * STAGE;

  // k_slice to k_tiles are about the slice's k. wm and wn are the warp's first row and column in the tile.
  int slice, k_slice, k0, k_end, k_tiles, wm, wn;
  char *stages;
  LoaderA load_a;
  LoaderB load_b;
  Fragments<A, true> read_a;
  Fragments<B, false> read_b;
  float sum[C::MI][C::NI][4] = {};

  __device__ Mainloop(const Gemm &g, const SplitK<C::BM, C::BN> &part, char *shared)
      : slice(threadIdx.x / C::SLICE), k_slice(ceil_div(part.k1 - part.k0, 16 * C::SLICES) * 16), k0(min(part.k1, part.k0 + slice * k_slice)),
        k_end(C::SLICES == 1 ? part.k1 : min(part.k1, k0 + k_slice)), k_tiles(ceil_div(k_end - k0, C::BK)),
        wm(threadIdx.x % C::SLICE / 32 / C::WN * (C::MI * 16)), wn(threadIdx.x / 32 % C::WN * (C::NI * 8)), stages(shared + slice * PIPELINE),
        load_a(g.a, g.indices, A::K ? g.k : g.m, part.m0, g.m, k0, k_end, stages, threadIdx.x % C::SLICE),
        load_b(g.b, nullptr, B::K ? g.k : g.n, part.n0, g.n, k0, k_end, stages + A::BYTES, threadIdx.x % C::SLICE),
        read_a(shared_address((const float *)stages), wm), read_b(shared_address((const float *)stages) + A::BYTES, wn) {}

  // start copies the first k-tiles of some operands. After it has been called for both, the last groups are
  // those of the k-tiles, one each.
  __device__ void start(bool of_a, bool of_b) {
    typename LoaderA::Fetched a[C::STAGES];
    typename LoaderB::Fetched b[C::STAGES];
#pragma unroll
    for (int i = 0; i < C::STAGES; i++) {
      if (of_a && i < k_tiles) load_a.fetch(a[i], i, i * STAGE);
      if (of_b && i < k_tiles) load_b.fetch(b[i], i, i * STAGE);
      cp_async_commit_group();
    }
#pragma unroll
    for (int i = 0; i < C::STAGES; i++) {
      if (of_a && i < k_tiles) load_a.put(a[i], i * STAGE);
      if (of_b && i < k_tiles) load_b.put(b[i], i * STAGE);
    }
  }

  // wait waits until all of the slice's copies of a k-tile have landed, and no thread still reads the one
  // before it.
  __device__ void wait(bool first) const {
    if (first) cp_async_wait_group<C::STAGES - 1>();
    else cp_async_wait_group<C::STAGES - 2>();
    if (C::SLICES == 1) __syncthreads();
    else if (C::SLICE == 32) __syncwarp();
    else bar_sync(1 + slice, C::SLICE);
  }

  __device__ void multiply(unsigned stage) {
#pragma unroll
    for (int k = 0; k < C::BK / 16; k++) {
      unsigned a[C::MI][4], b[C::NI][2];
#pragma unroll
      for (int i = 0; i < C::MI; i++) read_a.read(a[i], stage, 2 * i, k);
#pragma unroll
      for (int j = 0; j + 1 < C::NI; j += 2) {
        unsigned two[4];
        read_b.read(two, stage, j, k);
        b[j][0] = two[0], b[j][1] = two[1], b[j + 1][0] = two[2], b[j + 1][1] = two[3];
      }
      if (C::NI % 2) read_b.read(b[C::NI - 1], stage, C::NI - 1, k);
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int j = 0; j < C::NI; j++) mma_sync(sum[i][j], a[i], b[j]);
    }
  }

  // run sums all k-tiles. A stage takes a later k-tile once all threads have waited for the k-tile after its
  // own.
  __device__ void run() {
    unsigned stage = 0, before = 0;
#pragma unroll 1
    for (int i = 0; i < k_tiles; i++) {
      wait(i == 0);
      typename LoaderA::Fetched a;
      typename LoaderB::Fetched b;
      int next = i - 1 + C::STAGES;
      bool more = i > 0 && next < k_tiles;
      if (more) load_a.fetch(a, next, before), load_b.fetch(b, next, before);
      if (i > 0) cp_async_commit_group();
      multiply(stage);
      if (more) load_a.put(a, before), load_b.put(b, before);
      before = stage;
      stage = stage == PIPELINE - STAGE ? 0 : stage + STAGE;
    }
  }

  // store_shared writes a slice's sums to shared memory.
  __device__ void store_shared(float *shared) const {
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2 * C::MI; i++)
#pragma unroll
      for (int j = 0; j < C::NI; j++)
        *(float2 *)(shared + slice * C::PART + (wm + 8 * i + g) * C::LD + wn + 8 * j + 2 * t) =
            make_float2(sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
  }
};

// Tensorop is a GEMM, for grouped.cuh and launch_split_k. COPIES_OLD: see TileEpilogue.
template <int LAYOUT, typename C, int ACCESS_A = CP_ASYNC, int ACCESS_B = CP_ASYNC, int OCCUPANCY_ = 0, bool COPIES_OLD = false>
struct Tensorop {
  using M = Mainloop<LAYOUT, C, ACCESS_A, ACCESS_B>;
  using E = TileEpilogue<LAYOUT, C::BM, C::BN, C::LD, C::PART, C::SLICES, C::THREADS, true, COPIES_OLD>;
  using Params = Gemm;
  static constexpr int ARCH = 80, BM = C::BM, BN = C::BN, THREADS = C::THREADS, CTAS = C::CTAS, OCCUPANCY = OCCUPANCY_, CLUSTER = 1;
  static constexpr int STAGES = C::SLICES * M::PIPELINE, PARTS = 4 * C::SLICES * C::PART, OLD = STAGES > PARTS ? STAGES : PARTS;
  static constexpr int BYTES = OLD + (COPIES_OLD ? 16 * E::PER_THREAD * THREADS : 0), FLOATS = BYTES / 4, INBOX = inbox_bytes(BM, BN),
                       K_MULTIPLE = 16;
  // READS_EARLY says whether registers are left for the epilogue's source.
  static constexpr bool READS_EARLY = COPIES_OLD || E::PER_THREAD <= 4;
  static_assert(BYTES <= CP_ASYNC_SHARED, "a CTA may have that much");

  static int64_t ctas(const Gemm &g) { return tiles(g, BM, BN); }
  static int prepare(Gemm &out, const Gemm &g) { return out = g, out.k_cta = g.k, cudaSuccess; }

  static __device__ void run(const Gemm &g, int cta, float *shared) {
    SplitK<BM, BN> part(g, cta);
    M mainloop(g, part, (char *)shared);
    E epilogue(g, part.m0, part.n0, part.rank, part.ranks);
    if (COPIES_OLD) epilogue.copied = (float4 *)((char *)shared + OLD);
    bool prefetch_a = g.prefetch_a || (ACCESS_A != CP_ASYNC && g.indices);
    mainloop.start(prefetch_a, g.prefetch_b);
    if (READS_EARLY && g.prefetch_c) epilogue.read_old();
    pdl_wait();
    mainloop.start(!prefetch_a, !g.prefetch_b);
    if (READS_EARLY && !g.prefetch_c) epilogue.read_old();

    mainloop.run();
    if (COPIES_OLD) cp_async_commit_group(), cp_async_wait_group<0>();
    __syncthreads();
    mainloop.store_shared(shared);
    if (!READS_EARLY) epilogue.read_old();
    __syncthreads();
    epilogue.write(shared, (float4 *)((char *)shared + BYTES));
  }
};

}  // namespace bfloat
}  // namespace gemm
