// GEMM of large shapes by warpgroup MMA, in tf32 and 3xtf32, on compute capability 9.0. wgmma takes b from shared
// memory with k contiguous, and a from registers, which can be loaded from any order. So the layouts have these
// operands:
//
//   out[m,n] = Σ a·b over k    a            b                 out
//   NN  yᵀ  = wᵀ·xᵀ            w[k,m]       x[n,k]            y[n,m]
//   NT  dxᵀ = w·dyᵀ            w[m,k]       dy[n,k]           dx[n,m], and dxᵀ[m,n] at t
//   TN  dw  = xᵀ·dy            x[k,m]       dyᵀ[n,k], at t    w[m,n]
//
// A training step needs one transpose, dyᵀ, which the dgrad that computes dy stores as well.
//
// A CTA computes tiles of 128×N one after the other. k-tiles of 32 pass through a pipeline in shared memory. Each
// stage has three mbarriers:
//
//   threads                                                                   mbarrier whose phase they end
//   producer, one thread       wait empty → TMA: a, b → ...                   full: all bytes are loaded
//   LO_WARPS, for 3xtf32       wait full → write lo of b → ...                lo_full: lo is written
//   consumers, 2 warpgroups    wait full, lo_full → a to registers → wgmma …  empty: all warps have read it
//
// In tf32 TMA rounds what it loads, to nearest even. In 3xtf32 hi is a float in tf32, and lo the rest. The hi of a is
// rounded, in registers. The hi of b is truncated by the tensor cores; its lo is written to shared memory. lo·lo is
// left out. Because the hi of a is rounded, lo·lo has a random sign. If both were truncated, every result would be too
// small, by 2.5e-7 of its size. Rounding b as well would write hi to shared memory, whose bandwidth is the limit for N
// = 64.
//
// N = 256 loads the fewest bytes; N = 128 leaves fewer SMs idle in the last wave of CTAs. For few tiles N is 128 or
// 64 in cluster split-K: a pair of CTAs shares a tile, each sums half of k and finishes half of the columns.
#include "warpgroup.cuh"

