// Skinny GEMM (skinny.cuh) on the tensor cores, in bf16, with TMA.
#include "gemm/mma.cuh"
#include "gemm/skinny.cuh"

namespace gemm {

namespace {

using namespace skinny;

// TensorOp multiplies a warp's 16 k of a k-tile, by one mma.sync for each of three n8 fragments of the
// weights. A lane has rows g and g+8 of the batch, and column g of each fragment. Its four k, 4t..4t+3, are
// those that mma.sync calls 2t, 2t+1, 2t+8 and 2t+9.
struct TensorOp : OnTensorCores {
  using Value = bf16;
  using Operand = unsigned[2];
  static constexpr int READ_AHEAD = FEW;
  float sums[3][4] = {};

  // read_weights reads the fragments. In NN ldmatrix transposes: row r of the i-th matrix is k = 4⌊r/2⌋ + 2i
  // + r%2.
  template <int LAYOUT>
  static __device__ void read_weights(unsigned (&b)[3][2], const bf16 *weights) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (LAYOUT == NT) {
      const bf16 *from = weights + lane / 4 * K_TILE + WARP_K * warp + lane % 4 * 4;
#pragma unroll
      for (int j = 0; j < 3; j++) *(uint2 *)b[j] = *(const uint2 *)(from + 8 * j * K_TILE);
    } else {
      int r = lane % 8, i = lane / 8 % 2, line = (2 * i + r % 2) * (K_TILE / 4) + WARP_K / 4 * warp + r / 2;
      unsigned from = unsigned(__cvta_generic_to_shared(weights + line * BN)), two[4];
      ldmatrix<true>(two, from + lane / 16 * 16);
      b[0][0] = two[0], b[0][1] = two[1], b[1][0] = two[2], b[1][1] = two[3];
      ldmatrix<true>(b[2], from + 32);
    }
  }

  template <int LAYOUT, bool U8>
  __device__ void multiply(const Operand (&a)[2], const bf16 *weights) {
    unsigned b[3][2], fragment[4] = {a[0][0], a[1][0], a[0][1], a[1][1]};
    read_weights<LAYOUT>(b, weights);
#pragma unroll
    for (int j = 0; j < 3; j++) mma_sync(sums[j], fragment, b[j]);
  }

  template <int LAYOUT>
  __device__ void store_shared(float *parts) const {
    float *to = parts + threadIdx.x / 32 * (BM * BN) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < 3; j++) *(float2 *)(to + row(h) * BN + 8 * j) = make_float2(sums[j][2 * h], sums[j][2 * h + 1]);
  }
};

}  // namespace

int bf16_skinny_tma(uintptr_t stream, const Gemm &g) { return launch_skinny<TensorOp, true>(stream, g); }

}  // namespace gemm
