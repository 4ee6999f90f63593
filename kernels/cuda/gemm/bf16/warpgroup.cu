// GEMM of large shapes by warpgroup MMA in bf16, on compute capability 9.0. wgmma takes both operands from
// shared memory, with either dimension contiguous. So every layout reads its operands as they are in memory:
//
//   c[m,n] = Σ a·b over k    a                 b
//   NN  y  = x·w             x[m,k] K-major    w[k,n] MN-major
//   NT  dx = dy·wᵀ           dy[m,k] K-major   w[n,k] K-major
//   TN  dw = xᵀ·dy           x[k,m] MN-major   dy[k,n] MN-major
//
// Tiles are as in gemm/warpgroup/warpgroup.cu. A k-tile is 64 k.
#include "gemm/warpgroup/pipeline.cuh"
#include "warp.cuh"

namespace gemm {

template <int LAYOUT, typename P>
struct Bf16Consumer;

// Bf16 has the policies of a layout.
template <int LAYOUT>
struct Bf16 {
  // A wgrad reads and writes 10 bytes a weight.
  static constexpr bool PAIRS = true, BETWEEN = LAYOUT != TN;
  static constexpr int TURNS = LAYOUT == TN ? 2 : 1, MEMORY_NS = LAYOUT == TN ? 7000 : 0, STORE_NS = LAYOUT == TN ? 3000 : 0;

  template <int N, int SPLIT_K, int TURNS = 1>
  struct Policy : Stages<sizeof(bf16), false, LAYOUT != TN, LAYOUT == NT, N, SPLIT_K, false, (TURNS > 1 ? KIB_IN_TURNS : kib_of(N)), TURNS> {
    static constexpr Operand ROWS = LAYOUT == TN ? Operand::NEITHER : Operand::A;
    using Beside = Policy;
    using Consumer = Bf16Consumer<LAYOUT, Policy>;
    static constexpr TileFormat FORMAT = TileFormat::SWIZZLE_128B_BF16;
    __host__ __device__ static Extents extents(const Gemm &g) { return {g.m, g.n, g.k}; }
    static const float *a(const Gemm &g) { return g.a; }
    static const float *b(const Gemm &g) { return g.b; }
  };
  using InTurns = Policy<128, 1, TURNS>;
};

// prefetch_l2 has whole 16-byte chunks of global memory loaded to L2.
__device__ inline void prefetch_l2(const void *from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// transpose_quad transposes the 4×4 words of four lanes: lane q of a quad gets word q of each, in the order
// of lanes.
__device__ inline void transpose_quad(uint32_t (&w)[4]) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & bit) continue;
      uint32_t got = __shfl_xor_sync(ALL, upper ? w[i] : w[i + bit], bit);
      (upper ? w[i] : w[i + bit]) = got;
    }
  }
}

// merge_quad gives lane q of a quad the q-th of four pairs: x and y of lanes 0 and 1, x of 2 and 3, y of 0 and
// 1, y of 2 and 3.
__device__ inline void merge_quad(uint2 &x, uint2 &y) {
#pragma unroll
  for (int bit = 2; bit > 0; bit /= 2) {
    bool upper = threadIdx.x & bit;
    uint2 given = upper ? x : y;
    uint2 got = make_uint2(__shfl_xor_sync(ALL, given.x, bit), __shfl_xor_sync(ALL, given.y, bit));
    (upper ? x : y) = got;
  }
}

// Bf16Consumer is a lane's part of a tile. Lane 4g + q has columns 8j + 2q and the next one of rows g and g+8
// of its warp's 16 rows, in d[4j] to d[4j+3]. For each 32 columns of bf16, the four lanes of a row exchange
// these, so that lane q has columns 8q to 8q+7, 16 bytes. In TN they do so for each 16 columns of float32 as
// well, so that it has columns 4q to 4q+3.
template <int LAYOUT, typename P>
struct Bf16Consumer {
  // COLUMNS are those that this CTA stores, BATCH of a lane's two rows at a time. Registers hold what two batches
  // read.
  static constexpr int COLUMNS = P::N / P::SPLIT_K, BATCH = LAYOUT == TN || COLUMNS % 64 ? 32 : 64;

  const int thread = (threadIdx.x - WARPGROUP) % (CONSUMERS * WARPGROUP), lane = thread % 32, q = lane % 4;
  float d[P::N / 2];  // wgmma's accumulators

  __device__ Bf16Consumer(const NoOutputMaps &, char *) {}
  __device__ void finish() const {}

