// GEMM of large shapes by warpgroup MMA in bf16, on compute capability 9.0. wgmma takes both operands from shared
// memory, with either dimension contiguous. So every layout reads its operands as they are in memory:
//
//   c[m,n] = Σ a·b over k    a                 b
//   NN  y  = x·w             x[m,k] K-major    w[k,n] MN-major
//   NT  dx = dy·wᵀ           dy[m,k] K-major   w[n,k] K-major
//   TN  dw = xᵀ·dy           x[k,m] MN-major   dy[k,n] MN-major
//
// Tiles are as in warpgroup.cu. A k-tile is 64 k.
#include "bf16_warpgroup.cuh"

namespace gemm {

#if HAVE_WARPGROUP

int bf16_warpgroup(uintptr_t stream, const Gemm &g) {
  return g.layout == NN ? launch_fastest<Bf16<NN>>(stream, &g, 1) : launch_fastest<Bf16<NT>>(stream, &g, 1);
}

int bf16_warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count) {
  constexpr int MAX = Group<TmaGemm>::MAX;
  for (int i = 0; i < count; i += MAX)
    if (int code = launch_fastest<Bf16<TN>>(stream, g + i, std::min(count - i, MAX))) return code;
  return cudaSuccess;
}

#else

int bf16_warpgroup(uintptr_t, const Gemm &) { return cudaErrorNotSupported; }
int bf16_warpgroup_wgrad(uintptr_t, const Gemm *, int) { return cudaErrorNotSupported; }

#endif

}  // namespace gemm
