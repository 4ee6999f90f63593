// GEMM of large shapes by warpgroup MMA, in tf32 and 3xtf32, on compute capability 9.0. wgmma takes b from
// shared memory with k contiguous, and a from registers, which can be loaded from any order. So the layouts
// have these operands:
//
//   out[m,n] = Σ a·b over k    a            b                 out
//   NN  yᵀ  = wᵀ·xᵀ            w[k,m]       x[n,k]            y[n,m]
//   NT  dxᵀ = w·dyᵀ            w[m,k]       dy[n,k]           dx[n,m], and dxᵀ[m,n] at t
//   TN  dw  = xᵀ·dy            x[k,m]       dyᵀ[n,k], at t    w[m,n]
//
// A training step needs one transpose, dyᵀ, which the dgrad that computes dy stores as well. Its lines are padded:
// see KERNELS_TRANSPOSED_STRIDE.
//
// In tf32 TMA rounds what it loads, to nearest even. In 3xtf32 hi is a float in tf32, and lo the rest. The hi
// of a is rounded, in registers. The hi of b is truncated by the tensor cores; its lo is written to shared
// memory. lo·lo is left out. Because the hi of a is rounded, lo·lo has a random sign. If both were truncated,
// every result would be too small, by 2.5e-7 of its size. Rounding b as well would write hi to shared memory,
// whose bandwidth is the limit for N = 64.
//
// N = 256 loads the fewest bytes; N = 128, and in NN and NT 160 and 192, may leave fewer SMs idle in the last
// wave of CTAs. For few tiles N is 128 or 64 in cluster split-K: two CTAs share a tile, or four. Each sums a
// part of k, and then finishes a part of the columns. If there are tiles for whole waves and few more, a
// second launch splits these few.
#include "gemm/warpgroup/pipeline.cuh"

namespace gemm {

template <int LAYOUT, typename P>
struct Consumer;

// Tf32 has the policies of a layout. In NN and NT out is cᵀ, since k of wgmma's b must be contiguous.
template <int LAYOUT, bool X3>
struct Tf32 {
  static constexpr bool PAIRS = LAYOUT != TN, BETWEEN = LAYOUT != TN;
  static constexpr int TURNS = 1, MEMORY_NS = 0, STORE_NS = 0;

  template <int N, int SPLIT_K, int KIB_ = kib_of(N)>
  struct Policy : Stages<sizeof(float), X3, LAYOUT == NT, true, N, SPLIT_K, LAYOUT != TN, KIB_> {
    static constexpr Operand ROWS = LAYOUT == TN ? Operand::NEITHER : Operand::B;
    using Beside = Policy<N, SPLIT_K, LAYOUT == NN && SPLIT_K == 1 && KIB_ == KIB ? KIB_BESIDE : KIB_>;
    using Consumer = gemm::Consumer<LAYOUT, Policy>;
    static constexpr TileFormat FORMAT = X3 ? TileFormat::SWIZZLE_128B : TileFormat::SWIZZLE_128B_TF32;
    __host__ __device__ static Extents extents(const Gemm &g) { return {LAYOUT == TN ? g.m : g.n, LAYOUT == TN ? g.n : g.m, g.k}; }
    static const float *a(const Gemm &g) { return LAYOUT == TN ? g.a : g.b; }
    static const float *b(const Gemm &g) { return LAYOUT == TN ? g.t : g.a; }
  };
};

// Consumer is a lane's part of a tile: columns n, n+1, n+8, n+9, ... of rows m and m+1, neighbours so that
// the epilogue reads and writes float2. Lane 4g + q has these of the 16 rows of its warp (A_K), or of the 32
// rows of two warps (!A_K):
//
//   A_K   2g and 2g+1, in d[4j] and d[4j+2], or the other way round if g >= 4: then the eight rows that ldmatrix
//         reads at once all differ mod 8, and their swizzled chunks are in different banks
//   !A_K  4c + 2(g%2) and the next one, which a lane reads by float2. c, the 16-byte chunk of a line of k, is
//         0 4 1 5 in one warp and 2 6 3 7 in the other, by g/2: swizzled, the chunks of four k are in different
//         banks
template <int LAYOUT, typename P>
struct Consumer {
  static constexpr int COLUMNS = P::N / P::SPLIT_K;  // that this CTA stores

