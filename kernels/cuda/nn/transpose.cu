// The transpose of a matrix.
#include "launch.cuh"

namespace {

constexpr int TILE = 32, LINE = TILE + 1, ROWS = 8;  // ROWS of threads, each with TILE / ROWS elements; LINE for the banks

// A CTA has the tiles blockIdx.x, blockIdx.x + gridDim.x, ... of t[cols,rows]: through shared memory, so
// that both sides are whole lines.
__global__ void __launch_bounds__(TILE *ROWS) transpose(float *t, const float *x, int64_t rows, int64_t cols) {
  __shared__ float tile[TILE][LINE];
  pdl_wait();
  int lane = threadIdx.x % TILE, line = threadIdx.x / TILE;
  int64_t wide = (cols + TILE - 1) / TILE, all = wide * ((rows + TILE - 1) / TILE);
  for (int64_t i = blockIdx.x; i < all; i += gridDim.x) {
    int64_t r = i / wide * TILE, c = i % wide * TILE;
#pragma unroll
    for (int e = line; e < TILE; e += ROWS)
      if (r + e < rows && c + lane < cols) tile[e][lane] = __ldcg(x + (r + e) * cols + c + lane);
    __syncthreads();
#pragma unroll
    for (int e = line; e < TILE; e += ROWS)
      if (c + e < cols && r + lane < rows) t[(c + e) * rows + r + lane] = tile[lane][e];
    __syncthreads();
  }
}

}  // namespace

int kernels_transpose(uintptr_t stream, uintptr_t t, uintptr_t x, int64_t rows, int64_t cols) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (rows == 0 || cols == 0) return cudaSuccess;
  int64_t tiles = ((rows - 1) / TILE + 1) * ((cols - 1) / TILE + 1);
  return launch(stream, {ctas(tiles, 1), TILE * ROWS}, transpose, ptr<float>(t), ptr<float>(x), rows, cols);
}
