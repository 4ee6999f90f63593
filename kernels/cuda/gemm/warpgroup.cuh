// The pipeline and the consumers of warpgroup.cu.
#ifndef WARPGROUP_CUH
#define WARPGROUP_CUH

#include "epilogue.cuh"
#include "grouped.cuh"
#include "wgmma.cuh"

namespace gemm {

constexpr int WARPGROUP = 128;                       // threads
constexpr int CONSUMERS = 2, WARPS = 4 * CONSUMERS;  // warpgroups that multiply, and their warps
constexpr int LO_WARPS = 3;                          // warps of the producer's warpgroup that write the lo of b

// Extents are those of out[m,n]. In NN and NT out is cᵀ, since k of wgmma's b must be contiguous.
struct Extents {
  int m, n, k;
  __host__ __device__ Extents(const Gemm &g) : m(g.layout == TN ? g.m : g.n), n(g.layout == TN ? g.n : g.m), k(g.k) {}
};

constexpr int TILE_M = 64 * CONSUMERS;

// warpgroup_tiles returns how many tiles of TILE_M×n cover out.
inline int64_t warpgroup_tiles(const Gemm &g, int n) { return ceil_div<int64_t>(Extents(g).m, TILE_M) * ceil_div(Extents(g).n, n); }

// A Policy has the columns of a tile, N, and how many CTAs share its k, SPLIT_K. X3 is 3xtf32.
template <int LAYOUT, bool X3_, int N_, int SPLIT_K_>
struct Policy {
  static constexpr bool X3 = X3_;
  static constexpr int M = TILE_M, N = N_, K = 32, SPLIT_K = SPLIT_K_, THREADS = WARPGROUP * (1 + CONSUMERS);
  // Bytes of a k-tile's a and b, of both, of a stage, which has the lo of b as well, and of the CTA, with 1024 to
  // align the first stage.
  static constexpr int A = 4 * M * K, B = 4 * N * K, LOADED = A + B, STAGE = LOADED + (X3 ? B : 0), STAGES = (192 << 10) / STAGE;
  static constexpr int BARRIERS = STAGES * STAGE, BYTES = 1024 + BARRIERS + 3 * STAGES * int(sizeof(Mbarrier));
  static constexpr bool A_K = LAYOUT == NT;  // k is contiguous in a
  static constexpr int SLAB = 32;            // otherwise TMA loads a in slabs of 32 m: 128 bytes, as wide as the swizzle
  // Tiles are walked in strips 16 tiles high, whose a and b stay in L2 (threadblock rasterization).
  static constexpr int RASTER_M = 16;
  static_assert(SPLIT_K == 1 || 4 * M * N <= BARRIERS, "the sums fit in the stages, which they overwrite");

