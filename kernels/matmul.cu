// Matrix products in float32 on the CUDA cores, in the three forms that
// training a layer y = x·w needs, each with what follows it as an epilogue:
//
//   NN  y[m,n]  = x[m,k]·w[k,n]         forward, with ReLU
//   NT  dx[m,n] = dy[m,k]·w[n,k]ᵀ       backward, masked by the ReLU before
//   TN  w[m,n] += alpha·x[k,m]ᵀ·dy[k,n]  weight gradient and SGD update
//
// A block makes a tile of the result. Tiles of both operands pass through
// shared memory, STAGES deep; a thread keeps TM×TN sums in registers, so that a
// value read from shared memory is used TM or TN times. Two things fill a GPU
// when a batch of 64 rows has only a dozen tiles for its 132 multiprocessors:
//
//   SLICES groups of threads inside a block share its tile, each taking every
//   SLICES-th quad of k, and are added through shared memory at the end;
//   a cluster of up to 8 blocks (compute capability 9) shares a tile, each block
//   taking a part of k, and is added through distributed shared memory.
//
// All additions happen in an order that depends on the shape alone: equal calls
// give equal bits. k is walked in quads, four at a time, with zeros past its
// end; elements past the end of m or n are computed from zeros and not stored.
#include <cooperative_groups.h>

#include "launch.cuh"

namespace {

constexpr int BK = 32;  // k per stage
constexpr int QUADS = BK / 4;

// An operand tile of X rows (of m or n) by BK lies in shared memory as it does
// in global memory, so that it can be copied 16 bytes at a time:
//   K_CONTIGUOUS   [X][BK], rows padded by a quad: the eight rows that a warp
//                  reads at once then fall into different banks
//   otherwise      [BK][X]
template <bool K_CONTIGUOUS, int X>
struct Operand {
  static constexpr bool K = K_CONTIGUOUS;
  static constexpr int STRIDE = K_CONTIGUOUS ? BK + 4 : X;
  static constexpr int SIZE = K_CONTIGUOUS ? X * STRIDE : BK * STRIDE;

