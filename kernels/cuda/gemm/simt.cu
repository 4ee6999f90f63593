// GEMM in float32 on the CUDA cores (SIMT: a thread multiplies and adds for itself): every
// layout, any shape and alignment, float or uint8 input, on every GPU.
//
// A CTA makes a tile of c, 64×64. Both operands pass through shared memory by k-tiles of 32, in
// a pipeline of several stages of cp.async; what lies past the end of m, n or k is copied as
// zeros. A thread keeps 8×8 sums in registers, four multiplications for each value it reads:
// that is as many as shared memory can feed. Two things fill a GPU that has more SMs than c
// has tiles:
//
//   intra-CTA split-K: SLICES groups of threads share the tile, each taking every SLICES-th
//     k, and are added through shared memory at the end;
//   cluster split-K: up to 8 CTAs (compute capability 9) share a tile, each taking a part of
//     k, and are added through DSMEM.
//
// The sums of a thread, in a slice of 8×8 threads (ty, tx), are two rows of two 4×4 squares:
//
//                  columns 4tx..4tx+3    columns 32+4tx..
//   rows 4ty..     sum[0..3][0..3]       sum[0..3][4..7]
//   rows 32+4ty..  sum[4..7][0..3]       sum[4..7][4..7]
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace gemm {

namespace {

constexpr int BK = 32;  // a k-tile

// An operand's tile, X rows (of m or n) by BK, always lies in shared memory with its rows
// contiguous, [BK][STRIDE]: what a thread needs for one k it then reads by float4. K: in
// global memory k is contiguous, and the copy transposes. The stride lets eight k by four
// rows, which a warp copies at once in whole sectors, fall into 32 different banks.
template <bool K_, int X_>
struct Tile {
  static constexpr bool K = K_;
  static constexpr int X = X_, STRIDE = K ? X + 4 : X, SIZE = BK * STRIDE;
  static_assert(!K || STRIDE % 32 == 4, "banks");
};

// A Loader copies the tiles of one operand, k-tile by k-tile. A thread copies W floats at
// places that depend on the k-tile only by a constant: four where rows are contiguous.
// uint8 input comes by registers: settle stores the last next's, as late as the caller can.
template <typename T, int THREADS, bool U8>
struct Loader {
  static constexpr int W = T::K || U8 ? 1 : 4;
  // THREADS as KS k by XS places along the rows.
  static constexpr int KS = T::K ? 8 : THREADS / (T::X / W), XS = THREADS / KS;
  static constexpr int PLACES_X = T::K ? T::X / XS : 1, PLACES = PLACES_X * ((BK + KS - 1) / KS);
  static_assert(T::K ? T::X % XS == 0 : XS * W == T::X && KS * XS == THREADS, "the threads tile the tile");
  static_assert(!U8 || BK % KS == 0, "bytes are read one by one");

  const float *from;
  const uint8_t *bytes;
  const int32_t *indices;
  bool aligned;
  int width;   // of a row in global memory
  int k, x;    // the thread's first place in the tile
  int x_left;  // rows from the tile's first on
  float *tile;
  uint8_t pixel[U8 ? PLACES : 1];

  __device__ Loader(const Gemm &g, const float *operand, bool aligned_, int width_, int x0, int x_end, int k0)
      : aligned(aligned_), width(width_), x_left(x_end - x0) {
    k = T::K ? threadIdx.x % KS : threadIdx.x / XS;
    x = T::K ? threadIdx.x / KS : threadIdx.x % XS * W;
    if (U8) {
      bytes = (const uint8_t *)operand + (T::K ? k0 + k : x0 + x);
      indices = g.indices + (T::K ? x0 + x : k0 + k);
    } else {
      from = operand + (T::K ? int64_t(x0 + x) * width + k0 + k : int64_t(k0 + k) * width + x0 + x);
    }
  }

  // next copies the next k-tile, of which k_left are valid.
  __device__ void next(float *to, int k_left) {
    tile = to;
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      int dx = i % PLACES_X * XS, dk = i / PLACES_X * KS;
      bool valid = k + dk < k_left && x + dx < x_left;
      if (U8) {
        pixel[i] = valid ? bytes[int64_t(indices[T::K ? dx : dk]) * width + (T::K ? dk : dx)] : 0;
      } else if (BK % KS == 0 || k + dk < BK) {
        float *at = tile + (k + dk) * T::STRIDE + x + dx;
        const float *source = from + (T::K ? int64_t(dx) * width + dk : int64_t(dk) * width);
        if (W == 1) cp_async<1>(at, source, valid);
        else cp_async_float4(aligned, unsigned(__cvta_generic_to_shared(at)), source, valid ? x_left - x : 0);
      }
    }
    if (!U8) from += T::K ? BK : int64_t(BK) * width;
    else if (T::K) bytes += BK;
    else indices += BK;
  }

  __device__ void settle() {
    if (U8)
#pragma unroll
      for (int i = 0; i < PLACES; i++) tile[(k + i / PLACES_X * KS) * T::STRIDE + x + i % PLACES_X * XS] = pixel[i];
  }
};

template <int BM_, int BN_, int TM_, int TN_, int SLICES_, int STAGES_, int CTAS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int CTAS = CTAS_;  // that an SM has registers for
  static constexpr int TY = BM / TM, TX = BN / TN, THREADS = TY * TX * SLICES;
  static constexpr int PART = BM * BN;  // a slice's sums, where the stages were
  static_assert(BK % SLICES == 0, "slices take turns at k");
};