  const int thread = threadIdx.x - WARPGROUP, warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
  const int chunk = g / 2 % 2 * 4 + g / 4 + warp % 2 * 2;
  const int m = P::A_K ? 16 * warp + 2 * g : 32 * (warp / 2) + 4 * chunk + 2 * (g % 2), n = 2 * q;
  unsigned offset_a;  // of the lane's first element in a k-tile of a, in bytes
  float d[P::N / 2], sum[P::X3 ? P::N / 2 : 1];  // wgmma's accumulators; in 3xtf32, what was promoted
  // In 3xtf32 d has two parts, if N is large enough: one is promoted while the tensor cores add to the other.
  static constexpr int PARTS = P::X3 && P::N > 64 ? 2 : 1, PART = P::N / 2 / PARTS;
  // Steps of eight k whose a is read ahead. Each step of 3xtf32 has three products.
  static constexpr int AHEAD = P::X3 ? 1 : 2, SETS = 2 * AHEAD;

  typename std::conditional<LAYOUT == TN, NoSlices, SliceWriter>::type slices;

  __device__ Consumer(const typename P::Maps &maps, char *buffers) : slices(maps, buffers, thread / WARPGROUP, m % SLICE_M, n) {
    if (P::A_K) {
      int r = lane % 8, row = 16 * warp + 2 * r + ((r < 4) == (lane / 8 % 2));
      offset_a = row * 128 + (lane / 16 ^ row % 8) * 16;
    } else {
      offset_a = warp / 2 * P::SLAB + q * 128 + (chunk ^ q) * 16 + g % 2 * 8;
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

  // step adds eight k to d. If it promotes, it first adds d, of the steps before it, to sum, and then starts
  // d anew: see Accumulators::promote in mma.cuh.
  __device__ void step(const float (&a)[4], const float (&lo)[4], uint64_t b, bool promotes) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      float(&to)[PART] = *(float(*)[PART])(d + part * PART);
      uint64_t columns = b + part * (P::B / PARTS >> 4);
      if (promotes) {
        wgmma_wait_group<PARTS - 1>();  // for this part
#pragma unroll
        for (int i = part * PART; i < (part + 1) * PART; i++) sum[P::X3 ? i : 0] += d[i];
      }
      wgmma_fence();
      if constexpr (P::X3) {
        wgmma(to, lo, columns, !promotes);
        wgmma(to, a, columns + (P::B >> 4), 1);
      }
      wgmma(to, a, columns, 1);
      wgmma_commit_group();
    }
    wgmma_wait_group<AHEAD * PARTS>();
  }

  // multiply sums over k_tiles. a is read into registers of a step that has ended: of SETS sets, half are of
  // steps under way.
  __device__ void multiply(Pipeline<P> &pipeline, const Tile<P> &t, const Gemm &) {
    const int k_tiles = t.k_tiles();
    // Parts are promoted by both warpgroups at once, a whole d by one while the other multiplies.
    const bool first = P::X3 && PARTS == 1 && thread < WARPGROUP, second = P::X3 && (PARTS > 1 || thread >= WARPGROUP);
#pragma unroll
    for (int i = 0; i < P::N / 2; i++) d[i] = 0, sum[P::X3 ? i : 0] = 0;
    float a[SETS][4], lo[SETS][4];
    pipeline.wait_full();
#pragma unroll
    for (int k8 = 0; k8 < AHEAD; k8++) load_a(a[k8], lo[k8], pipeline.stage_base(), k8);
    int before = 0;
    for (int i = 0; i < k_tiles; i++) {
      const char *tile = pipeline.stage_base();
      uint64_t b = descriptor<false>(tile + P::A);
      int stage = pipeline.stage;
      bool last = i + 1 == k_tiles;
      pipeline.next();
#pragma unroll
      for (int k8 = 0; k8 < 4; k8++) {
        step(a[k8 % SETS], lo[k8 % SETS], b + k8 * NEXT_K<false>, k8 == 0 ? first : k8 == 2 && second);
        if (k8 + 1 == AHEAD) {
          if (i > 0) pipeline.release(before);
          before = stage;
        }
        int next = k8 + AHEAD;
        if (next < 4) load_a(a[next % SETS], lo[next % SETS], tile, next);
        else if (!last) {
          if (next == 4) pipeline.wait_full();
          load_a(a[next % SETS], lo[next % SETS], pipeline.stage_base(), next % 4);
        }
      }
    }
    wgmma_wait_group<0>();
    pipeline.release(before);
    if (P::X3) {
#pragma unroll
      for (int i = 0; i < P::N / 2; i++) d[i] += sum[P::X3 ? i : 0];
    }
  }

