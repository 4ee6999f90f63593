// wgrads of a small batch on the tensor cores, in tf32 and 3xtf32. A grouped GEMM: those of all layers in one
// launch.
//
// A CTA computes a tile of 112×48. With TMA it is 112×56: four layers of 784×784 are about three tiles for
// each SM. Each of seven warps has 16 rows of a tile; a k-tile is 64. With TMA the CTAs of a pair have the
// same rows of x, and each loads half of them for both by multicast; TMA stores a tile, or adds it to the
// weights: each element once, so that the result does not depend on the order of CTAs. Without TMA the old
// weights are loaded to shared memory.
//
// Lane 4g + t has rows 2g and 2g+1 of its warp's 16, the columns of wgrad.cuh, and of eight k t and t+4.
#include "gemm/epilogue.cuh"
#include "gemm/grouped.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/tensorop/wgrad.cuh"

namespace gemm {

namespace {

constexpr int WARPS = 7, K = 64;

template <bool TMA>
struct Shape {
  static constexpr int ARCH = TMA ? 90 : 80, THREADS = 32 * WARPS;
  static constexpr int CTAS = TMA ? 4 : 2, OCCUPANCY = TMA ? 3 : 0, CLUSTER = TMA ? CTA_PAIR : 1;
  using Params = typename std::conditional<TMA, TmaGemm, Gemm>::type;
};

// With B_ALIGNED the rows of dy and c are whole float4.
template <bool X3, bool U8, bool TMA, bool B_ALIGNED = true, int NI = TMA ? 7 : 6>
struct Wgrad : Shape<TMA> {
  using Base = Shape<TMA>;
  using Params = typename Base::Params;
  static constexpr int M = 16 * WARPS, N = 8 * NI;
  // Rows in shared memory are padded against bank conflicts.
  static constexpr int A = M + 8, B = N % 16 ? N : N + 8, C = TMA ? N : N + 8;
  static constexpr int BARRIER = K * A + K * B + (TMA ? 0 : M * C), FLOATS = BARRIER + 2;
  static_assert(!TMA || M * C <= K * A, "the sums fit in the first operand, which they overwrite");

  static int64_t ctas(const Gemm &g) { return ceil_div<int64_t>(g.m, M) * whole_pairs<N>(g.n); }

  // lines returns how many k TMA loads at once. More than eight would be mostly zeros if k is at most eight.
  static __host__ __device__ int lines(const Gemm &g) { return g.k <= 8 ? 8 : K; }

  static int prepare(Params &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    if constexpr (TMA) {
      int code = U8 ? cudaSuccess : encode<2>(out.map[0], g.a, {{g.m, 1, A}, {g.k, g.m, lines(g) / 2}});
      if (!code) code = encode<2>(out.map[1], g.b, {{g.n, 1, B}, {g.k, g.n, lines(g)}});
      return code ? code : encode<2>(out.map[2], g.c, {{g.n, 1, N}, {g.m, g.n, 16}});
    }
    return cudaSuccess;
  }

  const Params &p;
  float *shared_a, *shared_b, *shared_c;
  Mbarrier *barrier;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int m0, n0;
  Accumulators<X3, NI> sums;

  __device__ Wgrad(const Params &gemm, int cta, float *shared)
      : p(gemm), shared_a(shared), shared_b(shared + K * A), shared_c(TMA ? shared_a : shared_b + K * B), barrier((Mbarrier *)(shared + BARRIER)) {
    int tiles_n = whole_pairs<N>(p.n);
    m0 = cta / tiles_n * M, n0 = cta % tiles_n * N;
  }

  __device__ void load_a(int k0) {
    if constexpr (TMA && !U8) {
      if (threadIdx.x) return;
      int half = lines(p) / 2 * cluster_ctarank();
      tma_load_multicast(shared_a + half * A, p.map[0], m0, k0 + half, barrier);
    } else {
      constexpr int LINE = M / 4, APART = Base::THREADS / LINE;
      int m = threadIdx.x % LINE * 4, line = threadIdx.x / LINE, left = p.m - m0 - m;
#pragma unroll
      for (int i = 0; i < K / APART; i++) {
        int k = line + i * APART;
        float *to = shared_a + k * A + m;
        bool valid = k0 + k < p.k && left > 0;
        if (U8) store_pixels(to, valid ? pixels((const uint8_t *)p.a + int64_t(p.indices[k0 + k]) * p.m + m0 + m) : 0);
        else cp_async<4>(to, p.a + int64_t(k0 + k) * p.m + m0 + m, valid);
      }
    }
  }

  __device__ void load_b(int k0) {
    if constexpr (TMA) {
      if (threadIdx.x) return;
      mbarrier_arrive_expect_tx(barrier, 4 * lines(p) * (B + (U8 ? 0 : A)));
      tma_load(shared_b, p.map[1], n0, k0, barrier);
    } else {
      constexpr int LINE = N / 4, APART = 16;
      static_assert(LINE * APART <= Base::THREADS && K % APART == 0, "a float4 a thread");
      int n = threadIdx.x % LINE * 4, line = threadIdx.x / LINE;
      if (line >= APART) return;
#pragma unroll
      for (int i = 0; i < K / APART; i++) {
        int k = line + i * APART;
        cp_async_float4(B_ALIGNED, unsigned(__cvta_generic_to_shared(shared_b + k * B + n)), p.b + int64_t(k0 + k) * p.n + n0 + n,
                        k0 + k < p.k ? p.n - n0 - n : 0);
      }
    }
  }

