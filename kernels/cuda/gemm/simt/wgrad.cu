// wgrads of a small batch on the CUDA cores, in float32. A grouped GEMM: those of all layers in one launch.
// All of k, the batch, is in shared memory at once: up to SMALL_BATCH rows. The version by TMA has 64 of them
// there at a time, and takes up to twice as many.
#include "gemm/epilogue.cuh"
#include "gemm/grouped.cuh"
#include "gemm/pipeline.cuh"

namespace gemm {

namespace {

template <int ARCH_, int THREADS_, int CTAS_, int OCCUPANCY_, int CLUSTER_>
struct Shape {
  static constexpr int ARCH = ARCH_, THREADS = THREADS_, CTAS = CTAS_, OCCUPANCY = OCCUPANCY_, CLUSTER = CLUSTER_;
};

// Wgrad has tiles of 64×80: 784×784 is 130. Two slices of four warps take every other k (intra-CTA split-K).
// A thread has 8×5 sums of its slice's k; it finishes half of them, its partner in the other slice the other
// half. The sums of thread (ty, tx) of 8×16:
//
//                  columns 4tx..4tx+3   64+tx
//   rows 4ty..     0..3                 4        finished by slice 0
//   rows 32+4ty..  0..3                 4        finished by slice 1
template <bool U8>
struct Wgrad : Shape<80, 256, 2, 0, 1> {
  static constexpr int BM = 64, BN = 80, SLICE = THREADS / 2, UNROLL = 8;
  static constexpr int FLOATS = SMALL_BATCH * (BM + BN);
  using Params = Gemm;
  static int64_t ctas(const Gemm &g) { return tiles(g, BM, BN); }
  static int prepare(Gemm &out, const Gemm &g) { return out = g, cudaSuccess; }

  const Gemm &g;
  float *shared, *shared_b;
  int m0, n0, lines;  // lines: one for each k, in shared memory
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / 4;
  int ty = warp % 2 * 4 + lane % 2 + lane / 16 * 2, tx = warp / 2 % 2 * 8 + lane / 2 % 8;
  int y, x, single;  // the first row that this thread finishes, its first column, and its fifth
  float old[4][5] = {}, sum[8][5] = {};

  __device__ Wgrad(const Gemm &gemm, int cta, float *shared_) : g(gemm), shared(shared_), shared_b(shared_ + SMALL_BATCH * BM) {
    int tiles_n = ceil_div(g.n, BN);
    m0 = cta / tiles_n * BM, n0 = cta % tiles_n * BN;
    lines = ceil_div(g.k, 2 * UNROLL) * (2 * UNROLL);
    y = m0 + 32 * slice + 4 * ty, x = n0 + 4 * tx, single = n0 + 64 + tx;
  }

  __device__ void load_a() {
    unsigned to = shared_address(shared);
#pragma unroll 4
    for (int e = threadIdx.x; e < lines * (BM / 4); e += THREADS) {
      int k = e / (BM / 4), m = m0 + e % (BM / 4) * 4;
      bool valid = k < g.k && m < g.m;
      if (U8) store_pixels(shared + 4 * e, valid ? pixels((const uint8_t *)g.a + int64_t(g.indices[k]) * g.m + m) : 0);
      else cp_async<4>(to + 16 * e, g.a + int64_t(k) * g.m + m, valid);
    }
  }

  __device__ void load_b() {
    unsigned to = shared_address(shared_b);
#pragma unroll 4
    for (int e = threadIdx.x; e < lines * (BN / 4); e += THREADS) {
      int k = e / (BN / 4), n = n0 + e % (BN / 4) * 4;
      cp_async<4>(to + 16 * e, g.b + int64_t(k) * g.n + n, k < g.k && n < g.n);
    }
  }

