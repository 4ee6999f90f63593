// Matrix products on the tensor cores, mma.sync m16n8k8 (compute capability 8):
// factors rounded to nearest tf32, 11 bits of mantissa, or for 3xtf32 each split
// into such a number and the rest, rounded again:
//
//   (a + a')·(b + b') ≈ a·b + a·b' + a'·b
//
// which is as exact as float32. The forms and epilogues are those of matmul.cu.
//
// The k of a tile is dealt to SLICES groups of warps in turns, BK at a time. A slice
// has copies of its own on the way, STAGES deep; the block adds the slices once, at
// the end, in order. Blocks of a cluster may share a tile as well. Sums depend on the
// shape and the GPU alone. (matmul_few.cu: the products of a small batch.)
#include <algorithm>
#include <type_traits>

#include "tensor.cuh"

using namespace matmuls;

namespace {

// A tile of an operand, X rows (of m or n) by BK, lies in shared memory as in
// global: K with k contiguous, else the rows. A lane reads k = 2t and 2t+1 of row
// g, for lane = 4g + t: with these strides from 32 different banks.
template <bool K_, int X_, int BK_>
struct Tile {
  static constexpr bool K = K_;
  static constexpr int X = X_, BK = BK_, STRIDE = K ? BK + 8 : X + 4, SIZE = K ? X * STRIDE : BK * STRIDE;
  static_assert(K ? STRIDE % 16 == 8 : STRIDE % 8 == 4, "banks");
};

// Where rows are contiguous a lane reads several at once, one of each of the
// eights (of rows) that it needs; which row of the tile is which of an eight is
// free. row is the i-th of eight o.
template <bool K, int EIGHTS>
struct Rows {
  static constexpr int V = K ? 1 : EIGHTS % 4 == 0 ? 4 : EIGHTS % 2 == 0 ? 2 : 1;
  static __device__ constexpr int row(int o, int i) { return o / V * 8 * V + i * V + o % V; }
};

// A Source copies one operand's tiles to a slice of THREADS threads, TURN of k
// apart. Copies differ from step to step only by a constant.
template <typename T, int THREADS, int TURN>
struct Source {
  static constexpr int LINES = T::K ? T::X : T::BK;
  // W floats a copy: EACH by a thread, STEP lines apart.
  template <int W>
  struct Way {
    static constexpr int LINE = (T::K ? T::BK : T::X) / W, STEP = THREADS / LINE, EACH = (LINES + STEP - 1) / STEP;
    static_assert(STEP > 0 && EACH <= 32, "threads for the tile");
  };

  const float *from;
  int width, line, column;  // width: of a line in global memory
  unsigned inside = 0;      // bit i: the i-th copy is of rows before the end
  bool vector;

  __device__ Source(const float *operand, bool vector_, int width_, int x0, int x_end, int k0, int t)
      : width(width_), vector(vector_) {
    if (vector) start<4>(x0, x_end, t);
    else start<1>(x0, x_end, t);
    from = operand + (T::K ? int64_t(x0 + line) * width + k0 + column : int64_t(k0 + line) * width + x0 + column);
  }

  template <int W>
  __device__ void start(int x0, int x_end, int t) {
    line = t / Way<W>::LINE, column = t % Way<W>::LINE * W;
#pragma unroll
    for (int i = 0; i < Way<W>::EACH; i++)
      if (x0 + (T::K ? line + i * Way<W>::STEP : column) < x_end) inside |= 1u << i;
  }

  // next copies a tile, of which k_left of k are valid.
  __device__ void next(float *tile, int k_left) {
    if (vector) copies<4>(tile, k_left);
    else copies<1>(tile, k_left);
    from += T::K ? TURN : int64_t(TURN) * width;
  }

