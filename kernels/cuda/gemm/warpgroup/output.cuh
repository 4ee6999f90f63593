// How c and cᵀ of a GEMM by warpgroup MMA in tf32 leave registers: a warpgroup writes slices of its 64 rows
// of a tile to shared memory, and TMA stores them in whole lines of 128 bytes.
//
//   128 threads                      their first thread
//   write slice i → fence →          wait until TMA has read slice i-1 → barrier → store slice i
//
// There are two buffers, so TMA reads one slice while the warpgroup writes the next one, of this tile or
// another.
#pragma once

#include "gemm/pipeline.cuh"
#include "gemm/tma.cuh"

namespace gemm {

// A slice has 64 rows, m, and 32 columns, n, of out. out is cᵀ, so in c those are the columns. TMA's tile of
// c has 32 m, which are a line of 128 bytes, and 32 n. Its tile of cᵀ has 32 n, a line, and 64 m.
constexpr int SLICE_M = 64, SLICE_N = 32, SLICE = SLICE_M * SLICE_N * int(sizeof(float)), LINE_FLOATS = 32;
constexpr int SLICE_BUFFERS = 2;  // of a warpgroup

struct OutputMaps {
  TensorMap c, t;

  int encode(const Gemm &g) {
    int code = gemm::encode<2>(c, g.c, {{g.n, 1, LINE_FLOATS}, {g.m, g.n, SLICE_N}}, TileFormat::SWIZZLE_128B);
    if (code || !g.t) return code;
    return gemm::encode<2>(t, g.t, {{g.m, 1, LINE_FLOATS}, {g.n, KERNELS_TRANSPOSED_STRIDE(g.m), SLICE_M}}, TileFormat::SWIZZLE_128B);
  }
};

// NoOutputMaps and NoSlices are those of a kernel that stores registers directly.
struct NoOutputMaps {
  int encode(const Gemm &) { return cudaSuccess; }
};

struct NoSlices {
  __device__ NoSlices(const NoOutputMaps &, char *, int, int, int) {}
};

// SliceWriter is a thread's part of its warpgroup's slices: columns 8j + n and 8j + n + 1 of rows m and m+1.
// m and n are even, and n < 8.
class SliceWriter {
  const OutputMaps &maps;
  char *const buffers;  // of the warpgroup
  const int barrier, m, n;
  int buffer = 0;  // where the one that is written begins

  // next stores what the warpgroup has written to buffer, and goes on to the other one.
  template <typename Store>
  __device__ void next(Store store) {
    fence_proxy_async();
    if (threadIdx.x % 128 == 0) bulk_wait_read();
    bar_sync(barrier, 128);
    if (threadIdx.x % 128 == 0) store((const float *)(buffers + buffer)), bulk_commit();
    buffer ^= SLICE;
  }

 public:
  // all are the buffers of all warpgroups, on a 1024-byte boundary. warpgroup counts from 0.
  __device__ SliceWriter(const OutputMaps &maps, char *all, int warpgroup, int m, int n)
      : maps(maps), buffers(all + warpgroup * (SLICE_BUFFERS * SLICE)), barrier(2 + warpgroup), m(m), n(n) {}

  // store_c stores a slice of c. v[j][o] is column 8j + n + o of both rows. x and y are the slice's first row
  // and column; out has this number of rows.
  __device__ void store_c(const float2 (&v)[SLICE_N / 8][2], int x, int y, int rows) {
#pragma unroll
    for (int o = 0; o < 2; o++) {
      char *to = buffers + buffer + m / LINE_FLOATS * (SLICE / 2) + (n + o) * 128 + (m % LINE_FLOATS / 4 ^ (n + o)) * 16 + m % 4 * 4;
#pragma unroll
      for (int j = 0; j < SLICE_N / 8; j++) *(float2 *)(to + j * 1024) = v[j][o];
    }
    next([&](const float *slice) {
      tma_store(maps.c, x, y, slice);
      if (x + LINE_FLOATS < rows) tma_store(maps.c, x + LINE_FLOATS, y, slice + SLICE_N * LINE_FLOATS);
    });
  }

  // store_t stores the slice of cᵀ.
  __device__ void store_t(const float2 (&v)[SLICE_N / 8][2], int x, int y) {
#pragma unroll
    for (int o = 0; o < 2; o++) {
      const int to = (m + o) * 128 + (n / 4 ^ (m + o) % 8) * 16 + n % 4 * 4;
#pragma unroll
      for (int j = 0; j < SLICE_N / 8; j++)
        *(float2 *)(buffers + buffer + (to ^ j * 32)) = o ? make_float2(v[j][0].y, v[j][1].y) : make_float2(v[j][0].x, v[j][1].x);
    }
    next([&](const float *slice) { tma_store(maps.t, y, x, slice); });
  }

  // finish waits until TMA has read the last slice. A CTA must not end before.
  __device__ void finish() const {
    if (threadIdx.x % 128 == 0) bulk_wait_read();
  }
};

}  // namespace gemm