  __device__ void read_old() {
    if (!Epilogue<TN>{g}.fused()) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (y + i >= g.m) continue;
      const float *from = g.c + int64_t(y + i) * g.n;
      float4 v = ld_float4(true, from + x, g.n - x);
      old[i][0] = v.x, old[i][1] = v.y, old[i][2] = v.z, old[i][3] = v.w;
      if (single < g.n) old[i][4] = __ldcg(from + single);
    }
  }

  __device__ void multiply() {
    const float *as = shared + slice * BM + 4 * ty, *bs = shared_b + slice * BN + 4 * tx, *singles = shared_b + slice * BN + 64 + tx;
#pragma unroll 1
    for (int k = 0; k < lines; k += 2 * UNROLL) {
#pragma unroll
      for (int u = 0; u < 2 * UNROLL; u += 2) {
        float4 a0 = *(const float4 *)(as + u * BM), a1 = *(const float4 *)(as + u * BM + 32), v = *(const float4 *)(bs + u * BN);
        float a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w}, b[5] = {v.x, v.y, v.z, v.w, singles[u * BN]};
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
          for (int j = 0; j < 5; j++) sum[i][j] += a[i] * b[j];
      }
      as += 2 * UNROLL * BM, bs += 2 * UNROLL * BN, singles += 2 * UNROLL * BN;
    }
  }

  // exchange sends the partner the sums that it finishes, and adds its sums to this thread's.
  __device__ void exchange(float (&result)[4][5]) {
    __syncthreads();
    float4 *sent = (float4 *)shared + threadIdx.x, *received = (float4 *)shared + (threadIdx.x ^ SLICE);
#pragma unroll
    for (int i = 0; i < 5; i++) {
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int f = 4 * i + j;
        v[j] = slice ? sum[f / 5][f % 5] : sum[4 + f / 5][f % 5];
      }
      sent[i * THREADS] = make_float4(v[0], v[1], v[2], v[3]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 5; i++) {
      float4 v = received[i * THREADS];
      float other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int f = 4 * i + j, row = f / 5, column = f % 5;
        result[row][column] = (slice ? sum[4 + row][column] : sum[row][column]) + other[j];
      }
    }
  }

  static __device__ void run(const Gemm &g, int cta, float *shared) {
    Wgrad w(g, cta, shared);
    // Load first what may be prefetched, then the rest.
#pragma unroll 1
    for (int waited = 0; waited < 2; waited++) {
      if (waited) pdl_wait();
      if (g.prefetch_a != waited) w.load_a();
      if (g.prefetch_b != waited) w.load_b();
      if (g.prefetch_c != waited) w.read_old();
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    w.multiply();
    float v[4][5];
    w.exchange(v);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (w.y + i >= g.m) continue;
#pragma unroll
      for (int j = 0; j < 5; j++) v[i][j] = Epilogue<TN>{g}(v[i][j], w.old[i][j]);
      float *to = g.c + int64_t(w.y + i) * g.n;
      if (w.x < g.n) *(float4 *)(to + w.x) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
      if (w.single < g.n) to[w.single] = v[i][4];
    }
  }
};

// WgradTma has tiles of 112×56. The CTAs of a pair have the same rows, and TMA stores or adds deltas, as in
// tensorop/wgrad.cu. Thread (ty, tx) of 16×8 has 7×7 sums:
//
//   rows     4ty.. of the first 64, 2ty.. of the next 32, ty of the last 16
//   columns  4tx.. of the first 32, 2tx.. of the next 16, tx of the last eight
template <bool U8>
struct WgradTma : Shape<90, 128, 4, 3, CTA_PAIR> {
  static constexpr int BM = 112, BN = 56, BK = 64;
  // EACH is how many lines a warp writes.
  static constexpr int BARRIER = BK * (BM + BN), FLOATS = BARRIER + 2, EACH = BM / 4;
  static constexpr int TM = 7, TN = 7;
  static_assert(BM / TM * (BN / TN) == THREADS && BN <= BK, "every thread has sums, which overwrite the first operand");
  using Params = TmaGemm;

