// GEMM in float32 on the CUDA cores (SIMT): every layout, any shape and alignment, float or uint8 input, on
// every GPU.
//
// A CTA computes a tile of c: 64×64, 64×96 or 64×32. Both operands pass through shared memory in k-tiles of
// 32, by a pipeline of several stages of cp.async; elements past the end of m, n or k are zeros. A thread
// keeps 8×8 sums in registers, four multiplications for each float that it reads, which is what shared memory
// can feed; or 8×12, nearly five. Split-K fills a GPU that has more SMs than c has tiles:
//
//   intra-CTA: SLICES groups of threads share a tile; each sums every SLICES-th KS k. The sums are added in
//     shared memory at the end.
//   cluster: up to 8 CTAs (compute capability 9) share a tile; each sums a part of k. The sums are added by DSMEM.
//
// Thread (ty, tx), of the 8×8 of a slice, has these sums, in squares of 4×4:
//
//                  columns 4tx..4tx+3    columns 32+4tx..    columns 64+4tx.., of 96
//   rows 4ty..     sum[0..3][0..3]       sum[0..3][4..7]     sum[0..3][8..11]
//   rows 32+4ty..  sum[4..7][0..3]       sum[4..7][4..7]     sum[4..7][8..11]
#include "gemm/pipeline.cuh"
#include "gemm/split_k.cuh"

namespace gemm {

namespace {

constexpr int BK = 32;  // k of a k-tile

// Tile is an operand's tile in shared memory: X rows (of m or n) by BK. A line is contiguous in global
// memory. If rows are contiguous (!K), the tile is BK lines of X, as in global memory. If k is, it is X lines
// of BK, laid out by KS:
//
//   1  transposed: a thread reads its rows of one k by float4. A warp copies eight k of four lines, whole sectors;
//      the stride X + 4 puts them in 32 different banks
//   4  swizzled in chunks of 16 bytes: a thread reads four k of a row by float4, and threads whose rows are four
//      apart use different banks. A quarter of the copies, but more registers
template <bool K_, int X_, int KS_>
struct Tile {
  static constexpr bool K = K_, TRANSPOSED = K_ && KS_ == 1, FOUR_K = K_ && KS_ == 4;
  static constexpr int X = X_, LINE = K ? BK : X, LINES = K ? X : BK, STRIDE = X + (TRANSPOSED ? 4 : 0), SIZE = STRIDE * BK;
  static_assert(!TRANSPOSED || STRIDE % 32 == 4, "no bank conflicts");

  // Offsets in the tile, in floats, of the i-th float of a line and of element (row, k).
  static __device__ int line_offset(int line, int i) {
    if (TRANSPOSED) return i * STRIDE + line;
    return line * LINE + (FOUR_K ? (i / 4 ^ line / 4 % 8) * 4 + i % 4 : i);
  }
  static __device__ int offset(int row, int k) { return K ? line_offset(row, k) : line_offset(k, row); }
};

constexpr int power_of_two(int n) { return n < 2 ? 1 : 2 * power_of_two(n / 2); }

// Loader copies an operand's k-tiles. In a pass the CTA's threads copy SIDE·W floats of each of LINES lines.
// next loads uint8 input to registers; store_u8 stores it, and is called as late as possible.
template <typename T, int THREADS, bool U8>
struct Loader {
  static constexpr int W = U8 || T::TRANSPOSED ? 1 : 4;
  static constexpr int SIDE = T::TRANSPOSED ? 8 : T::LINE / W, LINES = power_of_two(THREADS / SIDE);
  static constexpr int PASSES_I = T::LINE / (W * SIDE), PASSES = PASSES_I * ceil_div(T::LINES, LINES);
  static_assert(T::LINE % (W * SIDE) == 0 && (!U8 || T::LINES % LINES == 0), "passes cover the tile");
  static_assert(!T::FOUR_K || LINES % 32 == 0, "in every pass a thread has the same chunk of a line, swizzled alike");

  const float *from;
  const uint8_t *bytes;
  const int32_t *indices;
  bool aligned;
  int width;    // of a line in global memory
  int line, i;  // the thread's first float in the tile,
  int first;    // and its offset
  int x_left;   // rows from the tile's first on
  float *tile;
  uint8_t pixel[U8 ? PASSES : 1];