  static int prepare(TmaGemm &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    Extents e(g);
    const float *a = LAYOUT == TN ? g.a : g.b, *b = LAYOUT == TN ? g.t : g.a;
    TileFormat format = X3 ? TileFormat::SWIZZLE_128B : TileFormat::SWIZZLE_128B_TF32;
    int code = A_K ? encode<2>(out.map[0], a, {{e.k, 1, K}, {e.m, e.k, M}}, format)
                   : encode<2>(out.map[0], a, {{e.m, 1, SLAB}, {e.k, e.m, K}}, format);
    return code ? code : encode<2>(out.map[1], b, {{e.k, 1, K}, {e.n, e.k, N}}, format);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Tile is the index-th tile of a group: its GEMM, its first row and column, and this CTA's k-tiles of it.
template <typename P>
struct Tile {
  int gemm = 0, m0, n0, k_first, k_end;

  __device__ Tile(const Group<TmaGemm> &group, int index) {
    while (index >= group.ends[gemm]) gemm++;
    if (gemm > 0) index -= group.ends[gemm - 1];
    Extents e(group.gemms[gemm]);
    int tiles_m = ceil_div(e.m, P::M), tiles_n = ceil_div(e.n, P::N), k_tiles = ceil_div(e.k, P::K);
    int strip = index / (P::RASTER_M * tiles_n) * P::RASTER_M, rows = min(tiles_m - strip, P::RASTER_M), i = index % (P::RASTER_M * tiles_n);
    m0 = (strip + i % rows) * P::M, n0 = i / rows * P::N;
    int rank = P::SPLIT_K > 1 ? cluster_ctarank() : 0;
    k_first = k_tiles * rank / P::SPLIT_K, k_end = k_tiles * (rank + 1) / P::SPLIT_K;
  }

  __device__ int k_tiles() const { return k_end - k_first; }
};

// Pipeline has the stages, their mbarriers, and the stage that this thread has come to.
template <typename P>
struct Pipeline {
  char *stages;
  Mbarrier *full, *lo_full, *empty;
  int stage = 0, phase = 0;

  __device__ explicit Pipeline(char *shared)
      : stages(shared), full((Mbarrier *)(shared + P::BARRIERS)), lo_full(full + P::STAGES), empty(lo_full + P::STAGES) {}

  __device__ void start() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < P::STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(lo_full + i, LO_WARPS), mbarrier_init(empty + i, WARPS);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  __device__ void next() {
    if (++stage == P::STAGES) stage = 0, phase ^= 1;
  }

  __device__ char *stage_base() const { return stages + stage * P::STAGE; }
  __device__ void wait_full() {
    mbarrier_wait(full + stage, phase);
    if (P::X3) mbarrier_wait(lo_full + stage, phase);
  }
  // wait_empty waits for the phase before; the first time that is phase -1, which counts as ended.
  __device__ void wait_empty() { mbarrier_wait(empty + stage, phase ^ 1); }
  __device__ void release(int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + stage);
  }

  // load loads the k-tiles of a tile. The producer calls it, one thread.
  __device__ void load(const Group<TmaGemm> &group, int index) {
    Tile<P> tile(group, index);
    const TmaGemm &g = group.gemms[tile.gemm];
    for (int k = tile.k_first * P::K; k < tile.k_end * P::K; k += P::K, next()) {
      wait_empty();
      Mbarrier *barrier = full + stage;
      mbarrier_arrive_expect_tx(barrier, P::LOADED);
      if (P::A_K) {
        tma_load((float *)stage_base(), g.map[0], k, tile.m0, barrier);
      } else {
#pragma unroll
        for (int i = 0; i < P::M; i += P::SLAB) tma_load((float *)stage_base() + i * P::K, g.map[0], tile.m0 + i, k, barrier);
      }
      tma_load((float *)(stage_base() + P::A), g.map[1], k, tile.n0, barrier);
    }
  }
};

// write_lo_b writes this thread's share of the lo of b, what truncation drops, behind each k-tile's b.
template <typename P>
__device__ void write_lo_b(Pipeline<P> &pipeline, int k_tiles) {
  for (int i = 0; i < k_tiles; i++, pipeline.next()) {
    mbarrier_wait(pipeline.full + pipeline.stage, pipeline.phase);
    float4 *b = (float4 *)(pipeline.stage_base() + P::A), *lo = b + P::B / 16;
#pragma unroll 4
    for (int e = threadIdx.x - 32; e < P::B / 16; e += 32 * LO_WARPS) {
      float4 v = b[e];
      lo[e] = make_float4(v.x - truncated(v.x), v.y - truncated(v.y), v.z - truncated(v.z), v.w - truncated(v.w));
    }
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(pipeline.lo_full + pipeline.stage);
  }
}

// Consumer is a lane's part of a tile: columns n, n+1, n+8, n+9, ... of rows m and m+1, neighbours so that the
// epilogue reads and writes float2. Lane 4g + q has these of the 16 rows of its warp (A_K), or of the 32 rows of two
// warps (!A_K):
//
//   A_K   2g and 2g+1, in d[4j] and d[4j+2], or the other way round if g >= 4: then the eight rows that ldmatrix
//         reads at once all differ mod 8, and their swizzled chunks are in different banks
//   !A_K  4c + 2(g%2) and the next one, which a lane reads by float2. c, the 16-byte chunk of a line of k, is
//         0 4 1 5 in one warp and 2 6 3 7 in the other, by g/2: swizzled, the chunks of four k are in different
//         banks
template <int LAYOUT, typename P>
struct Consumer {
  const int thread = threadIdx.x - WARPGROUP, warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
  const int chunk = g / 2 % 2 * 4 + g / 4 + warp % 2 * 2;
  const int m = P::A_K ? 16 * warp + 2 * g : 32 * (warp / 2) + 4 * chunk + 2 * (g % 2), n = 2 * q;
  unsigned offset_a;  // of the lane's first element in a k-tile of a, in bytes
  float d[P::N / 2], sum[P::X3 ? P::N / 2 : 1];  // wgmma's accumulators; in 3xtf32, what was promoted