  // row is the i-th row of the tile that thread t of T owns. Rows are read
  // one quad of k at a time if k is contiguous, neighbours to neighbours; else
  // four rows at a time.
  template <int T>
  __device__ static int row(int t, int i) {
    return K_CONTIGUOUS ? i * T + t : i / 4 * (4 * T) + t * 4 + i % 4;
  }
};

// copy4 and copy16 copy from global to shared memory, or store zeros if !valid.
// They are asynchronous where the hardware has it.
__device__ void copy4(float *to, const float *from, bool valid) {
#if __CUDA_ARCH__ >= 800
  unsigned s = unsigned(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(s), "l"(from), "r"(valid ? 4 : 0) : "memory");
#else
  *to = valid ? *from : 0.f;
#endif
}

__device__ void copy16(float *to, const float *from, bool valid) {
#if __CUDA_ARCH__ >= 800
  unsigned s = unsigned(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(s), "l"(from), "r"(valid ? 16 : 0) : "memory");
#else
  *reinterpret_cast<float4 *>(to) = valid ? *reinterpret_cast<const float4 *>(from) : make_float4(0, 0, 0, 0);
#endif
}

__device__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// copies_wait waits for all but the newest LEFT groups of copies.
template <int LEFT>
__device__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// load starts copying the tile with corner (x0, k0) of an operand of rows rows
// and k below k_end. vector: its lines are whole quads on 16-byte boundaries.
template <bool K_CONTIGUOUS, int X, int THREADS>
__device__ void load(float *tile, const float *from, int64_t line, int x0, int rows, int k0, int k_end, bool vector) {
  using Tile = Operand<K_CONTIGUOUS, X>;
  constexpr int LINES = K_CONTIGUOUS ? X : BK, LENGTH = K_CONTIGUOUS ? BK : X;
  int line0 = K_CONTIGUOUS ? x0 : k0, lines = K_CONTIGUOUS ? rows : k_end;
  int at0 = K_CONTIGUOUS ? k0 : x0, length = K_CONTIGUOUS ? k_end : rows;
  if (vector) {
    for (int e = threadIdx.x; e < LINES * LENGTH / 4; e += THREADS) {
      int i = e / (LENGTH / 4), j = e % (LENGTH / 4) * 4;
      bool valid = line0 + i < lines && at0 + j < length;
      copy16(tile + i * Tile::STRIDE + j, valid ? from + (line0 + i) * line + at0 + j : from, valid);
    }
  } else {
    for (int e = threadIdx.x; e < LINES * LENGTH; e += THREADS) {
      int i = e / LENGTH, j = e % LENGTH;
      bool valid = line0 + i < lines && at0 + j < length;
      copy4(tile + i * Tile::STRIDE + j, valid ? from + (line0 + i) * line + at0 + j : from, valid);
    }
  }
}

// fragment reads what thread t of T multiplies, ROWS rows of a tile, in quad q:
// all of the quad if k is contiguous, else its kk-th.
template <typename Tile, int ROWS, int T>
__device__ void fragment(float (&f)[ROWS][4], const float *tile, int t, int q, int kk) {
#pragma unroll
  for (int i = 0; i < ROWS; i += Tile::K ? 1 : 4) {
    int r = Tile::template row<T>(t, i);
    float4 v = *reinterpret_cast<const float4 *>(Tile::K ? tile + r * Tile::STRIDE + q * 4
                                                         : tile + (q * 4 + kk) * Tile::STRIDE + r);
    if (Tile::K) f[i][0] = v.x, f[i][1] = v.y, f[i][2] = v.z, f[i][3] = v.w;
    else f[i][kk] = v.x, f[i + 1][kk] = v.y, f[i + 2][kk] = v.z, f[i + 3][kk] = v.w;
  }
}

__device__ void add(float4 &s, float4 v) { s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w; }

// epilogue finishes one element: sum is that of the product, old the element of
// y (MASK) or c (ADD) at its place.
template <int EPILOGUE>
__device__ float epilogue(float sum, float old, float alpha) {
  if (EPILOGUE == KERNELS_RELU) return sum < 0 ? 0 : sum;
  if (EPILOGUE == KERNELS_MASK) return old > 0 ? sum : 0;
  if (EPILOGUE == KERNELS_ADD) return old + alpha * sum;
  return sum;
}

struct Args {
  float *c;
  const float *a, *b, *y;
  float alpha;
  int m, n, k, k_part;               // k_part: the k of one block of a cluster, whole quads
  bool vector_a, vector_b, vector_c;  // see load; c and y together
};

template <int BM_, int BN_, int TM_, int TN_, int SLICES_, int STAGES_, int MIN_BLOCKS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int TY = BM / TM, TX = BN / TN, THREADS = TY * TX * SLICES;
  // Partial tiles are padded so that the scattered stores of NT miss each
  // other's banks, and take the place of the stages when those are done.
  static constexpr int PART_STRIDE = BN + 8, PART = BM * PART_STRIDE;
};