  __device__ Loader(const Gemm &g, const float *operand, bool aligned_, int width_, int x0, int x_end, int k0)
      : aligned(aligned_), width(width_), line(threadIdx.x / SIDE), i(threadIdx.x % SIDE * W), first(T::line_offset(line, i)), x_left(x_end - x0) {
    int y = line + (T::K ? x0 : k0), x = i + (T::K ? k0 : x0);  // in global memory
    if (U8) bytes = (const uint8_t *)operand + x, indices = g.indices + y;
    else from = operand + int64_t(y) * width + x;
  }

  // next copies the next k-tile; k_left of its k are valid.
  __device__ void next(float *tile_, int k_left) {
    tile = tile_;
    int lines = T::K ? x_left : k_left, left = (T::K ? k_left : x_left) - i;
    if (SIDE * LINES < THREADS && line >= LINES) return;
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
      int dl = p / PASSES_I * LINES, di = p % PASSES_I * SIDE * W;
      bool valid = line + dl < lines && di < left;
      if (U8) {
        pixel[p] = valid ? bytes[int64_t(indices[dl]) * width + di] : 0;
      } else if (T::LINES % LINES == 0 || line + dl < T::LINES) {
        float *to = tile + first + T::line_offset(dl, di);
        const float *source = from + int64_t(dl) * width + di;
        if (W == 1) cp_async<1>(to, source, valid);
        else cp_async_float4(aligned, unsigned(__cvta_generic_to_shared(to)), source, valid ? left - di : 0);
      }
    }
    if (!U8) from += T::K ? BK : int64_t(BK) * width;
    else if (T::K) bytes += BK;
    else indices += BK;
  }

  __device__ void store_u8() {
    if (U8)
#pragma unroll
      for (int p = 0; p < PASSES; p++) tile[first + T::line_offset(p / PASSES_I * LINES, p % PASSES_I * SIDE * W)] = pixel[p];
  }
};

template <int BM_, int BN_, int TM_, int TN_, int SLICES_, int STAGES_, int CTAS_, int KS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int CTAS = CTAS_;  // on an SM, by its registers
  static constexpr int KS = KS_;      // k that a thread multiplies at once, see Tile
  static constexpr int TY = BM / TM, TX = BN / TN, THREADS = TY * TX * SLICES;
  static constexpr int PART = BM * BN;  // floats of a slice's sums, which overwrite the stages
  static_assert(BK % (KS * SLICES) == 0, "slices have equal shares of k");
};

// A policy's Large is for compute capability 8 and later, with 96 KB of shared memory or more for a CTA; its
// Small is for older GPUs, with 48 KB. Each is compiled only for its GPUs.
template <typename Large_, typename Small_>
struct Policy {
  using Large = Large_;
  using Small = Small_;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  using Compiled = Small;
#else
  using Compiled = Large;
#endif
};

// Square has four stages: a CTA of a cluster often loads all of its k at once. Wide is for shapes that take
// fewer waves of it, Low for few rows by many columns, Narrow for a classifier.
struct Square : Policy<Config<64, 64, 8, 8, 4, 4, 2, 1>, Config<64, 64, 8, 8, 2, 2, 2, 1>> {};
struct Wide : Policy<Config<64, 96, 8, 12, 4, 4, 1, 4>, Square::Small> {};
struct Low : Policy<Config<64, 32, 8, 8, 8, 4, 1, 4>, Square::Small> {};
struct Narrow : Policy<Config<64, 16, 8, 4, 8, 4, 1, 1>, Config<64, 16, 8, 4, 8, 4, 1, 1>> {};

// shared_floats returns the size of a CTA's stages, or of the sums that overwrite them.
template <int LAYOUT, typename C>
__host__ __device__ constexpr int shared_floats() {
  int stages = C::STAGES * (Tile<(LAYOUT != TN), C::BM, C::KS>::SIZE + Tile<(LAYOUT == NT), C::BN, C::KS>::SIZE);
  int parts = C::SLICES * C::PART;
  return stages > parts ? stages : parts;
}

// row returns the i-th row of a tile that thread t of THREADS owns: four neighbours, then the next four.
template <int THREADS>
__device__ int row(int t, int i) {
  return i / 4 * (4 * THREADS) + t * 4 + i % 4;
}

