// Fused dgrad, wgrad and SGD of a layer of few rows and large weights, on the tensor cores, in tf32, 3xtf32
// and bf16, with TMA: weights that do not fit L2 are read once and written once.
//
//   c[m,n] = a[m,k]·b[n,k]ᵀ where y[m,n] > 0, else 0      dx = dy·wᵀ with dReLU
//   b[n,k] += alpha·y[m,n]ᵀ·a[m,k]                        w += alpha·xᵀ·dy, where y is x
//
// In bf16 b is the float32 weights as well. They are rounded here, to the bits of their copy that forward
// passes read, and the copy of the new ones is stored.
//
// A tile has 16, 32 or 64 rows, the fewest that cover m; of up to 32, two CTAs run on an SM. A pair of CTAs has 32
// columns of c, which are 32 rows of the weights b, and each CTA one half of k (cluster split-K). k-tiles of 128 of b and
// a pass through a pipeline. A warp has 16 k of a k-tile, both for c and for the update (intra-CTA split-K):
//
//   k-tile of b, 32×128:     warp 0       warp 1     ...   warp 7
//   row 8j + g           k 0..15      16..31         112..127       lane 4g + t: k = 2t, 2t+1 of
//                                                                   each eight
//
// A lane multiplies with the same weights that it updates, in registers. At the end the warps' sums of c are
// added, and each CTA sends the other, by DSMEM, the sums of the rows that the other finishes.
#include "gemm/epilogue.cuh"
#include "gemm/grouped.cuh"
#include "gemm/mma.cuh"
#include "gemm/pipeline.cuh"

namespace gemm {

namespace {

constexpr int N = 32, K = 128, WARPS = 8, WARP_K = K / WARPS;
// Rows in shared memory are padded against bank conflicts.
constexpr int LINE = K + 8, LINE_N = N + 8;

// Float and Half are a warp's multiplications of M rows. Both have y in registers. gradient multiplies yᵀ by the warp's
// k of a, in shared memory. take takes two weights of row 8j + g and the k8-th eight k; after those of all
// rows add multiplies a by them.
template <int M_, bool X3_>
struct Float {
  using Value = float;
  static constexpr bool FMA = true, X3 = X3_;
  static constexpr int M = M_, STAGES = M == 32 ? 3 : 4;
  static constexpr TileFormat FORMAT = TileFormat::PLAIN;
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float y[M / 8][N / 16][2][2], weights[N / 8][2];
  unsigned hi[M / 8][N / 16][2][2], none[2][2];
  Accumulators<X3, N / 8> sums[M / 16];

  __device__ void read_y(const float *from) {
#pragma unroll
    for (int m8 = 0; m8 < M / 8; m8++)
#pragma unroll
      for (int n16 = 0; n16 < N / 16; n16++) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int e = 0; e < 2; e++) y[m8][n16][h][e] = from[(8 * m8 + 4 * e + t) * LINE_N + 16 * n16 + 8 * h + g];
        if (!X3) split_tf32<X3>(hi[m8][n16], none, y[m8][n16]);
      }
  }

  __device__ void gradient(Accumulators<X3, WARP_K / 8> (&c)[N / 16], const float *a) {
#pragma unroll
    for (int m8 = 0; m8 < M / 8; m8++) {
      float fa[WARP_K / 8][2];
#pragma unroll
      for (int j = 0; j < WARP_K / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) fa[j][e] = a[(8 * m8 + 4 * e + t) * LINE + 8 * j + g];
#pragma unroll
      for (int n16 = 0; n16 < N / 16; n16++) {
        if (X3) c[n16].template mma<false>(y[m8][n16], fa);
        else c[n16].template mma<false>(hi[m8][n16], none, fa);
      }
    }
  }

  __device__ void take(int j, int, float2 w) { weights[j][0] = w.x, weights[j][1] = w.y; }

  __device__ void add(const float *a, int k8) {
#pragma unroll
    for (int m16 = 0; m16 < M / 16; m16++) {
      float fa[2][2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float2 v = *(const float2 *)(a + (16 * m16 + 8 * h + g) * LINE + 8 * k8 + 2 * t);
        fa[h][0] = v.x, fa[h][1] = v.y;
      }
      sums[m16].template mma<false>(fa, weights);
    }
  }
};