  template <int W>
  __device__ void copies(float *tile, int k_left) {
    using Ways = Way<W>;
    if (Ways::STEP * Ways::LINE < THREADS && line >= Ways::STEP) return;
    float *to = tile + line * T::STRIDE + column;
#pragma unroll
    for (int i = 0; i < Ways::EACH; i++) {
      int at = line + i * Ways::STEP;
      if (LINES % Ways::STEP == 0 || at < LINES)
        copy<W>(to + i * Ways::STEP * T::STRIDE, from + int64_t(i * Ways::STEP) * width,
                (inside >> i & 1) && (T::K ? column : at) < k_left);
    }
  }
};

// fragment reads the two k of this lane for EIGHTS rows. at: the tile, from the
// warp's first row and the step's first k on.
template <typename T, int EIGHTS>
__device__ void fragment(float (&f)[EIGHTS][2], const float *at, int g, int t) {
  constexpr int V = Rows<T::K, EIGHTS>::V;
#pragma unroll
  for (int o = 0; o < EIGHTS; o += V) {
    if (T::K) {
      float2 v = *(const float2 *)(at + (o * 8 + g) * T::STRIDE + 2 * t);
      f[o][0] = v.x, f[o][1] = v.y;
    } else {
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const float *from = at + (2 * t + k) * T::STRIDE + o * 8 + g * V;
        if (V == 4) {
          float4 v = *(const float4 *)from;
          f[o][k] = v.x, f[o + 1 % V][k] = v.y, f[o + 2 % V][k] = v.z, f[o + 3 % V][k] = v.w;
        } else if (V == 2) {
          float2 v = *(const float2 *)from;
          f[o][k] = v.x, f[o + 1 % V][k] = v.y;
        } else {
          f[o][k] = *from;
        }
      }
    }
  }
}

// BM×BN: the block's tile; WM×WN: the warps of a slice.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int SLICES_, int STAGES_, int MIN_BLOCKS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int SLICE = 32 * WM * WN, THREADS = SLICE * SLICES;
  static constexpr int MI = BM / WM / 16, NI = BN / WN / 8;  // a warp's tiles of 16×8
  static constexpr int LD = BN + 8, PART = BM * LD;          // a slice's sums, where the stages were
  static_assert(MI * WM * 16 == BM && NI * WN * 8 == BN, "warps tile the tile");
};

template <int FORM, typename C>
struct Shared {
  using A = Tile<FORM != KERNELS_TN, C::BM, C::BK>;
  using B = Tile<FORM == KERNELS_NT, C::BN, C::BK>;
  static constexpr int STAGE = A::SIZE + B::SIZE, STAGES = C::SLICES * C::STAGES * STAGE, PARTS = C::SLICES * C::PART;
  static constexpr int FLOATS = STAGES > PARTS ? STAGES : PARTS, INBOX = C::BM * C::BN;
  static constexpr int BYTES = 4 * FLOATS;
};

// Deep makes tiles of a product.
template <int FORM, int EPILOGUE, bool THREE, typename C_>
struct Deep {
  using C = C_;
  static constexpr int THREADS = C::THREADS, MIN_BLOCKS = C::MIN_BLOCKS;
  static constexpr int BYTES = Shared<FORM, C>::BYTES, INBOX = 4 * Shared<FORM, C>::INBOX;
  static __device__ void run(const Args &p, int block, float *shared);
};