namespace gemm {

#if HAVE_WARPGROUP

namespace {

template <int LAYOUT, bool X3, int N, int SPLIT_K>
__global__ void warpgroup_gemm(const CONSTANT Group<TmaGemm> group, int tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using P = Policy<LAYOUT, X3, N, SPLIT_K>;
  extern __shared__ __align__(1024) char shared[];
  Pipeline<P> pipeline(shared + (-address(shared) & 1023));
  pipeline.start();
  pdl_wait();
  int first = blockIdx.x / SPLIT_K, step = gridDim.x / SPLIT_K;
  if (threadIdx.x < WARPGROUP) {
    setmaxnreg_dec<40>();  // 128·40 + 256·216 of the CTA's 384·160 registers
    for (int tile = first; tile < tiles; tile += step) {
      if (threadIdx.x == 0) pipeline.load(group, tile);
      if (X3 && threadIdx.x >= 32) write_lo_b(pipeline, Tile<P>(group, tile).k_tiles());
    }
    if (SPLIT_K > 1) {
      __syncwarp();
      barrier_cluster();
      barrier_cluster_arrive();
    }
  } else {
    setmaxnreg_inc<216>();
    Consumer<LAYOUT, P> consumer;
    for (int i = first; i < tiles; i += step) {
      Tile<P> tile(group, i);
      consumer.multiply(pipeline, tile.k_tiles());
      if constexpr (SPLIT_K > 1) {
        bar_sync(1, WARPS * 32);  // all consumers have read the stages that the sums overwrite
        consumer.reduce_split_k((float *)pipeline.stages);
      }
      consumer.store(group.gemms[tile.gemm], tile.m0, tile.n0);
      __syncwarp();  // lanes past the last row return from store early
    }
  }
  if (SPLIT_K > 1) barrier_cluster_wait();  // the other CTAs may still read this one's sums
#else
  __trap();  // never runs: compute capability 9.0 loads the sm_90a code
#endif
}

// launch_policy launches GEMMs of one layout, at most Group::MAX.
template <int LAYOUT, bool X3, int N, int SPLIT_K>
int launch_policy(uintptr_t stream, const Gemm *g, int count) {
  using P = Policy<LAYOUT, X3, N, SPLIT_K>;
  auto kernel = warpgroup_gemm<LAYOUT, X3, N, SPLIT_K>;
  static std::atomic<bool> has_shared;
  if (int code = opt_in_shared(has_shared, kernel, P::BYTES)) return code;
  Group<TmaGemm> group = {};
  int64_t all = 0;
  for (int i = 0; i < count; i++) {
    if (int code = P::prepare(group.gemms[i], g[i])) return code;
    all += warpgroup_tiles(g[i], N), group.ends[i] = int(all);
  }
  if (all > INT32_MAX) return cudaErrorInvalidValue;
  unsigned sms = device().sms, ctas = SPLIT_K > 1 ? unsigned(all) * SPLIT_K : unsigned(std::min(all, int64_t(sms)));
  // With SMs to spare PDL is slower, perhaps because early CTAs take the SMs that the kernel before leaves idle, so
  // that some GPCs have more work than others.
  bool pdl = SPLIT_K > 1 || 16 * ctas >= 15 * sms;
  return launch(stream, {ctas, P::THREADS, size_t(P::BYTES), SPLIT_K, pdl}, kernel, group, int(all));
}

// launch_layout chooses the policy with the least estimated time: waves × (k-tiles × ns of a k-tile + ns of a tile's
// start and end), by figures of an H200 in tf32. A k-tile of 3xtf32 takes three times as long, and registers limit
// its N to 128. In split-K a CTA computes one tile only, so all must be one wave.
template <int LAYOUT, bool X3>
int launch_layout(uintptr_t stream, const Gemm *g, int count) {
  int64_t k_tiles = ceil_div(g->k, 32), sms = device().sms;
  auto ns = [&](int n, int split_k, int k_tile, int start_and_end) {
    int64_t ctas = 0;
    for (int i = 0; i < count; i++) ctas += warpgroup_tiles(g[i], n) * split_k;
    if (split_k > 1 && ctas > sms) return INT64_MAX;
    return ceil_div(ctas, sms) * (ceil_div(k_tiles, split_k) * k_tile * (X3 ? 3 : 1) + start_and_end);
  };
  int64_t n128 = ns(128, 1, 370, 4000), best = n128;
  if constexpr (!X3) {
    int64_t n256 = ns(256, 1, 650, 6000);
    if (n256 <= n128) best = n256;
  }
  if constexpr (LAYOUT != TN) {
    int64_t n128_pair = ns(128, 2, 370, 6000), n64_pair = ns(64, 2, 250, 5000);
    if (n64_pair < std::min(best, n128_pair)) return launch_policy<LAYOUT, X3, 64, 2>(stream, g, count);
    if (n128_pair < best) return launch_policy<LAYOUT, X3, 128, 2>(stream, g, count);
  }
  if constexpr (!X3)
    if (best < n128) return launch_policy<LAYOUT, X3, 256, 1>(stream, g, count);
  return launch_policy<LAYOUT, X3, 128, 1>(stream, g, count);
}

template <int LAYOUT>
int launch_precision(uintptr_t stream, const Gemm *g, int count) {
  return g->precision == KERNELS_TF32 ? launch_layout<LAYOUT, false>(stream, g, count) : launch_layout<LAYOUT, true>(stream, g, count);
}

}  // namespace

bool warpgroup_possible() { return tma_possible() && device().capability == 90; }

int warpgroup(uintptr_t stream, const Gemm &g) { return g.layout == NN ? launch_precision<NN>(stream, &g, 1) : launch_precision<NT>(stream, &g, 1); }

int warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count) {
  constexpr int MAX = Group<TmaGemm>::MAX;
  for (int i = 0; i < count; i += MAX)
    if (int code = launch_precision<TN>(stream, g + i, std::min(count - i, MAX))) return code;
  return cudaSuccess;
}

int64_t warpgroup_wgrad_tiles(const Gemm &g) { return warpgroup_tiles(g, 128); }

#else

bool warpgroup_possible() { return false; }
int warpgroup(uintptr_t, const Gemm &) { return cudaErrorNotSupported; }
int warpgroup_wgrad(uintptr_t, const Gemm *, int) { return cudaErrorNotSupported; }
int64_t warpgroup_wgrad_tiles(const Gemm &) { return 0; }

#endif

}  // namespace gemm
