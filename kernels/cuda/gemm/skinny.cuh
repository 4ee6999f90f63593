// Skinny GEMM, of the few rows of a small batch, where latency counts. NN and NT, with uint8 input or values,
// float or bf16, on the tensor cores (tensorop/skinny.cu, bf16/skinny.cu) and on the CUDA cores
// (simt/skinny.cu).
//
// A GEMM waits for the batch, which the kernel before it computes, and prefetches the weights while that
// kernel still runs (PDL). So a CTA's tile is low, 16 rows of the batch by 24 columns, 132 tiles for 64×784:
// a CTA waits for few bytes, each SM has one CTA, and the next kernel's CTAs fit on the SM as well. Seven
// warps share the k of a tile, as 784 is 7×112 (intra-CTA split-K); their sums are added at the end, in
// order:
//
//   k         0..15   16..31  ...  96..111 | 112..127  ...            a k-tile: 112 of k
//   warp        0       1             6    |    0      1 ...
//   lane's k  4t..4t+3 of its warp's 16, for lane = 4g + t
//
// A lane has its part of the batch in registers, uint8 input as bytes. The weights are loaded to shared
// memory, up to seven k-tiles at once, or with a larger k up to ten by TMA. With TMA, each CTA of a pair with
// the same columns loads half of them for both, by multicast: half the bytes, and a few instructions in place
// of hundreds.
//
// Each SM should have one CTA. The first layer follows the wgrads, whose CTAs end at different times. If two
// of its CTAs start on the first free SM, so do two of every later layer, and all layers take twice as long.
// So the first layer, that of uint8 input, has OCCUPANCY 1, and the others 2: for a CTA, and one of the next
// kernel.
#pragma once

#include <type_traits>

#include "epilogue.cuh"
#include "grouped.cuh"
#include "pipeline.cuh"

namespace gemm {
namespace skinny {

constexpr int WARPS = 7, WARP_K = 16, K_TILE = WARP_K * WARPS;
constexpr int FEW = 7, MANY = 10;  // k-tiles loaded at once; two CTAs on an SM have the memory for ten
constexpr int BM = 16, BN = 24;

// Skinny is a GEMM of Math::Value, which loads K_TILES at once. Math says which rows of the batch a lane has.
// It multiplies them with the weights. It stores PARTS partial sums of the tile to shared memory. A lane reads
// the batch READ_AHEAD k-tiles before it multiplies them. bf16 needs TMA.
template <int LAYOUT, typename Math, bool U8, bool TMA, int K_TILES = FEW>
struct Skinny {
  static constexpr int ARCH = TMA ? 90 : 80, THREADS = 32 * WARPS, CTAS = 2, OCCUPANCY = U8 ? 1 : 2, CLUSTER = TMA ? CTA_PAIR : 1;
  using Params = typename std::conditional<TMA, TmaGemm, Gemm>::type;
  using Value = typename Math::Value;
  static constexpr bool BF16 = std::is_same<Value, bf16>::value;
  static_assert(TMA || !BF16, "cp.async is of floats");

  static constexpr int READ_AHEAD = U8 ? K_TILES : Math::READ_AHEAD;
  // A k-tile of weights in shared memory. NN: a line for each k, k = 4q + e in line 28e + q, against bank
  // conflicts. NT: a line for each column.
  static constexpr int SIZE = K_TILE * BN, BYTES = SIZE * sizeof(Value);
  // In shared memory: the weights, the sums, and barriers. The sums of MANY overwrite the weights.
  static constexpr bool OVERWRITES = Math::OVERWRITES || K_TILES > FEW;
  static constexpr int SUMS = K_TILES * BYTES / 4, BARRIERS = SUMS + (K_TILES > FEW ? 0 : WARPS * BM * BN), FLOATS = BARRIERS + 2 * K_TILES;
  static constexpr int WAITS = U8 ? K_TILES : 1;  // for each k-tile, or once for all
  static constexpr int PAIRS = BM * BN / 2;       // neighbours in c, which one thread finishes
  static_assert(PAIRS <= THREADS, "at most one pair a thread");

  static int64_t ctas(const Gemm &g) { return ceil_div<int64_t>(g.n, BN) * whole_pairs<BM>(g.m); }

  static int prepare(Params &out, const Gemm &g) {
    static_cast<Gemm &>(out) = g;
    if constexpr (TMA) {
      constexpr TileFormat FORMAT = BF16 ? TileFormat::PLAIN_BF16 : TileFormat::PLAIN;
      if (LAYOUT == NT) return encode<2>(out.map[0], g.b, {{g.k, 1, K_TILE}, {g.n, g.k, BN / 2}}, FORMAT);
      return encode<3>(out.map[0], g.b, {{g.n, 1, BN}, {g.k / 4, 4 * int64_t(g.n), K_TILE / 4}, {4, g.n, 2}}, FORMAT);
    }
    return cudaSuccess;
  }

  struct Weights {
    const Params &g;
    float *shared;
    int n0, phase = 0;

    __device__ const Value *tile(int k_tile) const { return (const Value *)shared + k_tile * SIZE; }