  static int64_t ctas(const Gemm &g) { return ceil_div<int64_t>(g.m, BM) * whole_pairs<BN>(g.n); }

  static int prepare(TmaGemm &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    int code = U8 ? cudaSuccess : encode<2>(out.map[0], g.a, {{g.m, 1, BM}, {g.k, g.m, BK / 2}});
    if (!code) code = encode<2>(out.map[1], g.b, {{g.n, 1, BN}, {g.k, g.n, BK}});
    return code ? code : encode<2>(out.map[2], g.c, {{g.n, 1, BN}, {g.m, g.n, EACH}});
  }

  const TmaGemm &g;
  float *shared, *shared_b;
  Mbarrier *barrier;
  int m0, n0, ty = threadIdx.x / 8, tx = threadIdx.x % 8;
  float sum[TM][TN] = {};

  __device__ WgradTma(const TmaGemm &gemm, int cta, float *shared_)
      : g(gemm), shared(shared_), shared_b(shared_ + BK * BM), barrier((Mbarrier *)(shared_ + BARRIER)) {
    int tiles_n = whole_pairs<BN>(g.n);
    m0 = cta / tiles_n * BM, n0 = cta % tiles_n * BN;
  }

  __device__ void load_a(int k0) {
    if (U8) {
      for (int e = threadIdx.x; e < BK * (BM / 4); e += THREADS) {
        int k = k0 + e / (BM / 4), m = m0 + e % (BM / 4) * 4;
        bool valid = k < g.k && m < g.m;
        store_pixels(shared + 4 * e, valid ? pixels((const uint8_t *)g.a + int64_t(g.indices[k]) * g.m + m) : 0);
      }
    } else if (threadIdx.x == 0) {
      int half = BK / 2 * cluster_ctarank();
      tma_load_multicast(shared + half * BM, g.map[0], m0, k0 + half, barrier);
    }
  }

  __device__ void load_b(int k0) {
    if (threadIdx.x) return;
    mbarrier_arrive_expect_tx(barrier, 4 * BK * (BN + (U8 ? 0 : BM)));
    tma_load(shared_b, g.map[1], n0, k0, barrier);
  }

  __device__ void multiply() {
    const float *a4 = shared + 4 * ty, *a2 = shared + 64 + 2 * ty, *a1 = shared + 96 + ty;
    const float *b4 = shared_b + 4 * tx, *b2 = shared_b + 32 + 2 * tx, *b1 = shared_b + 48 + tx;
#pragma unroll 8
    for (int k = 0; k < BK; k++) {
      float4 af = *(const float4 *)(a4 + k * BM), bf = *(const float4 *)(b4 + k * BN);
      float2 at = *(const float2 *)(a2 + k * BM), bt = *(const float2 *)(b2 + k * BN);
      float a[TM] = {af.x, af.y, af.z, af.w, at.x, at.y, a1[k * BM]}, b[TN] = {bf.x, bf.y, bf.z, bf.w, bt.x, bt.y, b1[k * BN]};
#pragma unroll
      for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) sum[i][j] += a[i] * b[j];
    }
  }

  __device__ void finish() {
    __syncthreads();
    Epilogue<TN> epilogue{g};
#pragma unroll
    for (int i = 0; i < TM; i++) {
      int row = i < 4 ? 4 * ty + i : i < 6 ? 64 + 2 * ty + i - 4 : 96 + ty;
      float *to = shared + row * BN, *s = sum[i];
      *(float4 *)(to + 4 * tx) = epilogue.delta(make_float4(s[0], s[1], s[2], s[3]));
      *(float2 *)(to + 32 + 2 * tx) = epilogue.delta(make_float2(s[4], s[5]));
      to[48 + tx] = epilogue.delta(s[6]);
    }
    fence_proxy_async();
    __syncthreads();
    int line = threadIdx.x / 32 * EACH;
    tma_write_tile(epilogue.fused(), g.map[2], n0, m0 + line, shared + line * BN);
  }

  static __device__ void run(const TmaGemm &g, int cta, float *shared) {
    WgradTma w(g, cta, shared);
    mbarriers_start(w.barrier, 1);
    if (g.prefetch_a) w.load_a(0);
    if (g.prefetch_b) w.load_b(0);
    pdl_wait();
    if (!g.prefetch_a) w.load_a(0);
    if (!g.prefetch_b) w.load_b(0);
    for (int k0 = 0; k0 == 0 || k0 < g.k; k0 += BK) {
      if (k0 > 0) {
        __syncthreads();
        if (!U8) barrier_cluster();
        w.load_a(k0), w.load_b(k0);
      }
      mbarrier_wait(w.barrier, k0 / BK);
      if (U8) __syncthreads();
      if (w.n0 < g.n) w.multiply();  // otherwise whole_pairs' padding
    }
    w.finish();
  }
};

