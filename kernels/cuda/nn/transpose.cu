// The transpose of a matrix: t[cols,stride] = x[rows,cols]ᵀ.
#include "launch.cuh"

namespace {

constexpr int LANES = 32, LINES = 8;  // of a CTA's threads

// A CTA has the tiles blockIdx.x, blockIdx.x + gridDim.x, ... of t[cols,rows]: through shared memory, so
// that both sides are whole lines. A thread has TILE²/256 elements on their way at once.
template <int TILE>
__global__ void __launch_bounds__(LANES *LINES) transpose(float *t, const float *x, int64_t rows, int64_t cols, int64_t stride) {
  constexpr int LINE = TILE + 1;  // for the banks
  __shared__ float tile[TILE][LINE];
  pdl_wait();
  int lane = threadIdx.x % LANES, line = threadIdx.x / LANES;
  int64_t wide = (cols + TILE - 1) / TILE, all = wide * ((rows + TILE - 1) / TILE);
  for (int64_t i = blockIdx.x; i < all; i += gridDim.x) {
    int64_t r = i / wide * TILE, c = i % wide * TILE;
    float v[TILE / LINES][TILE / LANES] = {};
#pragma unroll
    for (int e = 0; e < TILE / LINES; e++)
#pragma unroll
      for (int j = 0; j < TILE / LANES; j++) {
        int64_t y = r + line + e * LINES, z = c + lane + j * LANES;
        if (y < rows && z < cols) v[e][j] = __ldcg(x + y * cols + z);
      }
#pragma unroll
    for (int e = 0; e < TILE / LINES; e++)
#pragma unroll
      for (int j = 0; j < TILE / LANES; j++) tile[line + e * LINES][lane + j * LANES] = v[e][j];
    __syncthreads();
#pragma unroll
    for (int e = 0; e < TILE / LINES; e++)
#pragma unroll
      for (int j = 0; j < TILE / LANES; j++) {
        int64_t y = c + line + e * LINES, z = r + lane + j * LANES;
        if (y < cols && z < rows) t[y * stride + z] = tile[lane + j * LANES][line + e * LINES];
      }
    __syncthreads();
  }
}

int64_t tiles(int64_t rows, int64_t cols, int64_t tile) { return ((rows - 1) / tile + 1) * ((cols - 1) / tile + 1); }

}  // namespace

int kernels_transpose(uintptr_t stream, uintptr_t t, uintptr_t x, int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (rows == 0 || cols == 0) return cudaSuccess;
  int64_t large = tiles(rows, cols, 64), stride = KERNELS_TRANSPOSED_STRIDE(rows);
  if (large >= 4 * device().sms)
    return launch(stream, {ctas(large, 1), LANES * LINES}, transpose<64>, ptr<float>(t), ptr<float>(x), rows, cols, stride);
  return launch(stream, {ctas(tiles(rows, cols, 32), 1), LANES * LINES}, transpose<32>, ptr<float>(t), ptr<float>(x), rows, cols, stride);
}