// A policy's Large is for GPUs that give a CTA 96 KB of shared memory or more: compute
// capability 8 and later. Older ones give 48. The code of each is compiled for its own.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define COMPILED Small
#else
#define COMPILED Large
#endif

struct Square {
  // Four stages, so that a CTA of a cluster has all of its k on the way at once, and
  // registers for two CTAs on an SM.
  using Large = Config<64, 64, 8, 8, 4, 4, 2>;
  using Small = Config<64, 64, 8, 8, 2, 2, 2>;
  using Compiled = COMPILED;
};

// Narrow is for a classifier: of a tile of 64 columns most would be zeros.
struct Narrow {
  using Large = Config<64, 16, 8, 4, 8, 4, 1>;
  using Small = Large;
  using Compiled = Large;
};

// shared_floats is what a CTA takes for its stages, and after them its sums.
template <int LAYOUT, typename C>
__host__ __device__ constexpr int shared_floats() {
  int stages = C::STAGES * (Tile<LAYOUT != TN, C::BM>::SIZE + Tile<LAYOUT == NT, C::BN>::SIZE);
  int parts = C::SLICES * C::PART;
  return stages > parts ? stages : parts;
}

// row is the i-th row of a tile that thread t of THREADS owns: four neighbours, and again
// four.
template <int THREADS>
__device__ int row(int t, int i) {
  return i / 4 * (4 * THREADS) + t * 4 + i % 4;
}

// fragment reads a thread's rows for one k.
template <int ROWS, int THREADS>
__device__ void fragment(float (&f)[ROWS], const float *line, int t) {
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) {
    float4 v = *(const float4 *)(line + row<THREADS>(t, i));
    f[i] = v.x, f[i + 1] = v.y, f[i + 2] = v.z, f[i + 3] = v.w;
  }
}

// multiply adds the products of one k.
template <typename C>
__device__ void multiply(float (&sum)[C::TM][C::TN], const float *as, const float *bs, int ty, int tx) {
  float a[C::TM], b[C::TN];
  fragment<C::TM, C::TY>(a, as, ty);
  fragment<C::TN, C::TX>(b, bs, tx);
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j++) sum[i][j] += a[i] * b[j];
}

