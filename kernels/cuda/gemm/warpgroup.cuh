// What a CTA of warpgroup.cu does: its pipeline, and a consumer's part of a tile.
#ifndef WARPGROUP_CUH
#define WARPGROUP_CUH

#include "epilogue.cuh"
#include "grouped.cuh"
#include "wgmma.cuh"

namespace gemm {

// Threads of a warpgroup; warpgroups that multiply, and their warps; warps of the first one that split b.
constexpr int WARPGROUP = 128, CONSUMERS = 2, WARPS = 4 * CONSUMERS, SPLITTERS = 3;

// Extents are those of out[m,n].
struct Extents {
  int m, n, k;
  __host__ __device__ Extents(const Gemm &g) : m(g.layout == TN ? g.m : g.n), n(g.layout == TN ? g.n : g.m), k(g.k) {}
};

constexpr int TILE_M = 64 * CONSUMERS;

// tiles is how many of TILE_M×n there are.
inline int64_t tiles(const Gemm &g, int n) { return ceil_div(Extents(g).m, TILE_M) * ceil_div(Extents(g).n, n); }

// A Policy: X3 is 3xtf32, N the columns of a tile, SPLIT how many CTAs share one.
template <int LAYOUT, bool X3_, int N_, int SPLIT_>
struct Policy {
  static constexpr bool X3 = X3_;
  static constexpr int M = TILE_M, N = N_, K = 32, SPLIT = SPLIT_, THREADS = WARPGROUP * (1 + CONSUMERS);
  // Bytes of a k-tile's a and b, of a stage, with b's lo, and of all: 1024 more align them.
  static constexpr int A = 4 * M * K, B = 4 * N * K, LOADED = A + B, STAGE = LOADED + (X3 ? B : 0), STAGES = (192 << 10) / STAGE;
  static constexpr int BARRIERS = STAGES * STAGE, BYTES = 1024 + BARRIERS + 3 * STAGES * int(sizeof(Mbarrier));
  static constexpr bool A_K = LAYOUT == NT;  // k is contiguous in a
  static constexpr int SLAB = 32;            // else a comes in slabs of so many m, as wide as the swizzle
  static constexpr int BLOCK = 16;           // tiles follow each other in blocks so many tiles high, for L2
  static_assert(SPLIT == 1 || 4 * M * N <= BARRIERS, "the sums fit where the stages were");

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

// Tile is the index-th of a group: which GEMM's, where, and this CTA's k-tiles of it.
template <typename P>
struct Tile {
  int gemm = 0, m0, n0, k_first, k_end;

  __device__ Tile(const Group<TmaGemm> &group, int index) {
    while (index >= group.ends[gemm]) gemm++;
    if (gemm > 0) index -= group.ends[gemm - 1];
    Extents e(group.gemms[gemm]);
    int high = (e.m + P::M - 1) / P::M, wide = (e.n + P::N - 1) / P::N, k_tiles = (e.k + P::K - 1) / P::K;
    int first = index / (P::BLOCK * wide) * P::BLOCK, rows = min(high - first, P::BLOCK), in = index % (P::BLOCK * wide);
    m0 = (first + in % rows) * P::M, n0 = in / rows * P::N;
    int rank = P::SPLIT > 1 ? cluster_ctarank() : 0;
    k_first = k_tiles * rank / P::SPLIT, k_end = k_tiles * (rank + 1) / P::SPLIT;
  }

  __device__ int k_tiles() const { return k_end - k_first; }
};

// Pipeline is the stages and which of them is next, for the producer or for a consumer.
template <typename P>
struct Pipeline {
  char *stages;
  Mbarrier *full, *split, *empty;
  int stage = 0, phase = 0;

  __device__ explicit Pipeline(char *shared)
      : stages(shared), full((Mbarrier *)(shared + P::BARRIERS)), split(full + P::STAGES), empty(split + P::STAGES) {}

  __device__ void start() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < P::STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(split + i, SPLITTERS), mbarrier_init(empty + i, WARPS);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  __device__ void next() {
    if (++stage == P::STAGES) stage = 0, phase ^= 1;
  }

