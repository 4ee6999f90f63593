// wgrads of a large batch on the tensor cores, in tf32 and 3xtf32, with TMA. A grouped GEMM: those of all
// layers in one launch.
//
// With a long k the bytes of the operands are the limit, from L2 and again from shared memory. So a warp has
// 32×56 of dw, which takes one float from shared memory for twenty multiplications; the CTAs of a pair have
// the same columns, and each loads half of dy's tile for both by multicast; and tiles are 64×112, of which
// four layers of 784×784 have 392, three on each SM. k-tiles of 32 pass through a pipeline of three stages.
// TMA stores a tile, or adds it to the weights: each element once, so that the result does not depend on the
// order of CTAs.
//
//   warps of a CTA   columns 0..55   56..111
//   rows 0..31             0            2        A lane's rows, for lane = 4g + t, are 4g..4g+3 of
//   rows 32..63            1            3        its warp's, its columns those of wgrad.cuh.
#include "gemm/epilogue.cuh"
#include "gemm/grouped.cuh"
#include "gemm/tensorop/wgrad.cuh"

namespace gemm {

namespace {

template <bool X3>
struct Large {
  static constexpr int ARCH = 90, THREADS = 128, CTAS = 3, OCCUPANCY = 0, CLUSTER = CTA_PAIR;
  static constexpr int M = 64, N = 112, K = 32, STAGES = 3;
  static constexpr int WM = 32, WN = 56, NI = WN / 8;  // a warp's
  // Rows in shared memory are padded against bank conflicts.
  static constexpr int A = M + 8, B = N + 8, STAGE = K * (A + B);
  static constexpr int BARRIERS = STAGES * STAGE, FLOATS = BARRIERS + 2 * STAGES;
  static_assert(M * N <= BARRIERS, "the sums fit in the stages, which they overwrite");
  using Params = TmaGemm;

  static int64_t ctas(const Gemm &g) { return ceil_div<int64_t>(g.n, N) * whole_pairs<M>(g.m); }

  static int prepare(TmaGemm &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    int code = encode<2>(out.map[0], g.a, {{g.m, 1, A}, {g.k, g.m, K}});
    if (!code) code = encode<2>(out.map[1], g.b, {{g.n, 1, B}, {g.k, g.n, K / 2}});
    return code ? code : encode<2>(out.map[2], g.c, {{g.n, 1, WN}, {g.m, g.n, WM}});
  }

  static __device__ void multiply(Accumulators<X3, NI> (&sums)[2], const float *a, const float *b, int g) {
#pragma unroll
    for (int k = 0; k < K; k += 8) {
      float fa[2][2][2], fb[NI][2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float4 rows = *(const float4 *)(a + (k + 4 * e) * A);
        fa[0][0][e] = rows.x, fa[0][1][e] = rows.y, fa[1][0][e] = rows.z, fa[1][1][e] = rows.w;
        Columns<NI>::read(fb, e, b + (k + 4 * e) * B, g);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) sums[i].template mma<false>(fa[i], fb);
    }
  }

  // store_shared writes the deltas of a warp to shared memory.
  static __device__ void store_shared(float *warps, const Accumulators<X3, NI> (&sums)[2], Epilogue<TN> epilogue, int g, int t) {
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int row = 4 * g + 2 * i + h;
        Columns<NI>::each(sums[i].c, h, t, [&](int column, auto v) { *(decltype(v) *)(warps + row * WN + column) = epilogue.delta(v); });
      }
  }

  static __device__ void run(const TmaGemm &p, int cta, float *shared) {
    auto barriers = (Mbarrier *)(shared + BARRIERS);
    int tiles_m = whole_pairs<M>(p.m), m0 = cta % tiles_m * M, n0 = cta / tiles_m * N;
    int k_tiles = ceil_div(p.k, K);
    auto load = [&](int k_tile) {
      if (threadIdx.x || k_tile >= k_tiles) return;
      int stage = k_tile % STAGES, half = K / 2 * cluster_ctarank();
      float *to = shared + stage * STAGE;
      mbarrier_arrive_expect_tx(barriers + stage, 4 * STAGE);
      tma_load(to, p.map[0], m0, k_tile * K, barriers + stage);
      tma_load_multicast(to + K * A + half * B, p.map[1], n0, k_tile * K + half, barriers + stage);
    };
    mbarriers_start(barriers, STAGES);
    pdl_wait();
    for (int i = 0; i < STAGES; i++) load(i);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int wm = warp % 2 * WM, wn = warp / 2 * WN;
    Accumulators<X3, NI> sums[2], promoted[2];
#pragma unroll 1
    for (int k_tile = 0; k_tile < k_tiles; k_tile++) {
      int stage = k_tile % STAGES;
      mbarrier_wait(barriers + stage, k_tile / STAGES);
      const float *a = shared + stage * STAGE + t * A + wm + 4 * g, *b = shared + stage * STAGE + K * A + t * B + wn;
      if (m0 < p.m) {  // otherwise whole_pairs' padding
        multiply(sums, a, b, g);
        if (X3) promoted[0].promote(sums[0]), promoted[1].promote(sums[1]);
      }
      // When both CTAs have read the k-tile before, its stage takes a later one.
      if (k_tile > 0) {
        barrier_cluster_wait();
        load(k_tile - 1 + STAGES);
      }
      __syncwarp();
      barrier_cluster_arrive();
    }
    barrier_cluster_wait();
    if (m0 >= p.m) return;

    float *mine = shared + warp * (WM * WN);
    Epilogue<TN> epilogue{p};
    store_shared(mine, X3 ? promoted : sums, epilogue, g, t);
    fence_proxy_async();
    __syncwarp();
    tma_write_tile(epilogue.fused(), p.map[2], n0 + wn, m0 + wm, mine);
  }
};

}  // namespace

int wgrad_large(uintptr_t stream, const Gemm *g, int count) {
  auto kind = [](const Gemm &) { return 0; };
  return g->precision == KERNELS_TF32X3 ? launch_grouped<Large<true>>(stream, g, count, kind) : launch_grouped<Large<false>>(stream, g, count, kind);
}

}  // namespace gemm
