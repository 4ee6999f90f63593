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
  static constexpr bool PAIRS = true, LAST_WAVE = false;

  template <int N, int SPLIT_K>
  struct Policy : Stages<sizeof(bf16), false, N, SPLIT_K, false> {
    using Beside = Policy;
    using Consumer = Bf16Consumer<LAYOUT, Policy>;
    static constexpr bool A_K = LAYOUT != TN, B_K = LAYOUT == NT;
    static constexpr TileFormat FORMAT = TileFormat::SWIZZLE_128B_BF16;
    __host__ __device__ static Extents extents(const Gemm &g) { return {g.m, g.n, g.k}; }
    static const float *a(const Gemm &g) { return g.a; }
    static const float *b(const Gemm &g) { return g.b; }
  };
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

// Bf16Consumer is a lane's part of a tile. Lane 4g + q has columns 8j + 2q and the next one of rows g and g+8
// of its warp's 16 rows, in d[4j] to d[4j+3]. For each 32 columns of bf16, the four lanes of a row exchange
// these, so that lane q has columns 8q to 8q+7, 16 bytes.
template <int LAYOUT, typename P>
struct Bf16Consumer {
  // COLUMNS are those that this CTA stores, BATCH at a time. In TN registers hold what two batches of 32
  // read.
  static constexpr int COLUMNS = P::N / P::SPLIT_K, BATCH = LAYOUT == TN || COLUMNS < 64 ? 32 : 64;

  const int thread = threadIdx.x - WARPGROUP, lane = thread % 32, q = lane % 4;
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
    prefetch_source(tile, gemm);
    __syncwarp();  // wgmma needs all lanes
    for (int k_tiles = tile.k_tiles() - 1; k_tiles > 0; k_tiles--) {
      pipeline.wait_full();
      int stage = multiply_k_tile<false>(pipeline);
      wgmma_wait_group<1>();
      pipeline.release(before);
      before = stage;
    }
    wgmma_wait_group<0>();
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

  // Source is what the epilogue reads for BATCH columns of both rows: in TN float2s, as the sums are in d, in
  // NT chunks of bf16.
  using Chunk = typename std::conditional<LAYOUT == TN, float2, uint4>::type;
  static constexpr int CHUNK = LAYOUT == TN ? 8 : 32;  // columns of four lanes
  using Source = Chunk[2][BATCH / CHUNK];

  __device__ void load(Source &source, const Gemm &g, const Rows &rows, int first) const {
    if constexpr (LAYOUT != NN) {
      if (g.epilogue == KERNELS_NONE) return;
#pragma unroll
      for (int o = 0; o < 2; o++) {
        const int own = CHUNK / 4 * q, columns = rows.columns[o] - own;
        const Chunk *from = LAYOUT == TN ? (const Chunk *)(g.c + rows.at[o] + own) : (const Chunk *)((const bf16 *)g.y + rows.at[o] + own);
#pragma unroll
        for (int i = 0; i < BATCH / CHUNK; i++)
          if (first + CHUNK * i < columns) source[o][i] = __ldcg(from + (first / CHUNK + i) * 4);
      }
    }
  }

  // old_values returns what load has read for the lane's part of 32 columns, the i-th of a batch, of row o.
  __device__ static void old_values(float2 (&old)[4], const Source &source, int o, int i) {
    if constexpr (LAYOUT == TN) {
#pragma unroll
      for (int j = 0; j < 4; j++) old[j] = source[o][4 * i + j];
    } else {
      const uint4 &chunk = source[o][i];
      uint32_t w[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
      transpose_quad(w);
#pragma unroll
      for (int j = 0; j < 4; j++) old[j] = make_float2(to_float(w[j]), second_to_float(w[j]));
    }
  }

  // store_batch applies the epilogue to BATCH columns and stores them.
  __device__ void store_batch(const Source &source, const Gemm &g, const Rows &rows, int first) const {
    Epilogue<LAYOUT> epilogue{g};
    const bool fused = epilogue.fused();
    // floats is where c is stored as float32, and halves where c or its copy is stored as bf16. Either may be
    // null.
    float *floats = LAYOUT == TN || !fused ? g.c : nullptr;
    bf16 *halves = LAYOUT == TN ? g.rounded : fused ? (bf16 *)g.c : nullptr;
#pragma unroll
    for (int o = 0; o < 2; o++) {
      float2 *to = (float2 *)(floats + rows.at[o]) + q;
      uint4 *to_halves = (uint4 *)(halves + rows.at[o]) + q;
#pragma unroll
      for (int i = 0; i < BATCH / 32; i++) {
        const int column = first + 32 * i;
        float2 old[4] = {};
        if (LAYOUT != NN && fused) old_values(old, source, o, i);
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float *sum = d + (column / 8 + j) * 4 + 2 * o;
          float2 v = epilogue(make_float2(sum[0], sum[1]), old[j]);
          if (floats && column + 8 * j < rows.columns[o] - 2 * q) to[(column + 8 * j) / 2] = v;
          w[j] = to_bf16(v.x, v.y);
        }
        if (halves) {
          transpose_quad(w);
          if (column < rows.columns[o] - 8 * q) to_halves[column / 8] = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
  }

  // store applies the epilogue to the tile and stores it. What a batch reads is loaded before the batch ahead
  // of it is stored: a load behind a store waits for it.
  __device__ void store(const Gemm &g, int m0, int n0) const {
    Rows rows(g, m0 + thread / 32 * 16 + lane / 4, n0 + first_column());
    Source source[2] = {};
    load(source[0], g, rows, 0);
#pragma unroll
    for (int first = 0; first < COLUMNS; first += BATCH) {
      if (first + BATCH < COLUMNS) load(source[(first / BATCH + 1) % 2], g, rows, first + BATCH);
      store_batch(source[first / BATCH % 2], g, rows, first);
    }
  }
};

int bf16_warpgroup(uintptr_t stream, const Gemm &g) {
  return g.layout == NN ? launch_all<Bf16<NN>>(stream, &g, 1) : launch_all<Bf16<NT>>(stream, &g, 1);
}

int bf16_warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count) { return launch_all<Bf16<TN>>(stream, g, count); }

}  // namespace gemm
