// Matrix products in float32 on the CUDA cores (matmul_tensor.cu: on the tensor
// cores), in the three forms that training a layer y = x·w needs, each with what
// follows it as an epilogue:
//
//   NN  y[m,n]  = x[m,k]·w[k,n]         forward, with ReLU
//   NT  dx[m,n] = dy[m,k]·w[n,k]ᵀ       backward, masked by the ReLU before
//   TN  w[m,n] += alpha·x[k,m]ᵀ·dy[k,n]  weight gradient and SGD update
//
// In NN and TN, x may be images: bytes, picked by p.order, each standing for a 255th.
//
// A block makes a tile of the result. What lies past the end of m, n or k is copied
// as zeros. All additions happen in an order that depends on the shape and the GPU
// alone: equal calls give equal bits. (matmul_few_ffma.cu: the few rows of a
// small batch.)
//
// Tiles of both operands pass through shared memory, STAGES deep; a thread keeps TM×TN
// sums in registers, so that a value read from shared memory is used TM or TN times.
// Two things fill a GPU that has more multiprocessors than the result has tiles:
//
//   SLICES groups of threads inside a block share its tile, each taking every
//   SLICES-th k, and are added through shared memory at the end;
//   a cluster of up to 8 blocks (compute capability 9) shares a tile, each block
//   taking a part of k, and is added through distributed shared memory.
#include <type_traits>

#include "tensor.cuh"

using namespace matmuls;

namespace {

constexpr int BK = 32;  // k per stage

// In shared memory a tile of an operand, X rows (of m or n) by BK, always lies
// with its rows contiguous, [BK][STRIDE]: what a thread needs for one k it then
// reads 16 bytes at a time. K: in global memory k is contiguous, and the copy
// turns the tile. The stride lets eight k by four rows, which a warp copies at
// once in whole sectors, fall into 32 different banks.
template <bool K_, int X_>
struct Tile {
  static constexpr bool K = K_;
  static constexpr int X = X_, STRIDE = K ? X + 4 : X, SIZE = BK * STRIDE;
  static_assert(!K || STRIDE % 32 == 4, "banks");
};

// A Source copies the tiles of one operand, stage by stage. A thread copies W
// floats at places that depend on the stage only by a constant. Bytes of images come
// by registers: settle stores those of the last next, as late as the caller can.
template <typename T, int W, int THREADS, bool IMAGES>
struct Source {
  // THREADS as KS k by XS places along the rows.
  static constexpr int KS = T::K ? 8 : THREADS / (T::X / W), XS = THREADS / KS;
  static constexpr int PLACES_X = T::K ? T::X / XS : 1, PLACES = PLACES_X * ((BK + KS - 1) / KS);
  static_assert(T::K ? W == 1 && T::X % XS == 0 : XS * W == T::X && KS * XS == THREADS, "the threads tile the tile");
  static_assert(!IMAGES || (W == 1 && BK % KS == 0), "bytes are read one by one");

  const float *from;
  const uint8_t *images;
  const int32_t *order;
  int width;   // of a line in global memory
  int k, x;    // the thread's first place in the tile
  int x_left;  // rows from the tile's first on
  float *tile;
  uint8_t bytes[IMAGES ? PLACES : 1];

  __device__ Source(const Args &p, const float *operand, int width_, int x0, int x_end, int k0) : width(width_), x_left(x_end - x0) {
    k = T::K ? threadIdx.x % KS : threadIdx.x / XS;
    x = T::K ? threadIdx.x / KS : threadIdx.x % XS * W;
    if (IMAGES) {
      images = (const uint8_t *)operand + (T::K ? k0 + k : x0 + x);
      order = p.order + (T::K ? x0 + x : k0 + k);
    } else {
      from = operand + (T::K ? int64_t(x0 + x) * width + k0 + k : int64_t(k0 + k) * width + x0 + x);
    }
  }

  // next copies the tile of the next BK of k, of which k_left are valid.
  __device__ void next(float *to, int k_left) {
    tile = to;
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      int dx = i % PLACES_X * XS, dk = i / PLACES_X * KS;
      bool valid = k + dk < k_left && x + dx < x_left;
      if (IMAGES)
        bytes[i] = valid ? images[int64_t(order[T::K ? dx : dk]) * width + (T::K ? dk : dx)] : 0;
      else if (BK % KS == 0 || k + dk < BK)
        copy<W>(tile + (k + dk) * T::STRIDE + x + dx, from + (T::K ? int64_t(dx) * width + dk : int64_t(dk) * width), valid);
    }
    if (!IMAGES) from += T::K ? BK : int64_t(BK) * width;
    else if (T::K) images += BK;
    else order += BK;
  }

