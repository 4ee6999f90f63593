// Fused dgrad, wgrad and SGD of a layer of few rows and large weights, on the tensor cores, in tf32 and
// 3xtf32, with TMA: weights that do not fit L2 are read once and written once.
//
//   c[m,n] = a[m,k]·b[n,k]ᵀ where y[m,n] > 0, else 0      dx = dy·wᵀ with dReLU
//   b[n,k] += alpha·y[m,n]ᵀ·a[m,k]                        w += alpha·xᵀ·dy, where y is x
//
// A pair of CTAs has 32 columns of c, which are 32 rows of the weights b, and each CTA one half of k (cluster
// split-K). k-tiles of 128 of b and a pass through a pipeline. A warp has 16 k of a k-tile, both for c and
// for the update (intra-CTA split-K):
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

template <bool X3>
struct Fused {
  static constexpr int WARPS = 8, ARCH = 90, THREADS = 32 * WARPS, CTAS = 1, OCCUPANCY = 0, CLUSTER = CTA_PAIR;
  static constexpr int M = DGRAD_WGRAD_ROWS, N = 32, K = 128, WARP_K = K / WARPS, STAGES = 4;
  // Rows in shared memory are padded against bank conflicts.
  static constexpr int LINE = K + 8, LINE_N = N + 8;
  static constexpr int SIZE_A = M * LINE, SIZE_B = N * LINE, SIZE_Y = M * LINE_N, SIZE_INBOX = M / 2 * N;
  static constexpr int ALL_B = STAGES * SIZE_A, ALL_Y = ALL_B + STAGES * SIZE_B, INBOX = ALL_Y + SIZE_Y, BARRIERS = INBOX + SIZE_INBOX;
  static constexpr int FLOATS = BARRIERS + 2 * (2 * STAGES + 2), PART = M * LINE_N;  // PART: a warp's sums
  static_assert(WARPS * PART <= ALL_Y, "the sums fit in the stages, which they overwrite");
  using Params = TmaGemm;

  static int64_t ctas(const Gemm &g) { return ceil_div(g.n, N) * CTA_PAIR; }

  static int prepare(TmaGemm &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    int code = encode<2>(out.map[0], g.a, {{g.k, 1, LINE}, {g.m, g.k, M}});
    if (!code) code = encode<2>(out.map[1], g.b, {{g.k, 1, LINE}, {g.n, g.k, N}});
    return code ? code : encode<2>(out.map[2], g.y, {{g.n, 1, LINE_N}, {g.m, g.n, M}});
  }

  const TmaGemm &p;
  float *shared;
  Mbarrier *full = (Mbarrier *)(shared + BARRIERS), *empty = full + STAGES, *y_full = empty + STAGES, *inbox_full = y_full + 1;
  int n0, k0, k_tiles;  // this CTA's first column and k, and how many k-tiles it has
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slice = warp * WARP_K;
  Accumulators<X3, N / 8> sums[M / 16];

  __device__ Fused(const TmaGemm &gemm, int cta, float *shared_) : p(gemm), shared(shared_) {
    int all = ceil_div(p.k, K), half = (all + 1) / 2, rank = cluster_ctarank();
    n0 = cta / CTA_PAIR * N, k0 = rank * half * K, k_tiles = rank ? all - half : half;
  }

  __device__ float *stage_a(int k_tile) const { return shared + k_tile % STAGES * SIZE_A; }
  __device__ float *stage_b(int k_tile) const { return shared + ALL_B + k_tile % STAGES * SIZE_B; }

  // One thread calls the load functions. load_b expects the bytes of load_a as well: it comes first.
  __device__ void load_b(int k_tile) const {
    if (k_tile >= k_tiles) return;
    mbarrier_arrive_expect_tx(full + k_tile % STAGES, 4 * (SIZE_A + SIZE_B));
    tma_load(stage_b(k_tile), p.map[1], k0 + k_tile * K, n0, full + k_tile % STAGES);
  }

  __device__ void load_a(int k_tile) const {
    if (k_tile < k_tiles) tma_load(stage_a(k_tile), p.map[0], k0 + k_tile * K, 0, full + k_tile % STAGES);
  }

  __device__ void load_y() const {
    mbarrier_arrive_expect_tx(y_full, 4 * SIZE_Y);
    tma_load(shared + ALL_Y, p.map[2], n0, 0, y_full);
  }