template <int M_>
struct Half {
  using Value = bf16;
  static constexpr bool FMA = false, X3 = false;
  static constexpr int M = M_, STAGES = M == 64 ? 6 : M == 32 ? 4 : 5;
  static constexpr TileFormat FORMAT = TileFormat::PLAIN_BF16;
  int lane = threadIdx.x % 32;
  unsigned y[M / 16][N / 16][4], weights[N / 8][2];
  Accumulators<X3, N / 8> sums[M / 16];

  __device__ void read_y(const bf16 *from) {
    unsigned at = address(from + (lane / 16 * 8 + lane % 8) * LINE_N + lane / 8 % 2 * 8);
#pragma unroll
    for (int m16 = 0; m16 < M / 16; m16++)
#pragma unroll
      for (int n16 = 0; n16 < N / 16; n16++) ldmatrix<true>(y[m16][n16], at + 2 * 16 * (m16 * LINE_N + n16));
  }

  // at is the address of the lane's row of the first matrices of a.
  __device__ unsigned at(const bf16 *a) const { return address(a + lane % 16 * LINE + lane / 16 * 8); }

  __device__ void gradient(Accumulators<X3, WARP_K / 8> (&c)[N / 16], const bf16 *a) {
#pragma unroll
    for (int m16 = 0; m16 < M / 16; m16++) {
      unsigned fa[4];
      ldmatrix<true>(fa, at(a) + 2 * 16 * m16 * LINE);
#pragma unroll
      for (int n16 = 0; n16 < N / 16; n16++)
#pragma unroll
        for (int k8 = 0; k8 < WARP_K / 8; k8++) mma_sync(c[n16].c[k8], y[m16][n16], {fa[2 * k8], fa[2 * k8 + 1]});
    }
  }

  __device__ void take(int j, int k8, float2 w) { weights[j][k8] = to_bf16(w.x, w.y); }

  __device__ void add(const bf16 *a, int k8) {
    if (k8 == 0) return;  // it multiplies 16 k at once
#pragma unroll
    for (int m16 = 0; m16 < M / 16; m16++) {
      unsigned fa[4];
      ldmatrix<false>(fa, at(a) + 2 * 16 * m16 * LINE);
#pragma unroll
      for (int j = 0; j < N / 8; j++) mma_sync(sums[m16].c[j], fa, weights[j]);
    }
  }
};

template <typename Multiply>
struct Fused {
  using Value = typename Multiply::Value;
  static constexpr int M = Multiply::M, STAGES = Multiply::STAGES;
  static constexpr int ARCH = 90, THREADS = 32 * WARPS, CTAS = M == DGRAD_WGRAD_ROWS ? 1 : 2, OCCUPANCY = 0, CLUSTER = CTA_PAIR;
  static constexpr bool HALF = sizeof(Value) == 2;
  // In floats.
  static constexpr int SIZE_A = M * LINE * sizeof(Value) / 4, SIZE_B = N * LINE, SIZE_Y = M * LINE_N * sizeof(Value) / 4, SIZE_INBOX = M / 2 * N;
  static constexpr int ALL_B = STAGES * SIZE_A, ALL_Y = ALL_B + STAGES * SIZE_B, INBOX = ALL_Y + SIZE_Y, BARRIERS = INBOX + SIZE_INBOX;
  static constexpr int FLOATS = BARRIERS + 2 * (2 * STAGES + 2), PART = M * LINE_N;  // PART: a warp's sums
  static_assert(WARPS * PART <= ALL_Y, "the sums fit in the stages, which they overwrite");
  static_assert(CTAS * (4 * FLOATS + 1024) <= 228 << 10, "an SM has that much, of which the system takes 1 KiB for each CTA");
  using Params = TmaGemm;

  static int64_t ctas(const Gemm &g) { return ceil_div(g.n, N) * CTA_PAIR; }

  // Of up to FEW rows TMA loads only those that there are: it takes longer to write zeros than to load.
  static constexpr int FEW = M == 16 ? 8 : 0;
  __host__ __device__ static int rows(const Gemm &g) { return FEW > 0 && g.m <= FEW ? g.m : M; }

  static int prepare(TmaGemm &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    int code = encode<2>(out.map[0], g.a, {{g.k, 1, LINE}, {g.m, g.k, rows(g)}}, Multiply::FORMAT);
    if (!code) code = encode<2>(out.map[1], g.b, {{g.k, 1, LINE}, {g.n, g.k, N}});
    return code ? code : encode<2>(out.map[2], g.y, {{g.n, 1, LINE_N}, {g.m, g.n, rows(g)}}, Multiply::FORMAT);
  }