template <int FORM, int EPILOGUE, typename C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) matmul(const Args p) {
  constexpr bool A_K = FORM != KERNELS_TN, B_K = FORM == KERNELS_NT;
  using A = Operand<A_K, C::BM>;
  using B = Operand<B_K, C::BN>;
  constexpr int STAGE = A::SIZE + B::SIZE;
  extern __shared__ __align__(16) float shared[];

  int rank = 0, ranks = 1;
#if __CUDA_ARCH__ >= 900
  auto cluster = cooperative_groups::this_cluster();
  rank = cluster.block_rank(), ranks = cluster.num_blocks();
#endif
  int tiles_n = (p.n + C::BN - 1) / C::BN, tile = blockIdx.x / ranks;
  int m0 = tile / tiles_n * C::BM, n0 = tile % tiles_n * C::BN;
  int k0 = min(p.k, rank * p.k_part), k1 = min(p.k, k0 + p.k_part);
  int steps = (k1 - k0 + BK - 1) / BK;

  int slice = threadIdx.x / (C::TY * C::TX), t = threadIdx.x % (C::TY * C::TX);
  int ty = t / C::TX, tx = t % C::TX;

  auto fetch = [&](int step) {
    if (step < steps) {
      float *s = shared + step % C::STAGES * STAGE;
      load<A_K, C::BM, C::THREADS>(s, p.a, A_K ? p.k : p.m, m0, p.m, k0 + step * BK, k1, p.vector_a);
      load<B_K, C::BN, C::THREADS>(s + A::SIZE, p.b, B_K ? p.k : p.n, n0, p.n, k0 + step * BK, k1, p.vector_b);
    }
    copies_commit();  // empty past the end, to keep the count
  };

  float sum[C::TM][C::TN] = {};
  for (int step = 0; step < C::STAGES - 1; step++) fetch(step);
  for (int step = 0; step < steps; step++) {
    copies_wait<C::STAGES - 2>();
    __syncthreads();  // this step has landed for all, and the stage before it is free
    fetch(step + C::STAGES - 1);
    const float *as = shared + step % C::STAGES * STAGE, *bs = as + A::SIZE;
    int quads = min(QUADS, (k1 - k0 - step * BK + 3) / 4);
#pragma unroll 1
    for (int q = slice; q < quads; q += C::SLICES) {
      // What has k contiguous is read for all four k of the quad at once, what
      // has not for one k and four rows.
      float a[C::TM][4], b[C::TN][4];
      if (A_K) fragment<A, C::TM, C::TY>(a, as, ty, q, 0);
      if (B_K) fragment<B, C::TN, C::TX>(b, bs, tx, q, 0);
#pragma unroll
      for (int kk = 0; kk < 4; kk++) {
        if (!A_K) fragment<A, C::TM, C::TY>(a, as, ty, q, kk);
        if (!B_K) fragment<B, C::TN, C::TX>(b, bs, tx, q, kk);
#pragma unroll
        for (int i = 0; i < C::TM; i++)
#pragma unroll
          for (int j = 0; j < C::TN; j++) sum[i][j] += a[i][kk] * b[j][kk];
      }
    }
  }

  // Every slice leaves its sums; then a thread adds those of one quad of
  // columns, e, in the order of the slices and of the cluster's blocks.
  copies_wait<0>();
  __syncthreads();
  float *part = shared + slice * C::PART;
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j += B_K ? 1 : 4) {
      float *to = part + A::template row<C::TY>(ty, i) * C::PART_STRIDE + B::template row<C::TX>(tx, j);
      if (B_K) *to = sum[i][j];
      else *reinterpret_cast<float4 *>(to) = make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
    }
  __syncthreads();

  constexpr int ROW_QUADS = C::BN / 4, TILE_QUADS = C::BM * ROW_QUADS;
  auto at = [&](int e) { return e / ROW_QUADS * C::PART_STRIDE + e % ROW_QUADS * 4; };
  auto slices = [&](int e) {
    float4 v = *reinterpret_cast<float4 *>(shared + at(e));
#pragma unroll
    for (int s = 1; s < C::SLICES; s++) add(v, *reinterpret_cast<float4 *>(shared + s * C::PART + at(e)));
    return v;
  };
#if __CUDA_ARCH__ >= 900
  if (ranks > 1) {
    for (int e = threadIdx.x; e < TILE_QUADS; e += C::THREADS) *reinterpret_cast<float4 *>(shared + at(e)) = slices(e);
    cluster.sync();
  }
#endif
  int end = TILE_QUADS / ranks * (rank + 1);
  for (int e = TILE_QUADS / ranks * rank + threadIdx.x; e < end; e += C::THREADS) {
    int row = m0 + e / ROW_QUADS, col = n0 + e % ROW_QUADS * 4;
    if (row >= p.m || col >= p.n) continue;
    float *to = p.c + int64_t(row) * p.n + col;
    const float *from = EPILOGUE == KERNELS_MASK ? p.y + int64_t(row) * p.n + col : to;
    constexpr bool OLD = EPILOGUE == KERNELS_MASK || EPILOGUE == KERNELS_ADD;
    float old[4] = {};
    if (OLD && p.vector_c) {
      float4 o = *reinterpret_cast<const float4 *>(from);
      old[0] = o.x, old[1] = o.y, old[2] = o.z, old[3] = o.w;
    } else if (OLD) {
      for (int i = 0; i < 4; i++)
        if (col + i < p.n) old[i] = from[i];
    }
    float4 v;
#if __CUDA_ARCH__ >= 900
    if (ranks > 1) {
      v = make_float4(0, 0, 0, 0);
      for (int r = 0; r < ranks; r++) add(v, *reinterpret_cast<float4 *>(cluster.map_shared_rank(shared + at(e), r)));
    } else
#endif
      v = slices(e);
    float result[4] = {epilogue<EPILOGUE>(v.x, old[0], p.alpha), epilogue<EPILOGUE>(v.y, old[1], p.alpha),
                       epilogue<EPILOGUE>(v.z, old[2], p.alpha), epilogue<EPILOGUE>(v.w, old[3], p.alpha)};
    if (p.vector_c) {
      *reinterpret_cast<float4 *>(to) = make_float4(result[0], result[1], result[2], result[3]);
    } else {
      for (int i = 0; i < 4; i++)
        if (col + i < p.n) to[i] = result[i];
    }
  }
