// GEMM of large shapes by warpgroup MMA, in tf32 and 3xtf32, on compute capability 9.0. wgmma wants a
// b with k contiguous in memory, and an a in any order if it comes in registers. So a layout is
//
//   out[m,n] = Σ a·b over k    a            b                 out
//   NN  yᵀ  = wᵀ·xᵀ            w[k,m]       x[n,k]            y[n,m]
//   NT  dxᵀ = w·dyᵀ            w[m,k]       dy[n,k]           dx[n,m], and dxᵀ[m,n] at t
//   TN  dw  = xᵀ·dy            x[k,m]       dyᵀ[n,k], at t    w[m,n]
//
// and the only transpose that a step needs is dyᵀ, which the dgrad that makes dy has in registers.
//
// A CTA makes tiles of 128×N one after the other. k-tiles of 32 pass through a pipeline in shared
// memory:
//
//   producer, a thread         wait empty → TMA: a, b → ...                   full: all bytes have come
//   splitters, for 3xtf32                   wait full → lo of b → ...         split: and lo is there
//   consumers, 2 warpgroups                 wait → a to registers → wgmma …   empty: all have read it
//
// For tf32 TMA rounds what it copies to the nearest, ties to even. For 3xtf32 hi is what the tensor cores
// take of a float, and lo the rest: that of b is written beside it, that of a made in registers.
//
// N is 256 for the fewest bytes; 128 for less quantization; and for few tiles 128 or 64, and a pair of
// CTAs shares one: each has half of k, and adds the sums of both for half the columns, in order.
#include "warpgroup.cuh"

namespace gemm {

#if HAVE_WARPGROUP

namespace {

template <int LAYOUT, bool X3, int N, int SPLIT>
__global__ void __launch_bounds__(Policy<LAYOUT, X3, N, SPLIT>::THREADS, 1) warpgroup_gemm(const CONSTANT Group<TmaGemm> group, int tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using P = Policy<LAYOUT, X3, N, SPLIT>;
  extern __shared__ __align__(1024) char shared[];
  Pipeline<P> pipeline(shared + (-address(shared) & 1023));
  pipeline.start();
  pdl_wait();
  int first = blockIdx.x / SPLIT, step = gridDim.x / SPLIT;
  if (threadIdx.x < WARPGROUP) {
    setmaxnreg_dec<40>();
    for (int tile = first; tile < tiles; tile += step) {
      if (threadIdx.x == 0) pipeline.load(group, tile);
      if (X3 && threadIdx.x >= 32) split_b(pipeline, Tile<P>(group, tile).k_tiles());
    }
    if (SPLIT > 1) {
      __syncwarp();
      barrier_cluster_arrive();
      barrier_cluster_wait();
    }
  } else {
    setmaxnreg_inc<232>();
    Consumer<LAYOUT, P> consumer;
    for (int i = first; i < tiles; i += step) {
      Tile<P> tile(group, i);
      consumer.multiply(pipeline, tile.k_tiles());
      if constexpr (SPLIT > 1) {
        bar_sync(1, WARPS * 32);
        consumer.share((float *)pipeline.stages);
      }
      consumer.store(group.gemms[tile.gemm], tile.m0, tile.n0);
    }
  }
  if (SPLIT > 1) {  // until the others have read this CTA's sums
    barrier_cluster_arrive();
    barrier_cluster_wait();
  }
#else
  __trap();  // code for sm_90a is what a GPU that dispatch.cu launches this on takes
#endif
}

// launch_policy makes GEMMs of one layout, at most as many as a group has.
template <int LAYOUT, bool X3, int N, int SPLIT>
int launch_policy(uintptr_t stream, const Gemm *g, int count) {
  using P = Policy<LAYOUT, X3, N, SPLIT>;
  auto kernel = warpgroup_gemm<LAYOUT, X3, N, SPLIT>;
  static const int allowed = opt_in_shared(kernel, P::BYTES);
  if (allowed != cudaSuccess) return allowed;
  Group<TmaGemm> group = {};
  int64_t all = 0;
  for (int i = 0; i < count; i++) {
    if (int code = P::prepare(group.gemms[i], g[i])) return code;
    all += tiles(g[i], N), group.ends[i] = int(all);
  }
  if (all > INT32_MAX) return cudaErrorInvalidValue;
  unsigned ctas = SPLIT > 1 ? unsigned(all) * SPLIT : unsigned(std::min(all, int64_t(device().sms)));
  return launch(stream, {ctas, P::THREADS, size_t(P::BYTES), SPLIT}, kernel, group, int(all));
}

// launch_layout chooses the policy that takes the least time, by what was measured: of a k-tile, and of
// a tile's start and end, in waves over the SMs. 3xtf32 has no registers for 256 columns. A CTA makes
// only one shared tile, so those are for one wave.
template <int LAYOUT, bool X3>
int launch_layout(uintptr_t stream, const Gemm *g, int count) {
  int64_t k_tiles = ceil_div(g->k, 32), sms = device().sms;
  auto ns = [&](int n, int split, int k_tile, int tile) {
    int64_t all = 0;
    for (int i = 0; i < count; i++) all += tiles(g[i], n) * split;
    return split > 1 && all > sms ? INT64_MAX : ceil_div(all, sms) * (ceil_div(k_tiles, split) * k_tile * (X3 ? 3 : 1) + tile);
  };
  int64_t whole = ns(128, 1, 370, 4000), best = whole;
  if constexpr (!X3) {
    int64_t wide = ns(256, 1, 650, 6000);
    if (wide <= whole) best = wide;
  }
  if constexpr (LAYOUT != TN) {
    int64_t pairs = ns(128, 2, 370, 6000), small = ns(64, 2, 250, 5000);
    if (small < std::min(best, pairs)) return launch_policy<LAYOUT, X3, 64, 2>(stream, g, count);
    if (pairs < best) return launch_policy<LAYOUT, X3, 128, 2>(stream, g, count);
  }
  if constexpr (!X3)
    if (best < whole) return launch_policy<LAYOUT, X3, 256, 1>(stream, g, count);
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
  constexpr int MOST = Group<TmaGemm>::MOST;
  for (int i = 0; i < count; i += MOST)
    if (int code = launch_precision<TN>(stream, g + i, std::min(count - i, MOST))) return code;
  return cudaSuccess;
}

int64_t warpgroup_wgrad_tiles(const Gemm &g) { return tiles(g, 128); }

#else

bool warpgroup_possible() { return false; }
int warpgroup(uintptr_t, const Gemm &) { return cudaErrorNotSupported; }
int warpgroup_wgrad(uintptr_t, const Gemm *, int) { return cudaErrorNotSupported; }
int64_t warpgroup_wgrad_tiles(const Gemm &) { return 0; }

#endif

}  // namespace gemm
