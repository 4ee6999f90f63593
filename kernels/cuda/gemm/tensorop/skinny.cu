// Skinny GEMM (skinny.cuh) on the tensor cores, in tf32 and 3xtf32.
#include "gemm/mma.cuh"
#include "gemm/skinny.cuh"

namespace gemm {

namespace {

using namespace skinny;

// TensorOp multiplies a warp's 16 k of a k-tile. A lane has rows g and g+8 of the batch, and column g of
// three n8 fragments of the weights. Its four k are those of two mma.sync: 4t and 4t+1, then 4t+2 and 4t+3.
// In NN, where columns are contiguous, the first two fragments interleave in 16 columns:
//
//   column    0 1 2 3 ... 14 15 | 16 .. 23
//   fragment  0 1 0 1 ...  0  1 |  2 ..  2
//   its g     0 0 1 1 ...  7  7 |  0 ..  7
template <bool X3>
struct TensorOp : OnTensorCores {
  using Value = float;
  using Operand = float[4];
  static constexpr int READ_AHEAD = X3 ? 1 : 2;
  Accumulators<X3, 3> sums;

  template <int LAYOUT, bool U8>
  __device__ void multiply(const Operand (&a)[2], const float *weights) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *from = weights + (LAYOUT == NT ? g * K_TILE + WARP_K * warp + 4 * t : (WARP_K / 4 * warp + t) * BN);
    float b[3][4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (LAYOUT == NT) {
        if (e < 3) *(float4 *)b[e] = *(const float4 *)(from + 8 * e * K_TILE);
      } else {
        const float *line = from + e * (K_TILE / 4) * BN;
        float2 two = *(const float2 *)(line + 2 * g);
        b[0][e] = two.x, b[1][e] = two.y, b[2][e] = line[16 + g];
      }
    }
#pragma unroll
    for (int s = 0; s < 4; s += 2) {
      float fa[2][2], fb[3][2];
#pragma unroll
      for (int h = 0; h < 2; h++) fa[h][0] = a[h][s], fa[h][1] = a[h][s + 1];
#pragma unroll
      for (int j = 0; j < 3; j++) fb[j][0] = b[j][s], fb[j][1] = b[j][s + 1];
      sums.template mma<U8>(fa, fb);
    }
  }

  template <int LAYOUT>
  __device__ void store_shared(float *parts) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto &c = sums.c;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float *line = parts + warp * (BM * BN) + (8 * h + g) * BN;
#pragma unroll
      for (int j = LAYOUT == NT ? 0 : 2; j < 3; j++) *(float2 *)(line + 8 * j + 2 * t) = make_float2(c[j][2 * h], c[j][2 * h + 1]);
      if (LAYOUT == NN) *(float4 *)(line + 4 * t) = make_float4(c[0][2 * h], c[1][2 * h], c[0][2 * h + 1], c[1][2 * h + 1]);
    }
  }
};

template <bool TMA>
int launch_precision(uintptr_t stream, const Gemm &g) {
  return g.precision == KERNELS_TF32X3 ? launch_skinny<TensorOp<true>, TMA>(stream, g) : launch_skinny<TensorOp<false>, TMA>(stream, g);
}

}  // namespace

int skinny_tensorop(uintptr_t stream, const Gemm &g) { return launch_precision<false>(stream, g); }

int skinny_tensorop_tma(uintptr_t stream, const Gemm &g) { return launch_precision<true>(stream, g); }

}  // namespace gemm