  // first_column returns the first column of this CTA in the tile: in split-K it finishes a part of them.
  __device__ static int first_column() { return P::SPLIT_K > 1 ? cluster_ctarank() * COLUMNS : 0; }

  // rows_of returns columns n + o of rows m and m+1 of the j-th eight columns.
  __device__ float2 rows_of(int j, int o) const {
    const float *v = d + 4 * j;
    return P::A_K && g >= 4 ? make_float2(v[2 + o], v[o]) : make_float2(v[o], v[2 + o]);
  }

  // load_old reads what the epilogue needs for SLICE_N columns from y on.
  __device__ void load_old(float2 (&old)[SLICE_N / 8][2], const Epilogue<LAYOUT> &epilogue, const Extents &e, int x, int y) const {
    if constexpr (LAYOUT == NT) {
      if (!epilogue.fused() || x >= e.m) return;
#pragma unroll
      for (int j = 0; j < SLICE_N / 8; j++)
#pragma unroll
        for (int o = 0; o < 2; o++)
          if (y + 8 * j + o < e.n) old[j][o] = __ldcg((const float2 *)(epilogue.source() + int64_t(y + 8 * j + o) * e.m + x));
    }
  }

  // store_slices stores NN and NT. The source of a slice is read while the one before it is stored.
  __device__ void store_slices(const Gemm &gemm, int m0, int n0) {
    Extents e = P::extents(gemm);
    Epilogue<LAYOUT> epilogue{gemm};
    const int x0 = m0 + thread / WARPGROUP * SLICE_M, x = m0 + m, y0 = n0 + first_column();
    float2 old[2][SLICE_N / 8][2] = {};
    load_old(old[0], epilogue, e, x, y0 + n);
#pragma unroll
    for (int i = 0; i < COLUMNS / SLICE_N; i++) {
      const int y = y0 + i * SLICE_N;
      if (x0 >= e.m || y >= e.n) return;
      if (i + 1 < COLUMNS / SLICE_N) load_old(old[(i + 1) % 2], epilogue, e, x, y + SLICE_N + n);
      float2 v[SLICE_N / 8][2];
#pragma unroll
      for (int j = 0; j < SLICE_N / 8; j++)
#pragma unroll
        for (int o = 0; o < 2; o++) v[j][o] = epilogue(rows_of(i * (SLICE_N / 8) + j, o), old[i % 2][j][o]);
      slices.store_c(v, x0, y, e.m);
      if (LAYOUT == NT && gemm.t) slices.store_t(v, x0, y);
    }
  }

  // store_wgrad stores TN from registers, or has memory add it.
  __device__ void store_wgrad(const Gemm &gemm, int m0, int n0) {
    Extents e = P::extents(gemm);
    Epilogue<LAYOUT> epilogue{gemm};
    const int x = m0 + m;
    if (x >= e.m) return;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
      const int y = n0 + first_column() + n + 8 * j;
      if (y >= e.n) continue;
      float2 first = rows_of(j, 0), second = rows_of(j, 1);
#pragma unroll
      for (int o = 0; o < 2; o++) {
        float *to = gemm.c + int64_t(x + o) * e.n + y;
        float2 delta = epilogue.delta(o ? make_float2(first.y, second.y) : make_float2(first.x, second.x));
        if (epilogue.fused()) red_add(to, delta.x, delta.y);
        else *(float2 *)to = delta;
      }
    }
  }

  __device__ void store(const Gemm &gemm, int m0, int n0) {
    if constexpr (LAYOUT == TN) store_wgrad(gemm, m0, n0);
    else store_slices(gemm, m0, n0);
  }

  __device__ void finish() const {
    if constexpr (LAYOUT != TN) slices.finish();
  }
};

template <int LAYOUT>
int launch_precision(uintptr_t stream, const Gemm *g, int count) {
  return g->precision == KERNELS_TF32 ? launch_all<Tf32<LAYOUT, false>>(stream, g, count) : launch_all<Tf32<LAYOUT, true>>(stream, g, count);
}

bool warpgroup_possible() { return HAVE_WARPGROUP && tma_possible() && device().capability == 90; }

int warpgroup(uintptr_t stream, const Gemm &g) { return g.layout == NN ? launch_precision<NN>(stream, &g, 1) : launch_precision<NT>(stream, &g, 1); }

int warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count) { return launch_precision<TN>(stream, g, count); }

int64_t warpgroup_tiles(const Gemm &g) { return tiles_of({g.m, g.n, g.k}, 128); }

}  // namespace gemm
