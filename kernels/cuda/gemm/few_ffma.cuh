// How layers of few rows are multiplied on the CUDA cores.
#ifndef FEW_FFMA_CUH
#define FEW_FFMA_CUH

#include "few_lines.cuh"

namespace few {

// Ffma multiplies a lane's four k of a layer: of rows r, r+4, r+8 and r+12, for r = lane/8,
// and twelve columns, NN: those from 12c on, NT: every other one from c on, for c =
// lane/4 % 2.
struct Ffma {
  static constexpr int ROWS = 4, AHEAD = 1, COLUMNS = 12;
  static constexpr int PARTS = 4 * WARPS, PART = BM * BN + 8, FLOATS = PARTS * PART;  // eight banks apart
  static constexpr bool OVER = true;  // the sums' place is that of the weights
  float sums[ROWS][COLUMNS] = {};

  static __device__ int row(int h) { return 4 * h + threadIdx.x % 32 / 8; }

  template <bool NT, bool BYTES>
  __device__ void add(const float (&a)[ROWS][4], const float *weights) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane / 4 % 2, t = lane % 4;
    const float *from = weights + (NT ? c * TURN + CHUNK * warp + 4 * t : (CHUNK / 4 * warp + t) * BN + COLUMNS * c);
    if (NT) {
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        float4 v = *(const float4 *)(from + 2 * j * TURN);
        float w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int i = 0; i < ROWS; i++) sums[i][j] += a[i][e] * w[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 4) {
          float4 v = *(const float4 *)(from + e * (TURN / 4) * BN + j);
#pragma unroll
          for (int i = 0; i < ROWS; i++)
            sums[i][j] += a[i][e] * v.x, sums[i][j + 1] += a[i][e] * v.y, sums[i][j + 2] += a[i][e] * v.z, sums[i][j + 3] += a[i][e] * v.w;
        }
    }
  }

  // leave writes a lane's part of the sums, the columns of c = 0 before those of c = 1.
  template <bool NT>
  __device__ void leave(float *parts) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane / 4 % 2, t = lane % 4;
    float *part = parts + (4 * warp + t) * PART + COLUMNS * c;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int j = 0; j < COLUMNS; j += 4)
        *(float4 *)(part + row(i) * BN + j) = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
  }

  // pair is this thread's two neighbours of the i-th part.
  template <bool NT>
  static __device__ float2 pair(const float *parts, int i) {
    const float *part = parts + i * PART;
    if (!NT) return *(const float2 *)(part + 2 * threadIdx.x);
    part += threadIdx.x / COLUMNS * BN + threadIdx.x % COLUMNS;
    return make_float2(part[0], part[COLUMNS]);
  }
};

}  // namespace few

#endif