  __device__ void settle() {
    if (IMAGES)
#pragma unroll
      for (int i = 0; i < PLACES; i++) tile[(k + i / PLACES_X * KS) * T::STRIDE + x + i % PLACES_X * XS] = bytes[i];
  }
};

// row is the i-th row of a tile that thread t of THREADS owns: four rows in a
// line, and again four.
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

template <int BM_, int BN_, int TM_, int TN_, int SLICES_, int STAGES_, int MIN_BLOCKS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int TY = BM / TM, TX = BN / TN, THREADS = TY * TX * SLICES;
  static constexpr int PART = BM * BN;  // a slice's sums, where the stages were
  static_assert(BK % SLICES == 0, "slices take turns at k");
};

// shared_floats is what a block takes for its stages, and after them its sums.
template <int FORM, typename C>
__host__ __device__ constexpr int shared_floats() {
  int stages = C::STAGES * (Tile<FORM != KERNELS_TN, C::BM>::SIZE + Tile<FORM == KERNELS_NT, C::BN>::SIZE);
  int parts = C::SLICES * C::PART;
  return stages > parts ? stages : parts;
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

// W: the floats of one copy of an operand whose rows are contiguous, 4 if its
// lines are whole quads on 16-byte boundaries, else 1.
template <int FORM, int EPILOGUE, bool IMAGES, int W, typename C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) matmul(const Args p) {
  constexpr bool A_K = FORM != KERNELS_TN, B_K = FORM == KERNELS_NT;
  using A = Tile<A_K, C::BM>;
  using B = Tile<B_K, C::BN>;
  constexpr int STAGE = A::SIZE + B::SIZE;
  extern __shared__ __align__(16) float shared[];

  int rank, ranks;
  cluster_arrive(rank, ranks);
  int tiles_n = (p.n + C::BN - 1) / C::BN, tile = blockIdx.x / ranks;
  int m0 = tile / tiles_n * C::BM, n0 = tile % tiles_n * C::BN;
  int k0 = min(p.k, rank * p.k_part), k1 = min(p.k, k0 + p.k_part);
  int steps = (k1 - k0 + BK - 1) / BK;

  int slice = threadIdx.x / (C::TY * C::TX), t = threadIdx.x % (C::TY * C::TX);
  int ty = t / C::TX, tx = t % C::TX;

  Source<A, A_K || IMAGES ? 1 : W, C::THREADS, IMAGES> from_a(p, p.a, A_K ? p.k : p.m, m0, p.m, k0);
  Source<B, B_K ? 1 : W, C::THREADS, false> from_b(p, p.b, B_K ? p.k : p.n, n0, p.n, k0);
  auto fetch = [&](int step, bool a, bool b) {
    float *s = shared + step % C::STAGES * STAGE;
    int left = k1 - k0 - step * BK;
    if (a && left > 0) from_a.next(s, left);
    if (b && left > 0) from_b.next(s + A::SIZE, left);
  };

  // First what is early, then the rest.
#pragma unroll 1
  for (int late = 0; late < 2; late++) {
    if (late) follow();
#pragma unroll 1
    for (int step = 0; step < C::STAGES - 1; step++) {
      fetch(step, p.early_a != late, p.early_b != late);
      if (p.early_a != late && step < steps) from_a.settle();
      if (late) copies_commit();  // empty past the end, to keep the count
    }
  }
  float sum[C::TM][C::TN] = {};
  for (int step = 0; step < steps; step++) {
    copies_wait<C::STAGES - 2>();
    __syncthreads();  // this step has landed for all, and the stage before it is free
    fetch(step + C::STAGES - 1, true, true);
    copies_commit();
    // This slice's k are slice, slice + SLICES, ... A whole stage is straight
    // code, in which reads for the next k hide behind products for this one.
    const float *as = shared + step % C::STAGES * STAGE + slice * A::STRIDE;
    const float *bs = shared + step % C::STAGES * STAGE + A::SIZE + slice * B::STRIDE;
    int count = k1 - k0 - step * BK;
    if (count >= BK) {
#pragma unroll
      for (int k = 0; k < BK; k += C::SLICES) multiply<C>(sum, as + k * A::STRIDE, bs + k * B::STRIDE, ty, tx);
    } else {
#pragma unroll 1
      for (int k = 0; k < count; k += C::SLICES) multiply<C>(sum, as + k * A::STRIDE, bs + k * B::STRIDE, ty, tx);
    }
    if (step + C::STAGES - 1 < steps) from_a.settle();
  }

  // What the epilogue needs is on its way while the sums are added.
  Finish<EPILOGUE, C::BM, C::BN, C::BN, C::PART, C::SLICES, C::THREADS> finish(p, m0, n0, rank, ranks);
  finish.read_old();

  // Every slice leaves its sums in shared memory.
  copies_wait<0>();
  __syncthreads();
  float *part = shared + slice * C::PART;
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j += 4)
      *(float4 *)(part + row<C::TY>(ty, i) * C::BN + row<C::TX>(tx, j)) =
          make_float4(scaled<IMAGES>(sum[i][j]), scaled<IMAGES>(sum[i][j + 1]), scaled<IMAGES>(sum[i][j + 2]),
                      scaled<IMAGES>(sum[i][j + 3]));
  __syncthreads();

  finish.write(shared, (float4 *)(shared + shared_floats<FORM, C>()));
}