// Narrow is the wgrad of a classifier, of at most 16 columns, in a group with others of kind Other. A thread
// has eight columns of one row.
template <typename Other>
struct Narrow : Other {
  static constexpr int BM = Other::THREADS / 2, BN = 16, FLOATS = 2 * SMALL_BATCH * BN, UNROLL = 32;
  static int64_t ctas(const Gemm &g) { return ceil_div(tiles(g, BM, BN), Other::CLUSTER) * Other::CLUSTER; }
  static int prepare(typename Other::Params &out, const Gemm &g) { return static_cast<Gemm &>(out) = g, cudaSuccess; }

  static __device__ void run(const Gemm &g, int cta, float *shared) {
    int m = cta * BM + threadIdx.x / 2, n = threadIdx.x % 2 * 8;
    if (cta * BM >= g.m) return;
    const float *a = g.a + min(m, g.m - 1);
    float v[UNROLL];
    auto read = [&](int k0) {
#pragma unroll
      for (int k = 0; k < UNROLL; k++) v[k] = k0 + k < g.k ? __ldcg(a + int64_t(k0 + k) * g.m) : 0;
    };
    if (g.prefetch_a) read(0);
    pdl_wait();
    if (!g.prefetch_a) read(0);
    for (int e = threadIdx.x; e < ceil_div(g.k, UNROLL) * UNROLL * BN; e += Other::THREADS)
      shared[e] = e / BN < g.k && e % BN < g.n ? __ldcg(g.b + int64_t(e / BN) * g.n + e % BN) : 0;
    __syncthreads();
    Epilogue<TN, true> epilogue{g};
    float sum[8] = {};
    for (int k0 = 0; k0 < g.k; k0 += UNROLL) {
      if (k0 > 0) read(k0);
#pragma unroll
      for (int k = 0; k < UNROLL; k++)
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += v[k] * shared[(k0 + k) * BN + n + j];
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (m < g.m && n + j < g.n) {
        float *c = g.c + int64_t(m) * g.n + n + j;
        *c = epilogue(sum[j], epilogue.fused() ? __ldcg(c) : 0);
      }
  }
};

// launch_wgrads launches a group, each GEMM as Inner<uint8 input> or Narrow.
template <template <bool> class Inner>
int launch_wgrads(uintptr_t stream, const Gemm *g, int count) {
  return launch_grouped<Narrow<Inner<false>>, Inner<true>, Inner<false>>(stream, g, count, [](const Gemm &one) {
    return one.narrow() ? 0 : one.indices ? 1 : 2;
  });
}

}  // namespace

int wgrad_simt(uintptr_t stream, const Gemm *g, int count) { return launch_wgrads<Wgrad>(stream, g, count); }

int wgrad_simt_tma(uintptr_t stream, const Gemm *g, int count) { return launch_wgrads<WgradTma>(stream, g, count); }

}  // namespace gemm