  const TmaGemm &p;
  float *shared;
  Mbarrier *full = (Mbarrier *)(shared + BARRIERS), *empty = full + STAGES, *y_full = empty + STAGES, *inbox_full = y_full + 1;
  int n0, k0, k_tiles;  // this CTA's first column and k, and how many k-tiles it has
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slice = warp * WARP_K;
  Multiply by;

  __device__ Fused(const TmaGemm &gemm, int cta, float *shared_) : p(gemm), shared(shared_) {
    int all = ceil_div(p.k, K), half = (all + 1) / 2, rank = cluster_ctarank();
    n0 = cta / CTA_PAIR * N, k0 = rank * half * K, k_tiles = rank ? all - half : half;
  }

  __device__ Value *stage_a(int k_tile) const { return (Value *)(shared + k_tile % STAGES * SIZE_A); }
  __device__ float *stage_b(int k_tile) const { return shared + ALL_B + k_tile % STAGES * SIZE_B; }

  // One thread calls the load functions. load_b expects the bytes of load_a as well: it comes first.
  __device__ void load_b(int k_tile) const {
    if (k_tile >= k_tiles) return;
    mbarrier_arrive_expect_tx(full + k_tile % STAGES, rows(p) * int(LINE * sizeof(Value)) + 4 * SIZE_B);
    tma_load(stage_b(k_tile), p.map[1], k0 + k_tile * K, n0, full + k_tile % STAGES);
  }

  __device__ void load_a(int k_tile) const {
    if (k_tile < k_tiles) tma_load(stage_a(k_tile), p.map[0], k0 + k_tile * K, 0, full + k_tile % STAGES);
  }

  __device__ void load_y() const {
    mbarrier_arrive_expect_tx(y_full, rows(p) * int(LINE_N * sizeof(Value)));
    tma_load(shared + ALL_Y, p.map[2], n0, 0, y_full);
  }

  // clear sets the rows of a tile that TMA does not load to zeros. size is that of the tile, in floats.
  __device__ void clear(float *tile, int size) const {
    for (int i = rows(p) * size / M / 4 + threadIdx.x; i < size / 4; i += THREADS) ((float4 *)tile)[i] = make_float4(0, 0, 0, 0);
  }

  __device__ void start() const {
    bool one = threadIdx.x == 0;
    if constexpr (FEW > 0) {
      for (int i = 0; i < STAGES; i++) clear(shared + i * SIZE_A, SIZE_A);
      clear(shared + ALL_Y, SIZE_Y);
      __syncthreads();
    }
    if (one) {
      for (int i = 0; i < STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(empty + i, WARPS);
      mbarrier_init(y_full, 1), mbarrier_init(inbox_full, 1);
    }
    mbarriers_ready();
    if (one) {
      mbarrier_arrive_expect_tx(inbox_full, 4 * SIZE_INBOX);
      if (p.prefetch_c) load_y();
      for (int i = 0; i < STAGES && p.prefetch_b; i++) load_b(i);
    }
    pdl_wait();
    if (one) {
      if (!p.prefetch_c) load_y();
      for (int i = 0; i < STAGES; i++) {
        if (!p.prefetch_b) load_b(i);
        load_a(i);
      }
    }
  }

  // release says that this warp has read a k-tile. One thread then loads a later one to the stage of the
  // k-tile before, which the other warps have most likely read by now.
  __device__ void release(int k_tile) const {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + k_tile % STAGES);
    if (threadIdx.x == 0 && --k_tile >= 0 && k_tile + STAGES < k_tiles) {
      mbarrier_wait(empty + k_tile % STAGES, k_tile / STAGES);
      load_b(k_tile + STAGES), load_a(k_tile + STAGES);
    }
    __syncwarp();
  }