  __device__ char *now() const { return stages + stage * P::STAGE; }
  __device__ void wait_full() {
    mbarrier_wait(full + stage, phase);
    if (P::X3) mbarrier_wait(split + stage, phase);
  }
  __device__ void wait_empty() { mbarrier_wait(empty + stage, phase ^ 1); }
  __device__ void free(int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + stage);
  }

  // load is the producer's part of a tile, by one thread.
  __device__ void load(const Group<TmaGemm> &group, int index) {
    Tile<P> tile(group, index);
    const TmaGemm &g = group.gemms[tile.gemm];
    for (int k = tile.k_first * P::K; k < tile.k_end * P::K; k += P::K, next()) {
      wait_empty();
      Mbarrier *barrier = full + stage;
      mbarrier_arrive_expect_tx(barrier, P::LOADED);
      if (P::A_K) {
        tma_load((float *)now(), g.map[0], k, tile.m0, barrier);
      } else {
#pragma unroll
        for (int i = 0; i < P::M; i += P::SLAB) tma_load((float *)now() + i * P::K, g.map[0], tile.m0 + i, k, barrier);
      }
      tma_load((float *)(now() + P::A), g.map[1], k, tile.n0, barrier);
    }
  }
};

// split_b writes a thread's part of the lo of b: what the tensor cores ignore of it.
template <typename P>
__device__ void split_b(Pipeline<P> &pipeline, int k_tiles) {
  for (int i = 0; i < k_tiles; i++, pipeline.next()) {
    mbarrier_wait(pipeline.full + pipeline.stage, pipeline.phase);
    float4 *b = (float4 *)(pipeline.now() + P::A), *lo = b + P::B / 16;
#pragma unroll 4
    for (int e = threadIdx.x - 32; e < P::B / 16; e += 32 * SPLITTERS) {
      float4 v = b[e];
      lo[e] = make_float4(v.x - truncated(v.x), v.y - truncated(v.y), v.z - truncated(v.z), v.w - truncated(v.w));
    }
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(pipeline.split + pipeline.stage);
  }
}

// Consumer is a lane's part of a tile: of rows m and m+1 the columns n, n+1, n+8, n+9, ... It
// has those rows next to each other for its epilogue's sake. For lane = 4g + q they are, of
// the 16 of its warp (A_K) or of the 32 of two warps,
//
//   A_K   2g, 2g+1, the first of them in d[4j] (g < 4) or d[4j+2]: so the eight rows that ldmatrix
//         reads at once are, mod 8, all different
//   else  4c + 2(g%2) and the next, of which a lane reads its k by float2: the 16-byte chunks c,
//         0 4 1 5 or 2 6 3 7, as g/2 says, and of four k, are in different banks when swizzled
template <int LAYOUT, typename P>
struct Consumer {
  const int thread = threadIdx.x - WARPGROUP, warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
  const int chunk = g / 2 % 2 * 4 + g / 4 + warp % 2 * 2;
  const int m = P::A_K ? 16 * warp + 2 * g : 32 * (warp / 2) + 4 * chunk + 2 * (g % 2), n = 2 * q;
  unsigned at;  // the lane's place in a k-tile of a
  float d[P::N / 2], sum[P::X3 ? P::N / 2 : 1];  // X3: what was promoted of d

  __device__ Consumer() {
    if (P::A_K) {
      int r = lane % 8, row = 16 * warp + 2 * r + ((r < 4) == (lane / 8 % 2));
      at = row * 128 + (lane / 16 ^ row % 8) * 16;
    } else {
      at = warp / 2 * (4 * P::SLAB * P::K) + q * 128 + (chunk ^ q) * 16 + g % 2 * 8;
    }
  }

  // read reads the lane's a of the given eight k.
  __device__ void read(float (&a)[4], float (&lo)[4], const char *tile, int k8) const {
    if constexpr (P::A_K) {
      ldmatrix(a, tile + (at ^ k8 * 32));
    } else {
      float2 low = *(const float2 *)(tile + at + k8 * 1024), high = *(const float2 *)(tile + (at ^ 64) + 512 + k8 * 1024);
      a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
    }
    if (P::X3) {
#pragma unroll
      for (int i = 0; i < 4; i++) lo[i] = a[i] - truncated(a[i]);
    }
  }

  // promote adds to sum what the tensor cores have summed up of a k-tile, as in mma.cuh.
  __device__ void promote() {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < P::N / 2; i++) sum[P::X3 ? i : 0] += d[i], d[i] = 0;
  }