  // multiply_k_tile starts to multiply the k-tile of the pipeline's stage, as one wgmma group, and goes on to
  // the next stage. It returns the stage. The first k-tile overwrites d.
  template <bool FIRST>
  __device__ int multiply_k_tile(Pipeline<P> &pipeline) {
    const char *base = pipeline.stage_base();
    // In either order, the lines of a warpgroup's 64 rows are one after the other.
    uint64_t a = descriptor<!P::A_K>(base + thread / WARPGROUP * (64 * P::LINE), P::SLAB), b = descriptor<!P::B_K>(base + P::A, P::SLAB);
    wgmma_fence();
#pragma unroll
    for (int k16 = 0; k16 < P::K / 16; k16++)
      wgmma_bf16<!P::A_K, !P::B_K>(d, a + k16 * NEXT_K<!P::A_K>, b + k16 * NEXT_K<!P::B_K>, !FIRST || k16 > 0);
    wgmma_commit_group();
    int stage = pipeline.stage;
    pipeline.next();
    return stage;
  }

  // multiply sums over the k-tiles of a tile, of which there is one at least. While one is multiplied, the
  // next one is waited for.
  __device__ void multiply(Pipeline<P> &pipeline, const Tile<P> &tile, const Gemm &gemm) {
    pipeline.wait_full();
    int before = multiply_k_tile<true>(pipeline);
    if (P::TURNS == 1) prefetch_source(tile, gemm);
    __syncwarp();  // wgmma needs all lanes
    for (int k_tiles = tile.k_tiles() - 1; k_tiles > 0; k_tiles--) {
      pipeline.wait_full();
      int stage = multiply_k_tile<false>(pipeline);
      wgmma_wait_group<1>();
      pipeline.release(before);
      before = stage;
    }
    pipeline.pass_turn();
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < P::N / 2; i++) asm volatile("" : "+f"(d[i])::"memory");  // nothing reads d before
    pipeline.release(before);
  }

  // prefetch_source has what the epilogue reads loaded to L2, while the tile is computed.
  __device__ void prefetch_source(const Tile<P> &tile, const Gemm &g) const {
    int row = tile.m0 + thread / 32 * 16 + lane, n0 = tile.n0 + first_column();
    if (LAYOUT == NN || g.epilogue == KERNELS_NONE || lane >= 16 || row >= g.m || n0 >= g.n) return;
    constexpr int ELEMENT = LAYOUT == TN ? sizeof(float) : sizeof(bf16);
    const char *source = (const char *)Epilogue<LAYOUT>{g}.source();
    prefetch_l2(source + (int64_t(row) * g.n + n0) * ELEMENT, min(COLUMNS, g.n - n0) * ELEMENT);
  }

  // first_column returns the first column of this CTA in the tile: in split-K it finishes a part of them.
  __device__ static int first_column() { return P::SPLIT_K > 1 ? cluster_ctarank() * COLUMNS : 0; }

  // Rows has, of the lane's rows g and g+8, the place of column 0 of the CTA's part of the tile, and how many
  // columns from there on are in c: none past the last row.
  struct Rows {
    int64_t at[2];
    int columns[2];

    __device__ Rows(const Gemm &g, int row, int n0) {
#pragma unroll
      for (int o = 0; o < 2; o++) at[o] = int64_t(row + 8 * o) * g.n + n0, columns[o] = row + 8 * o < g.m ? g.n - n0 : 0;
    }
  };

  // Source is what the epilogue reads for a batch: in TN float4s, in NT chunks of bf16.
  using Chunk = typename std::conditional<LAYOUT == TN, float4, uint4>::type;
  static constexpr int CHUNK = LAYOUT == TN ? 16 : 32;  // columns of four lanes
  using Source = Chunk[2][BATCH / CHUNK];

  // load reads the source of a batch of columns from first on.
  __device__ void load(Source &source, const Gemm &g, const Rows &rows, int first) const {
    if constexpr (LAYOUT != NN) {
      if (g.epilogue == KERNELS_NONE) return;
#pragma unroll
      for (int o = 0; o < 2; o++) {
        const int own = CHUNK / 4 * q, columns = rows.columns[o] - own;
        const Chunk *from = LAYOUT == TN ? (const Chunk *)(g.c + rows.at[o] + own) : (const Chunk *)((const bf16 *)g.y + rows.at[o] + own);
#pragma unroll
        for (int j = 0; j < BATCH / CHUNK; j++)
          if (first + CHUNK * j < columns) source[o][j] = __ldcg(from + (first / CHUNK + j) * 4);
      }
    }
  }

  // store_wgrad applies the epilogue to 32 columns of row o, of which old are the weights, and stores them.
  __device__ void store_wgrad(const float4 *old, const Gemm &g, const Rows &rows, int column, int o) const {
    Epilogue<LAYOUT> epilogue{g};
    uint2 w[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int c = column + 16 * i;
      const float *sum = d + c / 2 + 2 * o;
      uint2 x = make_uint2(__float_as_uint(sum[0]), __float_as_uint(sum[1])), y = make_uint2(__float_as_uint(sum[4]), __float_as_uint(sum[5]));
      merge_quad(x, y);
      float4 v = epilogue(make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(y.x), __uint_as_float(y.y)), old[i]);
      if (c < rows.columns[o] - 4 * q) ((float4 *)(g.c + rows.at[o]))[c / 4 + q] = v;
      w[i] = make_uint2(to_bf16(v.x, v.y), to_bf16(v.z, v.w));
    }
    if (!g.rounded) return;
    merge_quad(w[0], w[1]);
    if (column < rows.columns[o] - 8 * q) ((uint4 *)(g.rounded + rows.at[o]))[column / 8 + q] = make_uint4(w[0].x, w[0].y, w[1].x, w[1].y);
  }

  // store_values does the same in NN and NT, of which old are values of bf16.
  __device__ void store_values(const uint4 &old, const Gemm &g, const Rows &rows, int column, int o) const {
    Epilogue<LAYOUT> epilogue{g};
    const bool fused = epilogue.fused();
    uint32_t olds[4] = {old.x, old.y, old.z, old.w}, w[4];
    if (LAYOUT == NT && fused) transpose_quad(olds);
    float2 *to = (float2 *)(g.c + rows.at[o]) + q;  // unless fused, which stores bf16
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float *sum = d + (column / 8 + j) * 4 + 2 * o;
      float2 v = epilogue(make_float2(sum[0], sum[1]), make_float2(to_float(olds[j]), second_to_float(olds[j])));
      if (!fused && column + 8 * j < rows.columns[o] - 2 * q) to[(column + 8 * j) / 2] = v;
      w[j] = to_bf16(v.x, v.y);
    }
    if (!fused) return;
    transpose_quad(w);
    if (column < rows.columns[o] - 8 * q) ((uint4 *)((bf16 *)g.c + rows.at[o]))[column / 8 + q] = make_uint4(w[0], w[1], w[2], w[3]);
  }

  // store_batch applies the epilogue to a batch and stores it.
  __device__ void store_batch(const Source &source, const Gemm &g, const Rows &rows, int first) const {
#pragma unroll
    for (int o = 0; o < 2; o++)
#pragma unroll
      for (int i = 0; i < BATCH / 32; i++)
        if constexpr (LAYOUT == TN) store_wgrad(source[o] + 2 * i, g, rows, first + 32 * i, o);
        else store_values(source[o][i], g, rows, first + 32 * i, o);
  }

  // store applies the epilogue to the tile and stores it. What a batch reads is loaded before the batch ahead
  // of it is stored: a load behind a store waits for it.
  __device__ void store(const Gemm &g, int m0, int n0) const {
    Rows rows(g, m0 + thread / 32 * 16 + lane / 4, n0 + first_column());
    Source source[2] = {};
    load(source[0], g, rows, 0);
#pragma unroll
    for (int i = 0; i < COLUMNS; i += BATCH) {
      if (i + BATCH < COLUMNS) load(source[(i / BATCH + 1) % 2], g, rows, i + BATCH);
      store_batch(source[i / BATCH % 2], g, rows, i);
    }
  }

  // store_in_turn is store with a source that TMA loads.
  __device__ void store_in_turn(Pipeline<P> &pipeline, const Gemm &g, int m0, int n0) const {
    const int row = thread / 32 * 16 + lane / 4;
    const bool fused = g.epilogue != KERNELS_NONE;
    Rows rows(g, m0 + row, n0);
#pragma unroll
    for (int slab = 0; slab < P::SOURCE_SLABS; slab++) {
      Source source = {};
      if (fused) {
        pipeline.wait_source(slab);
        const float4 *line = (const float4 *)(pipeline.source(slab) + row * P::LINE);
#pragma unroll
        for (int o = 0; o < 2; o++)
#pragma unroll
          for (int j = 0; j < 2; j++) source[o][j] = line[o * P::LINE / 2 + (4 * j + q ^ row % 8)];
      }
      store_batch(source, g, rows, 32 * slab);
      if (fused) pipeline.release_source(slab);
    }
    pipeline.sources += fused;
  }
};

int bf16_warpgroup(uintptr_t stream, const Gemm &g) {
  return g.layout == NN ? launch_all<Bf16<NN>>(stream, &g, 1) : launch_all<Bf16<NT>>(stream, &g, 1);
}

int bf16_warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count) { return launch_all<Bf16<TN>>(stream, g, count); }

}  // namespace gemm