    __device__ Mbarrier *barrier(int k_tile) const { return (Mbarrier *)(shared + BARRIERS) + (WAITS > 1 ? k_tile : 0); }

    __device__ void load(int k0) {
      if constexpr (TMA) {
        if (threadIdx.x) return;
        int k_tiles = min(K_TILES, ceil_div(g.k - k0, K_TILE)), half = cluster_ctarank();
        if (WAITS == 1) mbarrier_arrive_expect_tx(barrier(0), k_tiles * BYTES);
        for (int i = 0; i < k_tiles; i++) {
          if (WAITS > 1) mbarrier_arrive_expect_tx(barrier(i), BYTES);
          char *to = (char *)shared + i * BYTES + half * (BYTES / 2);
          if (LAYOUT == NT) tma_load_multicast(to, g.map[0], k0 + i * K_TILE, n0 + half * (BN / 2), barrier(i));
          else tma_load_multicast(to, g.map[0], n0, (k0 + i * K_TILE) / 4, 2 * half, barrier(i));
        }
      } else {
        // A warp copies the weights that it multiplies, a float4 a lane.
        constexpr int LINE = (LAYOUT == NT ? WARP_K : BN) / 4;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        unsigned to = shared_address(shared);
        k0 += WARP_K * warp;
        const float *from = g.b + (LAYOUT == NT ? k0 : int64_t(k0) * g.n);
#pragma unroll 1
        for (int i = 0; i < K_TILES; i++) {
#pragma unroll
          for (int q = lane; q < WARP_K * BN / 4; q += 32) {
            int line = q / LINE, x = q % LINE * 4, n = n0 + (LAYOUT == NT ? line : x), k = LAYOUT == NT ? x : line;
            int offset = LAYOUT == NT ? line * K_TILE + WARP_K * warp + x : (line % 4 * (K_TILE / 4) + WARP_K / 4 * warp + line / 4) * BN + x;
            const float *source = from + (LAYOUT == NT ? int64_t(n) * g.k + k : int64_t(k) * g.n + n);
            if (k0 < g.k) cp_async<4>(to + 4 * offset, source, n < g.n && k0 + k < g.k);
          }
          to += 4 * SIZE, k0 += K_TILE, from += LAYOUT == NT ? K_TILE : int64_t(K_TILE) * g.n;
          cp_async_commit_group();
        }
      }
    }

    // wait waits for a k-tile, or if WAITS is 1 for all of them.
    __device__ void wait(int k_tile) const {
      if constexpr (TMA) {
        mbarrier_wait(barrier(k_tile), phase);
      } else {
        if (WAITS > 1) cp_async_wait_group<K_TILES>(K_TILES - 1 - k_tile);
        else cp_async_wait_group<0>();
        __syncwarp();
      }
    }
  };

  using Element = typename std::conditional<U8, uint8_t, Value>::type;
  using FourValues = typename std::conditional<BF16, uint2, float4>::type;
  using Four = typename std::conditional<U8, unsigned, FourValues>::type;
  using Two = typename std::conditional<BF16, uint32_t, float2>::type;

  // A lane's part of the batch: four k of each k-tile, of ROWS rows.
  struct Batch {
    const Element *row[Math::ROWS];  // at its first four
    int k_tiles, left;               // k-tiles of its warp; k left from its first four on
    Four fours[READ_AHEAD][Math::ROWS];

    __device__ Batch(const Gemm &g, int m0, int k0) {
      int k = k0 + threadIdx.x / 32 * WARP_K;
      k_tiles = ceil_div(g.k - k, K_TILE);
      k += threadIdx.x % 4 * 4, left = g.k - k;
#pragma unroll
      for (int h = 0; h < Math::ROWS; h++) {
        int m = min(m0 + Math::row(h), g.m - 1);  // the sums of a row past the end are not stored
        row[h] = (const Element *)g.a + int64_t(U8 ? g.indices[m] : m) * g.k + k;
      }
    }

    __device__ void read(int k_tile) {
#pragma unroll
      for (int h = 0; h < Math::ROWS; h++) {
        Four &four = fours[k_tile % READ_AHEAD][h];
        const Element *from = row[h] + k_tile * K_TILE;
        bool valid = k_tile * K_TILE < left;
        if constexpr (U8) four = valid ? pixels(from) : 0;
        else if constexpr (!TMA) four = ld_float4(true, from, valid);
        else {
          four = {};  // before a load with a predicate: a conditional expression branches
          if (valid) four = __ldcg((const Four *)from);
        }
      }
    }

    __device__ void values(typename Math::Operand (&a)[Math::ROWS], int k_tile) const {
#pragma unroll
      for (int h = 0; h < Math::ROWS; h++) {
        if constexpr (U8) pixels_to(a[h], fours[k_tile % READ_AHEAD][h]);
        else *(Four *)a[h] = fours[k_tile % READ_AHEAD][h];
      }
    }
  };