template <int FORM, int EPILOGUE, bool THREE, typename C>
__device__ void Deep<FORM, EPILOGUE, THREE, C>::run(const Args &p, int block, float *shared) {
#if __CUDA_ARCH__ >= 800
  using S = Shared<FORM, C>;
  using A = typename S::A;
  using B = typename S::B;
  using RowsA = Rows<A::K, 2 * C::MI>;
  using RowsB = Rows<B::K, C::NI>;
  int rank, ranks;
  cluster_arrive(rank, ranks);
  int tiles_n = (p.n + C::BN - 1) / C::BN, tile = block / ranks;
  int m0 = tile / tiles_n * C::BM, n0 = tile % tiles_n * C::BN;
  int k0 = min(p.k, rank * p.k_part), k1 = min(p.k, k0 + p.k_part);

  // This slice's steps are slice, slice + SLICES, ...
  int slice = threadIdx.x / C::SLICE, thread = threadIdx.x % C::SLICE;
  int lane = thread % 32, g = lane / 4, t = lane % 4;
  int wm = thread / 32 / C::WN * (C::MI * 16), wn = thread / 32 % C::WN * (C::NI * 8);
  int steps = ((k1 - k0 + C::BK - 1) / C::BK - slice + C::SLICES - 1) / C::SLICES;
  float *stages = shared + slice * C::STAGES * S::STAGE;
  constexpr int TURN = C::SLICES * C::BK;
  int first = k0 + slice * C::BK;
  Source<A, C::SLICE, TURN> from_a(p.a, p.vector_a, A::K ? p.k : p.m, m0, p.m, first, thread);
  Source<B, C::SLICE, TURN> from_b(p.b, p.vector_b, B::K ? p.k : p.n, n0, p.n, first, thread);
  auto next = [&](int step, bool a, bool b) {
    if (step >= steps) return;
    float *s = stages + step % C::STAGES * S::STAGE;
    if (a) from_a.next(s, k1 - first - step * TURN);
    if (b) from_b.next(s + A::SIZE, k1 - first - step * TURN);
  };
  // What a small epilogue needs comes with the first stages.
  Finish<EPILOGUE, C::BM, C::BN, C::LD, C::PART, C::SLICES, C::THREADS> finish(p, m0, n0, rank, ranks);
  constexpr bool EARLY = decltype(finish)::PER_THREAD <= 6;
  for (int step = 0; step < C::STAGES - 1; step++) next(step, p.early_a, p.early_b);
  if (EARLY && p.early_c) finish.read_old();
  follow();
  for (int step = 0; step < C::STAGES - 1; step++) {
    next(step, !p.early_a, !p.early_b);
    copies_commit();
  }
  if (EARLY && !p.early_c) finish.read_old();

  float sum[C::MI][C::NI][4] = {};
  // A slice of one warp goes its own way; others keep in step with the first slice,
  // which has the most steps.
  constexpr bool ALONE = C::SLICE == 32;
  int rounds = ALONE ? steps : (k1 - k0 + TURN - 1) / TURN;
  for (int step = 0; step < rounds; step++) {
    copies_wait<C::STAGES - 2>();
    if (ALONE) __syncwarp();
    else __syncthreads();  // this step has landed for all, and the stage before it is free
    next(step + C::STAGES - 1, true, true);
    copies_commit();  // empty past the end, to keep the count
    if (!ALONE && step >= steps) continue;
    const float *as = stages + step % C::STAGES * S::STAGE + wm * (A::K ? A::STRIDE : 1);
    const float *bs = stages + step % C::STAGES * S::STAGE + A::SIZE + wn * (B::K ? B::STRIDE : 1);
    // The tensor cores cut sums off where float32 rounds. For 3xtf32 they add only
    // the BK products of a step.
    float part[C::MI][C::NI][4] = {};
    auto &to = THREE ? part : sum;
#pragma unroll
    for (int k = 0; k < C::BK; k += 8) {
      float fa[2 * C::MI][2], fb[C::NI][2];
      unsigned a[2 * C::MI][2], b[C::NI][2], a_rest[2 * C::MI][2], b_rest[C::NI][2];
      fragment<A>(fa, as + k * (A::K ? 1 : A::STRIDE), g, t);
      fragment<B>(fb, bs + k * (B::K ? 1 : B::STRIDE), g, t);
      split<THREE>(a, a_rest, fa);
      split<THREE>(b, b_rest, fb);
      if (THREE) {
#pragma unroll
        for (int i = 0; i < C::MI; i++)
#pragma unroll
          for (int j = 0; j < C::NI; j++) mma(to[i][j], a_rest[2 * i], a_rest[2 * i + 1], b[j]);
#pragma unroll
        for (int i = 0; i < C::MI; i++)
#pragma unroll
          for (int j = 0; j < C::NI; j++) mma(to[i][j], a[2 * i], a[2 * i + 1], b_rest[j]);
      }
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int j = 0; j < C::NI; j++) mma(to[i][j], a[2 * i], a[2 * i + 1], b[j]);
    }
    if (THREE) {
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int j = 0; j < C::NI; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) sum[i][j][e] += part[i][j][e];
    }
  }
  if (!EARLY) finish.read_old();

  // A lane holds columns 2t and 2t+1 of the eights, of rows g of two eights.
  copies_wait<0>();
  __syncthreads();
  constexpr int V = RowsB::V;
