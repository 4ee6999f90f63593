// What the products of few rows on the tensor cores multiply with.
#ifndef FEW_TENSOR_CUH
#define FEW_TENSOR_CUH

#include "few_lines.cuh"

namespace few {

// Sums are a warp's, of 16 rows by NI eights of columns.
template <bool THREE, int NI>
struct Sums {
  float c[NI][4] = {};

  // add adds the products of eight k: a lane has two of them, of rows g and g+8 and of
  // column g of each eight. A byte is exact and has no rest.
  template <bool BYTES>
  __device__ void add(const float (&fa)[2][2], const float (&fb)[NI][2]) {
    unsigned a[2][2], a_rest[2][2];
    if (BYTES) {
#pragma unroll
      for (int r = 0; r < 2; r++) a[r][0] = __float_as_uint(fa[r][0]), a[r][1] = __float_as_uint(fa[r][1]);
    } else {
      split<THREE>(a, a_rest, fa);
    }
    add<BYTES>(a, a_rest, fb);
  }

  // This one is of rows split before.
  template <bool BYTES>
  __device__ void add(const unsigned (&a)[2][2], const unsigned (&a_rest)[2][2], const float (&fb)[NI][2]) {
    unsigned b[NI][2], b_rest[NI][2];
    split<THREE>(b, b_rest, fb);
    if (THREE) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[j], a[0], a[1], b_rest[j]);
    }
    if (THREE && !BYTES) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[j], a_rest[0], a_rest[1], b[j]);
    }
#pragma unroll
    for (int j = 0; j < NI; j++) mma(c[j], a[0], a[1], b[j]);
  }
};

// Tensor multiplies a warp's 16 k of a layer: of rows g and g+8, and column g of three
// eights.
template <bool THREE>
struct Tensor {
  static constexpr int ROWS = 2, AHEAD = THREE ? 1 : 2, PARTS = WARPS, FLOATS = PARTS * BM * BN;
  static constexpr bool OVER = false;
  Sums<THREE, 3> sums;

  static __device__ int row(int h) { return 8 * h + threadIdx.x % 32 / 4; }

  template <bool NT, bool BYTES>
  __device__ void add(const float (&a)[2][4], const float *weights) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *from = weights + (NT ? g * TURN + CHUNK * warp + 4 * t : (CHUNK / 4 * warp + t) * BN);
    float b[3][4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (NT) {
        if (e < 3) *(float4 *)b[e] = *(const float4 *)(from + 8 * e * TURN);
      } else {
        // The first two eights share 16 columns, one of two neighbours each.
        const float *line = from + e * (TURN / 4) * BN;
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
      sums.template add<BYTES>(fa, fb);
    }
  }

  // leave writes a warp's part of the sums, in lines of BN.
  template <bool NT>
  __device__ void leave(float *parts) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto &c = sums.c;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float *line = parts + warp * (BM * BN) + (8 * h + g) * BN;
#pragma unroll
      for (int j = NT ? 0 : 2; j < 3; j++) *(float2 *)(line + 8 * j + 2 * t) = make_float2(c[j][2 * h], c[j][2 * h + 1]);
      if (!NT) *(float4 *)(line + 4 * t) = make_float4(c[0][2 * h], c[1][2 * h], c[0][2 * h + 1], c[1][2 * h + 1]);
    }
  }

  // pair is this thread's two neighbours of the i-th part.
  template <bool NT>
  static __device__ float2 pair(const float *parts, int i) {
    return *(const float2 *)(parts + i * (BM * BN) + 2 * threadIdx.x);
  }
};

}  // namespace few

#endif