  // multiply multiplies the k-tiles in shared memory. IN_ONE_PIECE is without branches, so that the compiler
  // can reorder all instructions, if there are registers for that.
  static __device__ void multiply(Math &math, Batch &batch, const Weights &weights) {
    auto one = [&](int i) {
      typename Math::Operand a[Math::ROWS];
      if (WAITS > 1) weights.wait(i);
      batch.values(a, i);
      if (i + READ_AHEAD < K_TILES) batch.read(i + READ_AHEAD);
      math.template multiply<LAYOUT, U8>(a, weights.tile(i));
    };
    if (Math::template IN_ONE_PIECE<LAYOUT> && batch.k_tiles >= FEW) {
#pragma unroll
      for (int i = 0; i < FEW; i++) one(i);
    } else {
#pragma unroll
      for (int i = 0; i < FEW; i++)
        if (i < batch.k_tiles) one(i);
    }
#pragma unroll
    for (int i = FEW; i < K_TILES; i++)
      if (i < batch.k_tiles) one(i);
  }

  static __device__ void run(const Params &g, int cta, float *shared) {
    int tiles_m = whole_pairs<BM>(g.m), m0 = cta % tiles_m * BM, n0 = cta / tiles_m * BN;
    if (!TMA && m0 >= g.m) return;  // whole_pairs' padding

    int m = m0 + threadIdx.x / (BN / 2), n = n0 + threadIdx.x % (BN / 2) * 2;
    Epilogue<LAYOUT> epilogue{g};
    bool mine = threadIdx.x < PAIRS && m < g.m && n < g.n;
    int64_t offset = int64_t(m) * g.n + n;
    Two old = {};
    auto read_old = [&] {
      if (LAYOUT == NT && epilogue.fused() && mine) old = __ldcg((const Two *)((const Value *)epilogue.source() + offset));
    };

    Weights weights = {g, shared, n0};
    if (TMA) mbarriers_start(weights.barrier(0), WAITS);
    Math math;
    for (int k0 = 0; k0 == 0 || k0 < g.k; k0 += K_TILES * K_TILE) {
      bool first = k0 == 0;
      if (!first) {
        __syncwarp();
        if (TMA) barrier_cluster();
        weights.phase++;
      }
      if (!first || g.prefetch_b) weights.load(k0);
      if (first && g.prefetch_c) read_old();
      Batch batch(g, m0, k0);
      auto read_ahead = [&] {
#pragma unroll
        for (int i = 0; i < READ_AHEAD; i++) batch.read(i);
      };
      if (U8) read_ahead();
      if (first) pdl_wait();
      if (first && !g.prefetch_b) weights.load(k0);
      if (!U8) read_ahead();
      if (first && !g.prefetch_c) read_old();
      if (WAITS == 1) weights.wait(0);
      multiply(math, batch, weights);
    }

    static_assert(Math::FLOATS <= (OVERWRITES ? SUMS : BARRIERS - SUMS), "the sums fit");
    float *parts = shared + (OVERWRITES ? 0 : SUMS);
    if (OVERWRITES) __syncthreads();  // all warps have read the weights
    math.template store_shared<LAYOUT>(parts);
    __syncthreads();
    if (!mine) return;
    float2 sum = {0, 0};
#pragma unroll
    for (int i = 0; i < Math::PARTS; i++) {
      float2 v = Math::template pair<LAYOUT>(parts, i);
      sum.x += v.x, sum.y += v.y;
    }
    float2 result = epilogue(sum, two_of(old));
    if (BF16 && epilogue.fused()) store2((bf16 *)g.c + offset, result);
    else store2(g.c + offset, result);
  }
};

// OnTensorCores is what the Maths on the tensor cores have in common. A lane has rows g and g+8 of the batch.
struct OnTensorCores {
  static constexpr int ROWS = 2, PARTS = WARPS, FLOATS = PARTS * BM * BN;
  static constexpr bool OVERWRITES = false;  // with FEW the sums are stored behind the weights
  template <int LAYOUT>
  static constexpr bool IN_ONE_PIECE = true;

  static __device__ int row(int h) { return 8 * h + threadIdx.x % 32 / 4; }

  template <int LAYOUT>
  static __device__ float2 pair(const float *parts, int i) {
    return *(const float2 *)(parts + i * (BM * BN) + 2 * threadIdx.x);
  }
};

template <typename Math, bool TMA, int K_TILES>
int launch_values(uintptr_t stream, const Gemm &g) {
  if (g.layout == NT) return launch_single<Skinny<NT, Math, false, TMA, K_TILES>>(stream, g);
  return launch_single<Skinny<NN, Math, false, TMA, K_TILES>>(stream, g);
}

template <typename Math, bool TMA>
int launch_skinny(uintptr_t stream, const Gemm &g) {
  if (g.indices) return launch_single<Skinny<NN, Math, true, TMA>>(stream, g);
  // A k beyond MANY k-tiles comes in parts. Parts of FEW are faster. Two CTAs of MANY leave an exchange no memory.
  if constexpr (TMA)
    if (g.k > FEW * K_TILE && g.k <= MANY * K_TILE && !g.beside) return launch_values<Math, TMA, MANY>(stream, g);
  return launch_values<Math, TMA, FEW>(stream, g);
}

}  // namespace skinny
}  // namespace gemm