#pragma unroll
  for (int i = 0; i < 2 * C::MI; i++)
#pragma unroll
    for (int j = 0; j < C::NI; j += V) {
      float *to = shared + slice * C::PART + (wm + RowsA::row(i, g)) * C::LD + wn + RowsB::row(j, 2 * t);
      auto at = [&](int o, int e) { return sum[i / 2][j + o % V][i % 2 * 2 + e]; };
      if (V == 4) {
        *(float4 *)to = make_float4(at(0, 0), at(1, 0), at(2, 0), at(3, 0));
        *(float4 *)(to + 4) = make_float4(at(0, 1), at(1, 1), at(2, 1), at(3, 1));
      } else if (V == 2) {
        *(float4 *)to = make_float4(at(0, 0), at(1, 0), at(0, 1), at(1, 1));
      } else {
        *(float2 *)to = make_float2(at(0, 0), at(0, 1));
      }
    }
  __syncthreads();
  finish.write(shared, (float4 *)(shared + S::FLOATS));
#endif
}

}  // namespace

#include "wide.cuh"

namespace {

template <typename T>
__global__ void __launch_bounds__(T::THREADS, T::MIN_BLOCKS) matmul(const Args p) {
  extern __shared__ __align__(16) float shared[];
  T::run(p, blockIdx.x, shared);
}

// max_ranks: at most so many blocks in a cluster share a tile.
template <typename T>
int launch(uintptr_t stream, Args p, int max_ranks) {
  using C = typename T::C;
  auto kernel = matmul<T>;
  static const int allowed = allow(kernel, device().shared);
  if (allowed != cudaSuccess) return allowed;

  int64_t tiles = (int64_t(p.m) + C::BM - 1) / C::BM * ((int64_t(p.n) + C::BN - 1) / C::BN);
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  // Twice as many blocks to a tile while all find a multiprocessor of their own
  // and keep enough of k each to be worth adding up.
  int ranks = 1;
  if (device().major >= 9 && T::BYTES + T::INBOX <= device().shared)
    while (ranks < max_ranks && tiles * ranks * 2 <= device().sms && p.k >= 64 * ranks * 2) ranks *= 2;
  p.k_part = ((p.k + ranks - 1) / ranks + 7) / 8 * 8;

  // Blocks that come early to a busy device would share the multiprocessors that
  // they find free, two and three on one, and leave others idle later: while one
  // wave holds all blocks, each asks for more than half of a multiprocessor.
  size_t bytes = T::BYTES + (ranks > 1 ? T::INBOX : 0);
  if (tiles * ranks <= device().sms && tiles * ranks * 2 > device().sms)
    bytes = std::max(bytes, size_t(device().shared) / 2 + 1024);
  return ::launch(stream, {unsigned(tiles * ranks), C::THREADS, bytes, unsigned(ranks)}, kernel, p);
}

// Tiles by shape.
//
// Long is for a k so long that every read counts.
using Long = Config<64, 32, 32, 2, 1, 4, 3, 1>;
// Narrow is for ten classes.
using Narrow = Config<16, 16, 16, 1, 1, 16, 3, 1>;
// Flat is for a short k, an input gradient through ten classes.
using Flat = Config<32, 32, 16, 2, 2, 1, 2, 1>;
// Update is for the weight gradient, a sum over the batch: 784×784 are 130 tiles,
// one for each of 132 multiprocessors. Where there are more, two small ones on a
// multiprocessor hide each other's start and end.
using Update = Config<64, 80, 32, 4, 2, 1, 3, 1>;
using Updates = Config<64, 64, 32, 2, 2, 1, 3, 2>;
using NarrowUpdate = Config<16, 16, 32, 1, 1, 4, 4, 1>;
// Large is for what fills the GPU: 1024×784 are 112 tiles.
using Large = Config<128, 56, 32, 4, 1, 2, 3, 1>;
// Sum is for the weight gradient of a large batch in 3xtf32.
using Sum = Config<64, 80, 32, 2, 2, 2, 3, 1>;
//
// And these for Wide, a slice's tiles as large as registers allow. 3xtf32 needs
// twice as many, to add parts.
//
// 1024×784 are 130 tiles, or 112 for 3xtf32; 784×784, a weight gradient, are 130.
template <bool THREE>
using WideLarge = typename std::conditional<THREE, Config<128, 56, 16, 4, 1, 2, 4, 1>, Config<80, 80, 16, 1, 2, 4, 4, 1>>::type;
template <bool THREE>
using WideSum = typename std::conditional<THREE, Sum, Config<64, 80, 16, 2, 1, 4, 4, 1>>::type;
// WideLong is for few rows by large weights: 64×2048 in 64 tiles, two blocks each;
// for tf32 also for 256×784 in 100.
using WideLong = Config<64, 32, 16, 2, 1, 4, 6, 1>;
// WideUpdates is for large weight gradients of a small batch.
using WideUpdates = Config<64, 128, 32, 2, 4, 1, 2, 2>;

template <int FORM, int EPILOGUE, bool THREE>
int choose(uintptr_t stream, const Args &p) {
  bool vector = p.vector_a && p.vector_b, one_wave = int64_t(p.m) * p.n <= int64_t(64 * 80) * device().sms;
  if constexpr (FORM == KERNELS_TN) {
    if (p.n <= 16) return launch<Deep<FORM, EPILOGUE, THREE, NarrowUpdate>>(stream, p, p.k <= 256 ? 1 : MAX_RANKS);
    if (p.k <= 256 && one_wave) return launch<Deep<FORM, EPILOGUE, THREE, Update>>(stream, p, 1);
    if (p.k <= 256 && vector) return launch<Wide<FORM, EPILOGUE, THREE, WideUpdates>>(stream, p, 1);
    if (p.k <= 256) return launch<Deep<FORM, EPILOGUE, THREE, Updates>>(stream, p, 1);
    if (vector) return launch<Wide<FORM, EPILOGUE, THREE, WideSum<THREE>>>(stream, p, 4);
    if constexpr (THREE)
      if (one_wave) return launch<Deep<FORM, EPILOGUE, THREE, Sum>>(stream, p, MAX_RANKS);
  } else {
    if (FORM == KERNELS_NN && p.n <= 16) return launch<Deep<FORM, EPILOGUE, THREE, Narrow>>(stream, p, MAX_RANKS);
    if (p.k <= 32) return launch<Deep<FORM, EPILOGUE, THREE, Flat>>(stream, p, 1);
    if (p.m <= (THREE ? 128 : 256) && vector) return launch<Wide<FORM, EPILOGUE, THREE, WideLong>>(stream, p, 4);
    if (p.m <= 128) return launch<Deep<FORM, EPILOGUE, THREE, Long>>(stream, p, 4);
    if (vector) return launch<Wide<FORM, EPILOGUE, THREE, WideLarge<THREE>>>(stream, p, 4);
  }
  return launch<Deep<FORM, EPILOGUE, THREE, Large>>(stream, p, 4);
}

template <bool THREE>
int choose(uintptr_t stream, int form, int epilogue, const Args &p) {
  switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return choose<KERNELS_NN, KERNELS_STORE, THREE>(stream, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return choose<KERNELS_NN, KERNELS_RELU, THREE>(stream, p);
    case KERNELS_NT * 4 + KERNELS_STORE: return choose<KERNELS_NT, KERNELS_STORE, THREE>(stream, p);
    case KERNELS_NT * 4 + KERNELS_MASK: return choose<KERNELS_NT, KERNELS_MASK, THREE>(stream, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return choose<KERNELS_TN, KERNELS_STORE, THREE>(stream, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return choose<KERNELS_TN, KERNELS_ADD, THREE>(stream, p);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int matmul_tensor(uintptr_t stream, int form, int epilogue, bool three, const Args &p) {
  if (device().major < 8) return cudaErrorNotSupported;
  return three ? choose<true>(stream, form, epilogue, p) : choose<false>(stream, form, epilogue, p);
}