  // multiply adds up k_tiles. The a of eight k is read two ahead, when what its registers had
  // before was multiplied.
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
    read(a[0], lo[0], pipeline.now(), 0);
    read(a[1], lo[1], pipeline.now(), 1);
    int before = 0;
    for (int i = 0; i < k_tiles; i++) {
      const char *tile = pipeline.now();
      uint64_t b = descriptor(tile + P::A);
      int stage = pipeline.stage;
      pipeline.next();
      add(0, b);
      read(a[2], lo[2], tile, 2);
      add(1, b);
      if (i > 0) pipeline.free(before);
      before = stage;
      if (P::X3 && thread >= WARPGROUP) promote();  // one warpgroup while the other multiplies
      read(a[3], lo[3], tile, 3);
      add(2, b);
      if (i + 1 == k_tiles) {
        add(3, b);
        break;
      }
      pipeline.wait_full();
      read(a[0], lo[0], pipeline.now(), 0);
      add(3, b);
      read(a[1], lo[1], pipeline.now(), 1);
      if (P::X3 && thread < WARPGROUP) promote();
    }
    wgmma_wait_group<0>();
    pipeline.free(before);
    if (P::X3) {
#pragma unroll
      for (int i = 0; i < P::N / 2; i++) d[i] += sum[P::X3 ? i : 0];
    }
  }

  // share gives every CTA of a cluster the sums of its share of the columns, in d[0] and after, added
  // in the order of k.
  __device__ void share(float *sums) {
    constexpr int OWN = P::N / 2 / P::SPLIT;
#pragma unroll
    for (int i = 0; i < P::N / 2; i += 4) *(float4 *)(sums + (i / 4 * WARPS * 32 + thread) * 4) = make_float4(d[i], d[i + 1], d[i + 2], d[i + 3]);
    barrier_cluster_arrive();
    barrier_cluster_wait();
#pragma unroll
    for (int r = 0; r < P::SPLIT; r++) {
      unsigned from = mapa(sums + ((OWN / 4 * cluster_ctarank()) * WARPS * 32 + thread) * 4, r);
#pragma unroll
      for (int i = 0; i < OWN; i += 4) {
        float4 v = ld_shared_cluster(from + i / 4 * (WARPS * 32 * 16));
        d[i] = r ? d[i] + v.x : v.x, d[i + 1] = r ? d[i + 1] + v.y : v.y, d[i + 2] = r ? d[i + 2] + v.z : v.z, d[i + 3] = r ? d[i + 3] + v.w : v.w;
      }
    }
  }

  // store finishes the columns that this CTA has.
  __device__ void store(const Gemm &gemm, int m0, int n0) {
    constexpr int COLUMNS = P::N / P::SPLIT, BATCH = COLUMNS < 64 ? COLUMNS : 64;
    Extents e(gemm);
    int x = m0 + m, y0 = n0 + n + (P::SPLIT > 1 ? cluster_ctarank() * COLUMNS : 0);
    bool swapped = P::A_K && g >= 4;
    if (x >= e.m) return;
#pragma unroll
    for (int first = 0; first < COLUMNS; first += BATCH) {
      // What was there is sent for before anything is stored.
      float2 old[BATCH / 8][2] = {};
      if (LAYOUT == NT && gemm.fused) {
#pragma unroll
        for (int j = 0; j < BATCH / 8; j++)
#pragma unroll
          for (int o = 0; o < 2; o++) {
            int y = y0 + first + 8 * j + o;
            if (y < e.n) old[j][o] = __ldcg((const float2 *)(gemm.y + int64_t(y) * e.m + x));
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
            if (gemm.fused) red_add(to, gemm.alpha * s[o][0], gemm.alpha * s[o][1]);
            else *(float2 *)to = make_float2(s[o][0], s[o][1]);
          } else {
            s[0][o] = epilogue<LAYOUT>(gemm, s[0][o], old[j][o].x), s[1][o] = epilogue<LAYOUT>(gemm, s[1][o], old[j][o].y);
            if (y + o < e.n) *(float2 *)(gemm.c + int64_t(y + o) * e.m + x) = make_float2(s[0][o], s[1][o]);
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