// fragment reads a thread's rows of the slice's KS k.
template <typename T, int KS, int ROWS, int THREADS>
__device__ void fragment(float (&f)[KS][ROWS], const float *tile, int k, int slice, int t) {
  if constexpr (T::FOUR_K) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float4 v = *(const float4 *)(tile + T::offset(row<THREADS>(t, i), k + KS * slice));
      f[0][i] = v.x, f[1][i] = v.y, f[2][i] = v.z, f[3][i] = v.w;
    }
  } else {
    tile += T::offset(row<THREADS>(t, 0), KS * slice);
#pragma unroll
    for (int e = 0; e < KS; e++)
#pragma unroll
      for (int i = 0; i < ROWS; i += 4) {
        float4 v = *(const float4 *)(tile + T::offset(row<THREADS>(0, i), k + e));
        f[e][i] = v.x, f[e][i + 1] = v.y, f[e][i + 2] = v.z, f[e][i + 3] = v.w;
      }
  }
}

template <typename C, typename A, typename B>
__device__ void multiply(float (&sum)[C::TM][C::TN], const float *as, const float *bs, int k, int slice, int ty, int tx) {
  float a[C::KS][C::TM], b[C::KS][C::TN];
  fragment<A, C::KS, C::TM, C::TY>(a, as, k, slice, ty);
  fragment<B, C::KS, C::TN, C::TX>(b, bs, k, slice, tx);
#pragma unroll
  for (int e = 0; e < C::KS; e++)
#pragma unroll
    for (int i = 0; i < C::TM; i++)
#pragma unroll
      for (int j = 0; j < C::TN; j++) sum[i][j] += a[e][i] * b[e][j];
}

template <int LAYOUT, bool U8, typename C, typename Part>
__device__ void mainloop(float (&sum)[C::TM][C::TN], const Gemm &g, const Part &part, float *shared, int slice, int ty, int tx) {
  constexpr bool A_K = LAYOUT != TN, B_K = LAYOUT == NT;
  using A = Tile<A_K, C::BM, C::KS>;
  using B = Tile<B_K, C::BN, C::KS>;
  constexpr int STAGE = A::SIZE + B::SIZE;
  int k_end = part.k1 - part.k0, k_tiles = ceil_div(k_end, BK);

  Loader<A, C::THREADS, U8> load_a(g, g.a, g.aligned_a, A_K ? g.k : g.m, part.m0, g.m, part.k0);
  Loader<B, C::THREADS, false> load_b(g, g.b, g.aligned_b, B_K ? g.k : g.n, part.n0, g.n, part.k0);
  auto load = [&](int i, bool a, bool b) {
    float *stage = shared + i % C::STAGES * STAGE;
    int left = k_end - i * BK;
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
      if (g.prefetch_a != waited && i < k_tiles) load_a.store_u8();
      if (waited) cp_async_commit_group();  // empty past the end, to keep the count
    }
  }
  for (int i = 0; i < k_tiles; i++) {
    cp_async_wait_group<C::STAGES - 2>();
    // All threads' copies of this k-tile have landed, and no thread still reads the stage before it.
    __syncthreads();
    load(i + C::STAGES - 1, true, true);
    cp_async_commit_group();
    const float *as = shared + i % C::STAGES * STAGE, *bs = as + A::SIZE;
    int count = k_end - i * BK;
    if (count >= BK) {  // unrolled, so that reads of the next k overlap with multiplications
#pragma unroll
      for (int k = 0; k < BK; k += C::KS * C::SLICES) multiply<C, A, B>(sum, as, bs, k, slice, ty, tx);
    } else {
#pragma unroll 1
      for (int k = 0; k < count; k += C::KS * C::SLICES) multiply<C, A, B>(sum, as, bs, k, slice, ty, tx);
    }
    if (i + C::STAGES - 1 < k_tiles) load_a.store_u8();
  }
}

template <int LAYOUT, bool U8, typename Policy>
__global__ void __launch_bounds__(Policy::Compiled::THREADS, Policy::Compiled::CTAS) simt_gemm(const Gemm g) {
  using C = typename Policy::Compiled;
  extern __shared__ __align__(16) float shared[];
  SplitK<C::BM, C::BN> part(g, blockIdx.x);
  int slice = threadIdx.x / (C::TY * C::TX), t = threadIdx.x % (C::TY * C::TX), ty = t / C::TX, tx = t % C::TX;
  float sum[C::TM][C::TN] = {};
  mainloop<LAYOUT, U8, C>(sum, g, part, shared, slice, ty, tx);

  // The epilogue's reads overlap with the reduction of the slices.
  TileEpilogue<LAYOUT, C::BM, C::BN, C::BN, C::PART, C::SLICES, C::THREADS> epilogue(g, part.m0, part.n0, part.rank, part.ranks);
  epilogue.read_old();
  cp_async_wait_group<0>();
  __syncthreads();
  float *sums = shared + slice * C::PART;
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j += 4)
      *(float4 *)(sums + row<C::TY>(ty, i) * C::BN + row<C::TX>(tx, j)) = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
  __syncthreads();
  epilogue.write(shared, (float4 *)(shared + shared_floats<LAYOUT, C>()));
}