#if __CUDA_ARCH__ >= 900
  if (ranks > 1) cluster.sync();  // the others may still be reading this block's sums
#endif
}

// Long sums: 8×8 sums a thread, the fewest bytes of shared memory per product,
// and four slices, so that a block of a mere 64×64 elements has 256 threads.
using Long = Config<64, 64, 8, 8, 4, 4, 2>;
// Short sums, the k of a batch, where adding slices would cost as much as the
// products; and GPUs that have less shared memory for a block than Long takes.
template <int FORM>
using Short = Config<64, 64, 4, 4, 1, FORM == KERNELS_TN ? 3 : 2, 2>;

template <int FORM, typename C>
constexpr int shared_bytes() {
  int stages = C::STAGES * (Operand<FORM != KERNELS_TN, C::BM>::SIZE + Operand<FORM == KERNELS_NT, C::BN>::SIZE);
  int parts = C::SLICES * C::PART;
  return 4 * (stages > parts ? stages : parts);
}

// What the choice of a tile needs to know of the device.
struct Device {
  int sms = 1, shared = 48 << 10, major = 0;
  Device() {
    done(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    done(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    done(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  }
};

const Device &device() {
  static const Device d;
  return d;
}

template <int FORM, int EPILOGUE, typename C>
int launch(cudaStream_t stream, Args p) {
  constexpr int BYTES = shared_bytes<FORM, C>();
  auto kernel = matmul<FORM, EPILOGUE, C>;
  static const int allowed = done(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  if (allowed != cudaSuccess) return allowed;

  int64_t tiles = (int64_t(p.m) + C::BM - 1) / C::BM * ((int64_t(p.n) + C::BN - 1) / C::BN);
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  // Blocks in a cluster: twice as many while all find a multiprocessor of
  // their own and keep at least a stage of k each.
  int ranks = 1;
  while (device().major >= 9 && ranks < 8 && tiles * ranks * 2 <= device().sms && p.k >= BK * ranks * 2) ranks *= 2;
  p.k_part = ((p.k + 3) / 4 + ranks - 1) / ranks * 4;

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(tiles * ranks));
  config.blockDim = dim3(C::THREADS);
  config.dynamicSmemBytes = BYTES;
  config.stream = stream;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(ranks), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = ranks > 1;
  return done(cudaLaunchKernelEx(&config, kernel, p));
}

template <int FORM, int EPILOGUE>
int choose(cudaStream_t stream, const Args &p) {
  bool is_short = FORM == KERNELS_TN && p.k <= 128;
  if (is_short || device().shared < shared_bytes<FORM, Long>()) return launch<FORM, EPILOGUE, Short<FORM>>(stream, p);
  return launch<FORM, EPILOGUE, Long>(stream, p);
}

}  // namespace

int kernels_matmul(uintptr_t stream, int form, int epilogue, uintptr_t c, uintptr_t a, uintptr_t b, uintptr_t y,
                   float alpha, int64_t m, int64_t n, int64_t k) {
  // Coordinates are int; 2^30 leaves room for a tile past the end.
  const int64_t limit = 1 << 30;
  if (m < 0 || n < 0 || k < 0 || m > limit || n > limit || k > limit) return cudaErrorInvalidValue;
  if (m == 0 || n == 0) return cudaSuccess;
  int64_t line_a = form == KERNELS_TN ? m : k, line_b = form == KERNELS_NT ? k : n;
  Args p = {ptr<float>(c), ptr<float>(a), ptr<float>(b), ptr<float>(y), alpha, int(m), int(n), int(k), 0,
            a % 16 == 0 && line_a % 4 == 0, b % 16 == 0 && line_b % 4 == 0, c % 16 == 0 && y % 16 == 0 && n % 4 == 0};
  cudaStream_t s = stream_of(stream);
  switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return choose<KERNELS_NN, KERNELS_STORE>(s, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return choose<KERNELS_NN, KERNELS_RELU>(s, p);
    case KERNELS_NT * 4 + KERNELS_STORE: return choose<KERNELS_NT, KERNELS_STORE>(s, p);
    case KERNELS_NT * 4 + KERNELS_MASK: return choose<KERNELS_NT, KERNELS_MASK>(s, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return choose<KERNELS_TN, KERNELS_STORE>(s, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return choose<KERNELS_TN, KERNELS_ADD>(s, p);
  }
  return cudaErrorInvalidValue;
}
