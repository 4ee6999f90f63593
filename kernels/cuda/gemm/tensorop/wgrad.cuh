// Which columns of dy and dw a lane has, in wgrads on the tensor cores. TN, dw[m,n] = x[k,m]ᵀ·dy[k,n]; in
// shared memory an operand has a line for each k.
#pragma once

#include "gemm/mma.cuh"

namespace gemm {

// Columns are a warp's 8·NI, of NI n8 fragments. Of seven fragments lane 4g + t has
//
//                 columns 0..31     32..47        48..55
//   fragments     0, 1, 2, 3        4, 5          6
//   lane reads    4g..4g+3          2g, 2g+1      g           of b, one column of each fragment
//   lane sums     8t..8t+7          4t..4t+3      2t, 2t+1    of c
//
// so that it reads four fragments by float4 or two by float2, and writes their sums by float4. NI is 7, 6
// (without the last) or 2 (4 and 5 alone).
template <int NI>
struct Columns {
  static constexpr int FOURS = NI / 4 * 4, TWOS = NI / 2 * 2;
  static_assert(FOURS <= 4 && TWOS == FOURS + 2, "four fragments or none, two, and one or none");

  // read reads the e-th of the lane's two k, whose line is given.
  static __device__ void read(float (&f)[NI][2], int e, const float *line, int g) {
    float2 two = *(const float2 *)(line + 8 * FOURS + 2 * g);
    if constexpr (FOURS > 0) {
      float4 four = *(const float4 *)(line + 4 * g);
      f[0][e] = four.x, f[1][e] = four.y, f[2][e] = four.z, f[3][e] = four.w;
    }
    f[FOURS][e] = two.x, f[FOURS + 1][e] = two.y;
    if constexpr (TWOS < NI) f[TWOS][e] = line[8 * TWOS + g];
  }

  // each calls put(column, float4 or float2) for the lane's sums of row g (h = 0) or g+8 (h = 1).
  template <typename Put>
  static __device__ void each(const float (&c)[NI][4], int h, int t, Put put) {
    if constexpr (FOURS > 0) {
#pragma unroll
      for (int x = 0; x < 2; x++) put(8 * t + 4 * x, make_float4(c[0][2 * h + x], c[1][2 * h + x], c[2][2 * h + x], c[3][2 * h + x]));
    }
    put(8 * FOURS + 4 * t, make_float4(c[FOURS][2 * h], c[FOURS + 1][2 * h], c[FOURS][2 * h + 1], c[FOURS + 1][2 * h + 1]));
    if constexpr (TWOS < NI) put(8 * TWOS + 2 * t, make_float2(c[TWOS][2 * h], c[TWOS][2 * h + 1]));
  }
};

}  // namespace gemm