  __device__ void load_old() {
    if constexpr (!TMA) {
      if (!Epilogue<TN>{p}.fused()) return;
#pragma unroll
      for (int e = lane; e < 16 * N / 4; e += 32) {
        int row = 16 * warp + e / (N / 4), n = e % (N / 4) * 4;
        cp_async_float4(B_ALIGNED, unsigned(__cvta_generic_to_shared(shared_c + row * C + n)), p.c + int64_t(m0 + row) * p.n + n0 + n,
                        m0 + row < p.m ? p.n - n0 - n : 0);
      }
    }
  }

  __device__ void multiply() {
    Accumulators<X3, NI> promoted;
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += K) {
      if (k0 > 0) {
        __syncthreads();
        if (TMA && !U8) barrier_cluster();
        load_a(k0), load_b(k0);
      }
      if (TMA) mbarrier_wait(barrier, k0 / K);
      if (!TMA || U8) {
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncthreads();
      }
      const float *a = shared_a + t * A + 16 * warp + 2 * g, *b = shared_b + t * B;
      if (n0 >= p.n) continue;  // whole_pairs' padding
      const int steps = p.k - k0 <= 8 ? 1 : K / 8;
#pragma unroll(4)
      for (int step = 0; step < steps; step++) {
        const int k = 8 * step;
        float fa[2][2], fb[NI][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float2 rows = *(const float2 *)(a + (k + 4 * e) * A);
          fa[0][e] = rows.x, fa[1][e] = rows.y;
          Columns<NI>::read(fb, e, b + (k + 4 * e) * B, g);
        }
        sums.template mma<U8>(fa, fb);
      }
      if (!TMA) promoted.promote(sums);
    }
    if (!TMA) sums = promoted;
    else __syncthreads();
  }

  __device__ void finish() {
    Epilogue<TN, true> epilogue{p};
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = 16 * warp + 2 * g + h;
      Columns<NI>::each(sums.c, h, t, [&](int column, auto v) {
        auto *at = (decltype(v) *)(shared_c + row * C + column);
        if constexpr (TMA) {
          *at = epilogue.delta(v);
        } else {
          static_assert(sizeof v == 16, "whole float4");
          int m = m0 + row, n = n0 + column;
          float4 w = epilogue(v, *at);
          int left = m < p.m ? p.n - n : 0;
          if (left > 0) st_float4(B_ALIGNED, p.c + int64_t(m) * p.n + n, w, left);
        }
      });
    }
    if constexpr (TMA) {
      fence_proxy_async();
      __syncwarp();
      tma_write_tile(epilogue.fused(), p.map[2], n0, m0 + 16 * warp, shared_c + 16 * warp * C);
    }
  }

  static __device__ void run(const Params &p, int cta, float *shared) {
    Wgrad w(p, cta, shared);
    if (!TMA && w.n0 >= p.n) return;  // whole_pairs' padding
    if (TMA) mbarriers_start(w.barrier, 1);
    if (p.prefetch_a) w.load_a(0);
    if (p.prefetch_b) w.load_b(0);
    if (p.prefetch_c) w.load_old();
    pdl_wait();
    if (!p.prefetch_a) w.load_a(0);
    if (!p.prefetch_b) w.load_b(0);
    if (!p.prefetch_c) w.load_old();
    w.multiply();
    w.finish();
  }
};

// Narrow is the wgrad of a classifier, of ten columns, in a group with other layers. A CTA computes two
// tiles: four layers of 784×784 and their classifier are then three CTAs for each SM, one wave.
template <bool X3, bool TMA>
struct Narrow : Shape<TMA> {
  using Inner = Wgrad<X3, false, false, false, 2>;
  static constexpr int FLOATS = Inner::FLOATS, EACH = 2;
  static int64_t ctas(const Gemm &g) { return whole_pairs<1>(tiles(g, EACH * Inner::M, Inner::N)); }
  static int prepare(typename Shape<TMA>::Params &out, const Gemm &g) { return static_cast<Gemm &>(out) = g, cudaSuccess; }
  static __device__ void run(const Gemm &g, int cta, float *shared) {
    for (int tile = EACH * cta; tile < EACH * (cta + 1) && tile * Inner::M < g.m; tile++) {
      if (tile > EACH * cta) __syncthreads();
      Inner::run(g, tile * CTA_PAIR, shared);
    }
  }
};

template <bool X3, bool TMA>
int launch_wgrads(uintptr_t stream, const Gemm *g, int count) {
  return launch_grouped<Narrow<X3, TMA>, Wgrad<X3, true, TMA>, Wgrad<X3, false, TMA>>(stream, g, count, [](const Gemm &one) {
    return one.narrow() ? 0 : one.indices ? 1 : 2;
  });
}

template <bool TMA>
int launch_precision(uintptr_t stream, const Gemm *g, int count) {
  return g->precision == KERNELS_TF32X3 ? launch_wgrads<true, TMA>(stream, g, count) : launch_wgrads<false, TMA>(stream, g, count);
}

}  // namespace

int64_t wgrad_tensorop_tiles(const Gemm &g) {
  using W = Wgrad<false, false, false>;
  return tiles(g, W::M, W::N);
}

int wgrad_tensorop(uintptr_t stream, const Gemm *g, int count) { return launch_precision<false>(stream, g, count); }

int wgrad_tensorop_tma(uintptr_t stream, const Gemm *g, int count) { return launch_precision<true>(stream, g, count); }

}  // namespace gemm