  __device__ Consumer() {
    if (P::A_K) {
      int r = lane % 8, row = 16 * warp + 2 * r + ((r < 4) == (lane / 8 % 2));
      offset_a = row * 128 + (lane / 16 ^ row % 8) * 16;
    } else {
      offset_a = warp / 2 * (4 * P::SLAB * P::K) + q * 128 + (chunk ^ q) * 16 + g % 2 * 8;
    }
  }

  // load_a reads the lane's fragment of a for the k8-th eight k of the k-tile, and in 3xtf32 splits it.
  __device__ void load_a(float (&a)[4], float (&lo)[4], const char *tile, int k8) const {
    if constexpr (P::A_K) {
      ldmatrix(a, tile + (offset_a ^ k8 * 32));
    } else {
      float2 low = *(const float2 *)(tile + offset_a + k8 * 1024), high = *(const float2 *)(tile + (offset_a ^ 64) + 512 + k8 * 1024);
      a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
    }
    if (P::X3) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float hi = rounded(a[i]);
        lo[i] = a[i] - hi, a[i] = hi;
      }
    }
  }

  // promote adds d to sum and sets it to zero: see Accumulators::promote in mma.cuh.
  __device__ void promote() {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < P::N / 2; i++) sum[P::X3 ? i : 0] += d[i], d[i] = 0;
  }

  // multiply sums over k_tiles. a is read two wgmma groups ahead, into registers of a group that has ended: there are
  // four sets of registers, and at most two groups under way.
  __device__ void multiply(Pipeline<P> &pipeline, int k_tiles) {
#pragma unroll
    for (int i = 0; i < P::N / 2; i++) d[i] = 0, sum[P::X3 ? i : 0] = 0;
    float a[4][4], lo[4][4];
    auto add = [&](int k8, uint64_t b) {
      b += k8 * NEXT_EIGHT_K;
      wgmma_fence();
      if constexpr (P::X3) {
        wgmma(d, lo[k8], b);
        wgmma(d, a[k8], b + (P::B >> 4));
      }
      wgmma(d, a[k8], b);
      wgmma_commit_group();
      wgmma_wait_group<2>();
    };
    pipeline.wait_full();
    load_a(a[0], lo[0], pipeline.stage_base(), 0);
    load_a(a[1], lo[1], pipeline.stage_base(), 1);
    int before = 0;
    for (int i = 0; i < k_tiles; i++) {
      const char *tile = pipeline.stage_base();
      uint64_t b = descriptor(tile + P::A);
      int stage = pipeline.stage;
      pipeline.next();
      add(0, b);
      load_a(a[2], lo[2], tile, 2);
      add(1, b);
      if (i > 0) pipeline.release(before);
      before = stage;
      if (P::X3 && thread >= WARPGROUP) promote();  // one warpgroup while the other multiplies
      load_a(a[3], lo[3], tile, 3);
      add(2, b);
      if (i + 1 == k_tiles) {
        add(3, b);
        break;
      }
      pipeline.wait_full();
      load_a(a[0], lo[0], pipeline.stage_base(), 0);
      add(3, b);
      load_a(a[1], lo[1], pipeline.stage_base(), 1);
      if (P::X3 && thread < WARPGROUP) promote();
    }
    wgmma_wait_group<0>();
    pipeline.release(before);
    if (P::X3) {
#pragma unroll
      for (int i = 0; i < P::N / 2; i++) d[i] += sum[P::X3 ? i : 0];
    }
  }

  // reduce_split_k adds the sums of the cluster's CTAs in the order of k, and leaves this CTA's 1/SPLIT_K of the
  // columns in d[0], d[1], ...
  __device__ void reduce_split_k(float *sums) {
    constexpr int OWN = P::N / 2 / P::SPLIT_K;
#pragma unroll
    for (int i = 0; i < P::N / 2; i += 4) *(float4 *)(sums + (i / 4 * WARPS * 32 + thread) * 4) = make_float4(d[i], d[i + 1], d[i + 2], d[i + 3]);
    barrier_cluster();
#pragma unroll
    for (int r = 0; r < P::SPLIT_K; r++) {
      unsigned from = mapa(sums + ((OWN / 4 * cluster_ctarank()) * WARPS * 32 + thread) * 4, r);
#pragma unroll
      for (int i = 0; i < OWN; i += 4) {
        float4 v = ld_shared_cluster(from + i / 4 * (WARPS * 32 * 16));
        d[i] = r ? d[i] + v.x : v.x, d[i + 1] = r ? d[i + 1] + v.y : v.y, d[i + 2] = r ? d[i + 2] + v.z : v.z, d[i + 3] = r ? d[i + 3] + v.w : v.w;
      }
    }
    barrier_cluster_arrive();
  }

  __device__ void store(const Gemm &gemm, int m0, int n0) {
    constexpr int COLUMNS = P::N / P::SPLIT_K, BATCH = COLUMNS < 64 ? COLUMNS : 64;
    Extents e(gemm);
    Epilogue<LAYOUT> epilogue{gemm};
    int x = m0 + m, y0 = n0 + n + (P::SPLIT_K > 1 ? cluster_ctarank() * COLUMNS : 0);
    bool swapped = P::A_K && g >= 4;
    if (x >= e.m) return;
#pragma unroll
    for (int first = 0; first < COLUMNS; first += BATCH) {
      // All loads come before any store: a load behind a store waits for it.
      float2 old[BATCH / 8][2] = {};
      if (LAYOUT == NT && epilogue.fused()) {
#pragma unroll
        for (int j = 0; j < BATCH / 8; j++)
#pragma unroll
          for (int o = 0; o < 2; o++) {
            int y = y0 + first + 8 * j + o;
            if (y < e.n) old[j][o] = __ldcg((const float2 *)(epilogue.source() + int64_t(y) * e.m + x));
          }
      }
#pragma unroll
      for (int j = 0; j < BATCH / 8; j++) {
        int y = y0 + first + 8 * j;
        const float *sum = d + (first / 8 + j) * 4;
        float s[2][2] = {{swapped ? sum[2] : sum[0], swapped ? sum[3] : sum[1]}, {swapped ? sum[0] : sum[2], swapped ? sum[1] : sum[3]}};  // of x, y
#pragma unroll
        for (int o = 0; o < 2; o++) {
          if constexpr (LAYOUT == TN) {
            float *to = gemm.c + int64_t(x + o) * e.n + y;
            if (y >= e.n) continue;
            float2 delta = epilogue.delta(x + o, y, make_float2(s[o][0], s[o][1]));
            if (epilogue.fused()) red_add(to, delta.x, delta.y);
            else *(float2 *)to = delta;
          } else {
            float2 v = epilogue(y + o, x, make_float2(s[0][o], s[1][o]), old[j][o]);
            if (y + o < e.n) *(float2 *)(gemm.c + int64_t(y + o) * e.m + x) = v;
            s[0][o] = v.x, s[1][o] = v.y;
          }
        }
        if (LAYOUT == NT && gemm.t && y < e.n) {
#pragma unroll
          for (int o = 0; o < 2; o++) *(float2 *)(gemm.t + int64_t(x + o) * e.n + y) = make_float2(s[o][0], s[o][1]);
        }
      }
    }
  }
};

#endif

}  // namespace gemm

#endif
