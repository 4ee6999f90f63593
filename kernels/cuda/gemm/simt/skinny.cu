// Skinny GEMM (skinny.cuh) on the CUDA cores, in float32.
#include "gemm/skinny.cuh"

namespace gemm {

namespace {

using namespace skinny;

// Simt multiplies four k of a k-tile. Lane 8r + 4c + t has rows r, r+4, r+8 and r+12 by twelve columns, in NN
// those from 12c on, in NT every other one from c on.
//
//          columns 0..11 (NN) or even (NT)   12..23 or odd
//   row r     k = 4t..4t+3 of lane 8r+t         of lane 8r+4+t       and so rows r+4, r+8, r+12
//
// The four lanes t have the same rows and columns and different k: each warp has four partial sums.
struct Simt {
  using Value = float;
  using Operand = float[4];
  static constexpr int ROWS = 4, READ_AHEAD = 1, COLUMNS = 12;
  // Parts are 8 banks apart.
  static constexpr int PARTS = 4 * WARPS, PART = BM * BN + 8, FLOATS = PARTS * PART;
  static constexpr bool OVERWRITES = true;  // the sums overwrite the weights
  template <int LAYOUT>
  static constexpr bool IN_ONE_PIECE = LAYOUT == NN;  // NT would spill
  float sums[ROWS][COLUMNS] = {};

  static __device__ int row(int h) { return 4 * h + threadIdx.x % 32 / 8; }

  template <int LAYOUT, bool U8>
  __device__ void multiply(const Operand (&a)[ROWS], const float *weights) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane / 4 % 2, t = lane % 4;
    const float *from = weights + (LAYOUT == NT ? c * K_TILE + WARP_K * warp + 4 * t : (WARP_K / 4 * warp + t) * BN + COLUMNS * c);
    if (LAYOUT == NT) {
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) {
        float4 v = *(const float4 *)(from + 2 * j * K_TILE);
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
          float4 v = *(const float4 *)(from + e * (K_TILE / 4) * BN + j);
#pragma unroll
          for (int i = 0; i < ROWS; i++)
            sums[i][j] += a[i][e] * v.x, sums[i][j + 1] += a[i][e] * v.y, sums[i][j + 2] += a[i][e] * v.z, sums[i][j + 3] += a[i][e] * v.w;
        }
    }
  }

  // store_shared writes a lane's sums; the columns of c = 0 come before those of c = 1.
  template <int LAYOUT>
  __device__ void store_shared(float *parts) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane / 4 % 2, t = lane % 4;
    float *part = parts + (4 * warp + t) * PART + COLUMNS * c;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
      for (int j = 0; j < COLUMNS; j += 4)
        *(float4 *)(part + row(i) * BN + j) = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
  }

  template <int LAYOUT>
  static __device__ float2 pair(const float *parts, int i) {
    const float *part = parts + i * PART;
    if (LAYOUT == NN) return *(const float2 *)(part + 2 * threadIdx.x);
    part += threadIdx.x / COLUMNS * BN + threadIdx.x % COLUMNS;
    return make_float2(part[0], part[COLUMNS]);
  }
};

}  // namespace

int64_t skinny_tiles(const Gemm &g) { return tiles(g, BM, BN); }

int skinny_simt(uintptr_t stream, const Gemm &g) { return launch_skinny<Simt, false>(stream, g); }

int skinny_simt_tma(uintptr_t stream, const Gemm &g) { return launch_skinny<Simt, true>(stream, g); }

}  // namespace gemm