template <int LAYOUT, bool U8, typename Policy>
__global__ void __launch_bounds__(Policy::Compiled::THREADS, Policy::Compiled::CTAS) simt_gemm(const Gemm g) {
  using C = typename Policy::Compiled;
  constexpr bool A_K = LAYOUT != TN, B_K = LAYOUT == NT;
  using A = Tile<A_K, C::BM>;
  using B = Tile<B_K, C::BN>;
  constexpr int STAGE = A::SIZE + B::SIZE;
  extern __shared__ __align__(16) float shared[];

  SplitK cluster;
  int tiles_n = (g.n + C::BN - 1) / C::BN, tile = blockIdx.x / cluster.ranks;
  int m0 = tile / tiles_n * C::BM, n0 = tile % tiles_n * C::BN;
  int k0 = min(g.k, cluster.rank * g.k_cta), k1 = min(g.k, k0 + g.k_cta);
  int k_tiles = (k1 - k0 + BK - 1) / BK;

  int slice = threadIdx.x / (C::TY * C::TX), t = threadIdx.x % (C::TY * C::TX);
  int ty = t / C::TX, tx = t % C::TX;

  Loader<A, C::THREADS, U8> load_a(g, g.a, g.aligned_a, A_K ? g.k : g.m, m0, g.m, k0);
  Loader<B, C::THREADS, false> load_b(g, g.b, g.aligned_b, B_K ? g.k : g.n, n0, g.n, k0);
  auto load = [&](int i, bool a, bool b) {
    float *stage = shared + i % C::STAGES * STAGE;
    int left = k1 - k0 - i * BK;
    if (a && left > 0) load_a.next(stage, left);
    if (b && left > 0) load_b.next(stage + A::SIZE, left);
  };

  // Fill the pipeline: first what may be prefetched, then the rest.
#pragma unroll 1
  for (int waited = 0; waited < 2; waited++) {
    if (waited) pdl_wait();
#pragma unroll 1
    for (int i = 0; i < C::STAGES - 1; i++) {
      load(i, g.prefetch_a != waited, g.prefetch_b != waited);
      if (g.prefetch_a != waited && i < k_tiles) load_a.settle();
      if (waited) cp_async_commit_group();  // empty past the end, to keep the count
    }
  }
  float sum[C::TM][C::TN] = {};
  for (int i = 0; i < k_tiles; i++) {
    cp_async_wait_group<C::STAGES - 2>();
    __syncthreads();  // this k-tile has landed for all, and the stage before it is free
    load(i + C::STAGES - 1, true, true);
    cp_async_commit_group();
    // This slice's k are slice, slice + SLICES, ... A whole k-tile is straight code, in
    // which reads for the next k hide behind multiplications for this one.
    const float *as = shared + i % C::STAGES * STAGE + slice * A::STRIDE;
    const float *bs = shared + i % C::STAGES * STAGE + A::SIZE + slice * B::STRIDE;
    int count = k1 - k0 - i * BK;
    if (count >= BK) {
#pragma unroll
      for (int k = 0; k < BK; k += C::SLICES) multiply<C>(sum, as + k * A::STRIDE, bs + k * B::STRIDE, ty, tx);
    } else {
#pragma unroll 1
      for (int k = 0; k < count; k += C::SLICES) multiply<C>(sum, as + k * A::STRIDE, bs + k * B::STRIDE, ty, tx);
    }
    if (i + C::STAGES - 1 < k_tiles) load_a.settle();
  }

  // What the epilogue needs is on its way while the slices are added.
  TileEpilogue<LAYOUT, C::BM, C::BN, C::BN, C::PART, C::SLICES, C::THREADS> epilogue(g, m0, n0, cluster.rank, cluster.ranks);
  epilogue.read_old();

  cp_async_wait_group<0>();
  __syncthreads();
  float *part = shared + slice * C::PART;
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j += 4)
      *(float4 *)(part + row<C::TY>(ty, i) * C::BN + row<C::TX>(tx, j)) =
          make_float4(scaled<U8>(sum[i][j]), scaled<U8>(sum[i][j + 1]), scaled<U8>(sum[i][j + 2]), scaled<U8>(sum[i][j + 3]));
  __syncthreads();

  epilogue.write(shared, (float4 *)(shared + shared_floats<LAYOUT, C>()));
}

template <int LAYOUT, bool U8, typename Policy, typename C>
int launch_config(uintptr_t stream, Gemm g) {
  constexpr int BYTES = 4 * shared_floats<LAYOUT, C>(), INBOX = 4 * C::PART;
  static_assert(C::CTAS * C::THREADS <= 1024, "threads that every SM has");
  auto kernel = simt_gemm<LAYOUT, U8, Policy>;
  static const int allowed = opt_in_shared(kernel, BYTES + (device().major >= 9 ? INBOX : 0));
  if (allowed != cudaSuccess) return allowed;

  int64_t all = tiles(g, C::BM, C::BN);
  if (all > INT32_MAX) return cudaErrorInvalidValue;
  int ranks = split_k(g, all, MAX_CLUSTER);
  g.k_cta = (g.k + ranks - 1) / ranks;

  Launch l = {unsigned(all * ranks), C::THREADS, size_t(BYTES + (ranks > 1 ? INBOX : 0)), unsigned(ranks)};
  // Clusters that came early to a busy device would share SMs among themselves and leave
  // others idle.
  l.pdl = ranks == 1 || all * ranks * 2 <= device().sms;
  return launch(stream, l, kernel, g);
}

template <int LAYOUT, bool U8, typename Policy>
int launch_policy(uintptr_t stream, const Gemm &g) {
  return device().major >= 8 ? launch_config<LAYOUT, U8, Policy, typename Policy::Large>(stream, g)
                             : launch_config<LAYOUT, U8, Policy, typename Policy::Small>(stream, g);
}

}  // namespace

int simt(uintptr_t stream, const Gemm &g) {
  switch (g.layout) {
    case NN: return g.indices ? launch_policy<NN, true, Square>(stream, g) : launch_policy<NN, false, Square>(stream, g);
    case NT: return launch_policy<NT, false, Square>(stream, g);
    case TN: return g.indices ? launch_policy<TN, true, Square>(stream, g) : launch_policy<TN, false, Square>(stream, g);
  }
  return cudaErrorInvalidValue;
}

int simt_narrow(uintptr_t stream, const Gemm &g) {
  return g.layout == NN ? launch_policy<NN, false, Narrow>(stream, g) : launch_policy<TN, false, Narrow>(stream, g);
}

}  // namespace gemm