// ranks_for returns how many CTAs share each of the tiles. In cluster split-K a CTA needs shared memory for
// its sums and for its inbox.
template <int LAYOUT, typename C>
int ranks_for(const Gemm &g, int64_t tiles) {
  constexpr int BYTES = 4 * (shared_floats<LAYOUT, C>() + C::PART);
  return split_k(g.k, tiles, {MAX_CLUSTER}, BYTES);
}

template <int LAYOUT, bool U8, typename Policy, typename C>
int launch_config(uintptr_t stream, Gemm g) {
  constexpr int BYTES = 4 * shared_floats<LAYOUT, C>(), INBOX = 4 * C::PART;
  static_assert(C::CTAS * C::THREADS <= 1024, "every SM holds 1024 threads");
  constexpr auto KERNEL = simt_gemm<LAYOUT, U8, Policy>;
  if (int code = opt_in_shared<KERNEL>(std::min(BYTES + INBOX, device().shared))) return code;

  int64_t all = tiles(g, C::BM, C::BN);
  if (all > INT32_MAX) return cudaErrorInvalidValue;
  int ranks = ranks_for<LAYOUT, C>(g, all);
  g.k_cta = ceil_div(ceil_div(g.k, ranks), 4) * 4;  // whole 16-byte chunks

  Launch l = {unsigned(all * ranks), C::THREADS, size_t(BYTES + (ranks > 1 ? INBOX : 0)), unsigned(ranks)};
  // With PDL, clusters that start while the kernel before still runs would share the free SMs, and leave
  // others idle.
  l.pdl = ranks == 1 || all * ranks * 2 <= device().sms;
  return launch(stream, l, KERNEL, g);
}

template <int LAYOUT, bool U8, typename Policy>
int launch_policy(uintptr_t stream, const Gemm &g) {
  return device().major >= 8 ? launch_config<LAYOUT, U8, Policy, typename Policy::Large>(stream, g)
                             : launch_config<LAYOUT, U8, Policy, typename Policy::Small>(stream, g);
}

template <typename Policy>
int launch_layout(uintptr_t stream, const Gemm &g) {
  if (g.layout == NN) return launch_policy<NN, false, Policy>(stream, g);
  return g.layout == NT ? launch_policy<NT, false, Policy>(stream, g) : launch_policy<TN, false, Policy>(stream, g);
}

// time estimates how long the busiest SM computes; rate_one is the rate of an SM with one CTA, rate_more with
// more.
template <typename C>
double time(const Gemm &g, double rate_one, double rate_more) {
  int64_t all = tiles(g, C::BM, C::BN);
  int ranks = g.layout == NN ? ranks_for<NN, C>(g, all) : g.layout == NT ? ranks_for<NT, C>(g, all) : ranks_for<TN, C>(g, all);
  int64_t ctas_per_sm = ceil_div(all * ranks, int64_t(device().sms));
  return double(ctas_per_sm * C::BM * C::BN) / ranks / (ctas_per_sm > 1 ? rate_more : rate_one);
}

}  // namespace

int simt(uintptr_t stream, const Gemm &g) {
  if (g.indices) return g.layout == NN ? launch_policy<NN, true, Square>(stream, g) : launch_policy<TN, true, Square>(stream, g);
  if (device().major >= 8) {
    // Rates are those of an H200, in units of 36 TFLOP/s.
    double rate_wide = g.layout == NT ? 1.05 : 0.93, rate_low = 0.75;
    double square = time<Square::Large>(g, 0.87, 1), wide = time<Wide::Large>(g, rate_wide, rate_wide), low = time<Low::Large>(g, rate_low, rate_low);
    if (low < std::min(square, wide)) return launch_layout<Low>(stream, g);
    if (wide < square) return launch_layout<Wide>(stream, g);
  }
  return launch_layout<Square>(stream, g);
}

int simt_narrow(uintptr_t stream, const Gemm &g) {
  return g.layout == NN ? launch_policy<NN, false, Narrow>(stream, g) : launch_policy<TN, false, Narrow>(stream, g);
}

}  // namespace gemm