  // multiply sums this warp's k of c, and updates and stores its weights.
  __device__ void multiply() {
    mbarrier_wait(y_full, 0);
    by.read_y((const Value *)(shared + ALL_Y));
    int k = k0 + slice + 2 * t, rows = p.n - n0 - g;
    float *to = const_cast<float *>(p.b) + int64_t(n0 + g) * p.k + k;
#pragma unroll 1
    for (int i = 0; i < k_tiles; i++) {
      mbarrier_wait(full + i % STAGES, i / STAGES);
      const Value *a = stage_a(i) + slice;
      const float *b = stage_b(i) + g * LINE + slice + 2 * t;
      Accumulators<Multiply::X3, WARP_K / 8> gradient[N / 16];
      by.gradient(gradient, a);
      unsigned rounded[N / 8][2];
#pragma unroll
      for (int k8 = 0; k8 < WARP_K / 8; k8++) {
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          float2 v = *(const float2 *)(b + 8 * j * LINE + 8 * k8);
          by.take(j, k8, v);
          const float *c = gradient[j / 2].c[k8] + j % 2 * 2;
          v = make_float2(Sgd::update<Multiply::FMA>(v.x, p.alpha, c[0]), Sgd::update<Multiply::FMA>(v.y, p.alpha, c[1]));
          st_global_float2_if(k + 8 * k8 < p.k && 8 * j < rows, to + int64_t(8 * j) * p.k + 8 * k8, v);
          if (HALF) rounded[j][k8] = to_bf16(v.x, v.y);
        }
        by.add(a, k8);
      }
      release(i);
      if (HALF) store_rounded(rounded, k, rows, p.rounded + (to - p.b));
      k += K, to += K;
    }
  }

  // store_rounded stores the weights' copy. Lanes t and t+1 exchange, so that each stores four of one eight.
  __device__ void store_rounded(const unsigned (&two)[N / 8][2], int k, int rows, bf16 *to) const {
    bool odd = t % 2;
    if (odd) k += 6, to += 6;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      unsigned mine = odd ? two[j][1] : two[j][0], other = __shfl_xor_sync(~0u, odd ? two[j][0] : two[j][1], 1);
      float2 four = make_float2(__uint_as_float(odd ? other : mine), __uint_as_float(odd ? mine : other));
      st_global_float2_if(k < p.k && 8 * j < rows, (float *)(to + int64_t(8 * j) * p.k), four);
    }
  }

  // finish adds the warps' sums, sends those of the other CTA's rows to its inbox, and finishes this CTA's
  // rows with those from its own inbox.
  __device__ void finish() const {
    constexpr int ROW = N / 4, FINISH = M / 2 * ROW;  // threads, with a float4 each
    static_assert(FINISH <= THREADS, "a thread for each");
    __syncthreads();
    float *part = shared + warp * PART + g * LINE_N + 2 * t;
#pragma unroll
    for (int m16 = 0; m16 < M / 16; m16++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
          *(float2 *)(part + (16 * m16 + 8 * h) * LINE_N + 8 * j) = make_float2(by.sums[m16].c[j][2 * h], by.sums[m16].c[j][2 * h + 1]);
    __syncthreads();
    if (threadIdx.x >= FINISH) return;
    int rank = cluster_ctarank(), other = 1 - rank, row = threadIdx.x / ROW, x = threadIdx.x % ROW * 4, m = M / 2 * rank + row;
    auto sum = [&](int first) {
      const float *from = shared + (first + row) * LINE_N + x;
      float4 v = *(const float4 *)from;
#pragma unroll
      for (int i = 1; i < WARPS; i++) v = v + *(const float4 *)(from + i * PART);
      return v;
    };
    float *inbox = shared + INBOX + 4 * threadIdx.x;
    st_async(mapa(inbox, other), sum(M / 2 * other), mapa(inbox_full, other));
    using Four = typename std::conditional<HALF, uint2, float4>::type;
    float4 v = sum(M / 2 * rank), y = four_of(*(const Four *)((const Value *)(shared + ALL_Y) + m * LINE_N + x));
    mbarrier_wait(inbox_full, 0);
    v = v + *(const float4 *)inbox;
    if (m < p.m && n0 + x < p.n) store4((Value *)p.c + int64_t(m) * p.n + n0 + x, Epilogue<NT>{p}(v, y));
  }

  static __device__ void run(const TmaGemm &p, int cta, float *shared) {
    Fused f(p, cta, shared);
    f.start();
    f.multiply();
    f.finish();
  }
};

template <int M>
int launch_rows(uintptr_t stream, const Gemm &g) {
  if (g.precision == KERNELS_BF16) return launch_single<Fused<Half<M>>>(stream, g);
  return g.precision == KERNELS_TF32X3 ? launch_single<Fused<Float<M, true>>>(stream, g) : launch_single<Fused<Float<M, false>>>(stream, g);
}

}  // namespace

int64_t dgrad_wgrad_ctas(const Gemm &g) { return Fused<Half<DGRAD_WGRAD_ROWS>>::ctas(g); }

int dgrad_wgrad(uintptr_t stream, const Gemm &g) {
  if (g.m <= 16) return launch_rows<16>(stream, g);
  return g.m <= 32 ? launch_rows<32>(stream, g) : launch_rows<DGRAD_WGRAD_ROWS>(stream, g);
}

}  // namespace gemm