// Every thread keeps 8×8 sums, four products for each value it reads: that is as
// many as shared memory can feed. Several slices give small tiles enough threads.
//
// Long is for long sums: four stages, so that a block of a cluster has all of its
// k on the way at once, and registers for two blocks on a multiprocessor.
using Long = Config<64, 64, 8, 8, 4, 4, 2>;
// Narrow is for ten classes: a tile of 64 columns would be products of zeros.
using Narrow = Config<64, 16, 8, 4, 8, 4, 1>;
// Small fits GPUs that give a block no more than 48 KB.
using Small = Config<64, 64, 8, 8, 2, 2, 2>;

template <int FORM, int EPILOGUE, bool IMAGES, int W, typename C>
int launch(uintptr_t stream, Args p) {
  constexpr int BYTES = 4 * shared_floats<FORM, C>(), INBOX = 4 * C::PART;
  auto kernel = matmul<FORM, EPILOGUE, IMAGES, W, C>;
  static const int allowed = allow(kernel, BYTES + (device().major >= 9 ? INBOX : 0));
  if (allowed != cudaSuccess) return allowed;

  int64_t tiles = (int64_t(p.m) + C::BM - 1) / C::BM * ((int64_t(p.n) + C::BN - 1) / C::BN);
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  // Twice as many blocks to a tile while all find a multiprocessor of their own
  // and keep enough of k each to be worth adding up.
  int ranks = 1;
  if (device().major >= 9)
    while (ranks < MAX_RANKS && tiles * ranks * 2 <= device().sms && p.k >= 64 * ranks * 2) ranks *= 2;
  p.k_part = (p.k + ranks - 1) / ranks;

  Launch l = {unsigned(tiles * ranks), C::THREADS, size_t(BYTES + (ranks > 1 ? INBOX : 0)), unsigned(ranks)};
  // Clusters that came early to a busy device would share multiprocessors among
  // themselves and leave others idle.
  l.early = ranks == 1 || tiles * ranks * 2 <= device().sms;
  return ::launch(stream, l, kernel, p);
}

template <int FORM, int EPILOGUE, bool IMAGES>
int choose(uintptr_t stream, const Args &p) {
  // Layers of ten classes are Narrow.
  bool narrow = !IMAGES && FORM != KERNELS_NT && p.n <= 16;
  if (device().shared < 4 * shared_floats<FORM, Long>()) return launch<FORM, EPILOGUE, IMAGES, 1, Small>(stream, p);
  // A is turned in NN and NT, B in NT: those are copied by single floats.
  if constexpr (FORM != KERNELS_NT) {
    bool wide = p.vector_b && (FORM == KERNELS_NN || IMAGES || p.vector_a);
    if constexpr (!IMAGES)
      if (narrow) return wide ? launch<FORM, EPILOGUE, false, 4, Narrow>(stream, p) : launch<FORM, EPILOGUE, false, 1, Narrow>(stream, p);
    if (wide) return launch<FORM, EPILOGUE, IMAGES, 4, Long>(stream, p);
  }
  return launch<FORM, EPILOGUE, IMAGES, 1, Long>(stream, p);
}

}  // namespace

int matmul_ffma(uintptr_t stream, int form, int epilogue, const Args &p) {
  if (p.order) switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return choose<KERNELS_NN, KERNELS_STORE, true>(stream, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return choose<KERNELS_NN, KERNELS_RELU, true>(stream, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return choose<KERNELS_TN, KERNELS_STORE, true>(stream, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return choose<KERNELS_TN, KERNELS_ADD, true>(stream, p);
    default: return cudaErrorInvalidValue;
  }
  switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return choose<KERNELS_NN, KERNELS_STORE, false>(stream, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return choose<KERNELS_NN, KERNELS_RELU, false>(stream, p);
    case KERNELS_NT * 4 + KERNELS_STORE: return choose<KERNELS_NT, KERNELS_STORE, false>(stream, p);
    case KERNELS_NT * 4 + KERNELS_MASK: return choose<KERNELS_NT, KERNELS_MASK, false>(stream, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return choose<KERNELS_TN, KERNELS_STORE, false>(stream, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return choose<KERNELS_TN, KERNELS_ADD, false>(stream, p);
  }
  return cudaErrorInvalidValue;
}
