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
// In tf32 TMA rounds what it loads, to nearest even. In 3xtf32 hi is a float in tf32, and lo the rest. The hi of a is
// rounded, in registers. The hi of b is truncated by the tensor cores; its lo is written to shared memory. lo·lo is
// left out. Because the hi of a is rounded, lo·lo has a random sign. If both were truncated, every result would be too
// small, by 2.5e-7 of its size. Rounding b as well would write hi to shared memory, whose bandwidth is the limit for N
// = 64.
//
// N = 256 loads the fewest bytes; N = 128 leaves fewer SMs idle in the last wave of CTAs. For few tiles N is 128 or 64
// in cluster split-K: two CTAs share a tile, or four if it is of a wgrad. Each sums a part of k, and then finishes a
// part of the columns. If wgrads have tiles for whole waves and few more, a second launch splits these few.
#include "warpgroup.cuh"

namespace gemm {

#if HAVE_WARPGROUP

namespace {

template <int LAYOUT>
int launch_precision(uintptr_t stream, const Gemm *g, int count) {
  return g->precision == KERNELS_TF32 ? launch_fastest<Tf32<LAYOUT, false>>(stream, g, count) : launch_fastest<Tf32<LAYOUT, true>>(stream, g, count);
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

int64_t warpgroup_tiles(const Gemm &g) { return tiles_of({g.m, g.n, g.k}, 128); }

#else

bool warpgroup_possible() { return false; }
int warpgroup(uintptr_t, const Gemm &) { return cudaErrorNotSupported; }
int warpgroup_wgrad(uintptr_t, const Gemm *, int) { return cudaErrorNotSupported; }
int64_t warpgroup_tiles(const Gemm &) { return 0; }

#endif

}  // namespace gemm