  __device__ void start() const {
    bool one = threadIdx.x == 0;
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

  // multiply sums this warp's k of c, and updates and stores its weights. It is long, since both share
  // registers.
  __device__ void multiply() {
    mbarrier_wait(y_full, 0);
    float y[M / 8][N / 16][2][2];
    unsigned hi[M / 8][N / 16][2][2], none[2][2];
#pragma unroll
    for (int m8 = 0; m8 < M / 8; m8++)
#pragma unroll
      for (int n16 = 0; n16 < N / 16; n16++) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int e = 0; e < 2; e++) y[m8][n16][h][e] = shared[ALL_Y + (8 * m8 + 4 * e + t) * LINE_N + 16 * n16 + 8 * h + g];
        if (!X3) split_tf32<X3>(hi[m8][n16], none, y[m8][n16]);
      }
    int k = k0 + slice + 2 * t, rows = p.n - n0 - g;
    float *to = const_cast<float *>(p.b) + int64_t(n0 + g) * p.k + k;
#pragma unroll 1
    for (int i = 0; i < k_tiles; i++) {
      mbarrier_wait(full + i % STAGES, i / STAGES);
      const float *a = stage_a(i) + slice, *b = stage_b(i) + g * LINE + slice + 2 * t;
      Accumulators<X3, WARP_K / 8> gradient[N / 16];
#pragma unroll
      for (int m8 = 0; m8 < M / 8; m8++) {
        float fa[WARP_K / 8][2];
#pragma unroll
        for (int j = 0; j < WARP_K / 8; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) fa[j][e] = a[(8 * m8 + 4 * e + t) * LINE + 8 * j + g];
#pragma unroll
        for (int n16 = 0; n16 < N / 16; n16++) {
          if (X3) gradient[n16].template mma<false>(y[m8][n16], fa);
          else gradient[n16].template mma<false>(hi[m8][n16], none, fa);
        }
      }
#pragma unroll
      for (int k8 = 0; k8 < WARP_K / 8; k8++) {
        float fb[N / 8][2];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          float2 v = *(const float2 *)(b + 8 * j * LINE + 8 * k8);
          fb[j][0] = v.x, fb[j][1] = v.y;
          const float *c = gradient[j / 2].c[k8] + j % 2 * 2;
          v = make_float2(Sgd::update<true>(v.x, p.alpha, c[0]), Sgd::update<true>(v.y, p.alpha, c[1]));
          st_global_float2_if(k + 8 * k8 < p.k && 8 * j < rows, to + int64_t(8 * j) * p.k + 8 * k8, v);
        }
#pragma unroll
        for (int m16 = 0; m16 < M / 16; m16++) {
          float fa[2][2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            float2 v = *(const float2 *)(a + (16 * m16 + 8 * h + g) * LINE + 8 * k8 + 2 * t);
            fa[h][0] = v.x, fa[h][1] = v.y;
          }
          sums[m16].template mma<false>(fa, fb);
        }
      }
      k += K, to += K;
      release(i);
    }
  }

  // finish adds the warps' sums, sends those of the other CTA's rows to its inbox, and finishes this CTA's
  // rows with those from its own inbox.
  __device__ void finish() const {
    constexpr int ROW = N / 4;
    static_assert(M / 2 * ROW == THREADS, "a float4 each");
    __syncthreads();
    float *part = shared + warp * PART + g * LINE_N + 2 * t;
#pragma unroll
    for (int m16 = 0; m16 < M / 16; m16++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
          *(float2 *)(part + (16 * m16 + 8 * h) * LINE_N + 8 * j) = make_float2(sums[m16].c[j][2 * h], sums[m16].c[j][2 * h + 1]);
    __syncthreads();
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
    float4 v = sum(M / 2 * rank), y = *(const float4 *)(shared + ALL_Y + m * LINE_N + x);
    mbarrier_wait(inbox_full, 0);
    v = v + *(const float4 *)inbox;
    if (m < p.m && n0 + x < p.n) *(float4 *)(p.c + int64_t(m) * p.n + n0 + x) = Epilogue<NT>{p}(v, y);
  }

  static __device__ void run(const TmaGemm &p, int cta, float *shared) {
    Fused f(p, cta, shared);
    f.start();
    f.multiply();
    f.finish();
  }
};

}  // namespace

int64_t dgrad_wgrad_ctas(const Gemm &g) { return Fused<true>::ctas(g); }

int dgrad_wgrad(uintptr_t stream, const Gemm &g) {
  return g.precision == KERNELS_TF32X3 ? launch_single<Fused<true>>(stream, g) : launch_single<Fused<false>>(stream, g);
}

}  // namespace gemm
