// The tensor memory accelerator, TMA: the copy engine of an SM, which one thread tells to
// load a tile and which may multicast it to both CTAs of a pair; and mbarriers, which
// count what has come. It takes a toolkit from CUDA 12.1 on and compute capability 9: of
// 10 nothing was measured, and 12 does not multicast.
//
//   host                       one thread of a CTA                      every thread
//   encode: address, shape  →  mbarrier_init
//     and tile of a matrix,    mbarrier_arrive_expect_tx(bytes)
//     the tensor map           tma_load(to, map, x, y)               →  mbarrier_wait(parity)
#ifndef TMA_CUH
#define TMA_CUH

#include <cstring>
#include <mutex>

#include "cluster.cuh"
#include "gemm.cuh"

#if HAVE_TMA
#include <cuda.h>
#endif

namespace gemm {

#if HAVE_TMA
using TensorMap = CUtensorMap;
#else
struct TensorMap {};
#endif

// TmaGemm is for tiles of a, b and c (or y) that TMA copies.
struct TmaGemm : Gemm {
  TensorMap map[3];
};

bool tma_possible();

// A dimension of an array: how many there are, how many floats apart (of the first: 1),
// and how many a tile has.
struct Dimension {
  int64_t count, stride;
  int tile;
};

// How TMA writes a tile to shared memory: row by row (PLAIN); with CU_TENSOR_MAP_SWIZZLE_128B, as wgmma
// wants it; or so and rounded to tf32, to nearest even (CU_TENSOR_MAP_DATA_TYPE_TFLOAT32).
enum class TileFormat { PLAIN, SWIZZLE_128B, SWIZZLE_128B_TF32 };

// encode makes a tensor map of an array whose rows begin on 16-byte boundaries. It keeps
// the last ones that it made (see tensormap.cu).
int encode(TensorMap &map, const float *array, const Dimension *dimensions, int rank, TileFormat format);

template <int RANK>
int encode(TensorMap &map, const float *array, const Dimension (&d)[RANK], TileFormat format = TileFormat::PLAIN) {
  return encode(map, array, d, RANK, format);
}

// An mbarrier, in shared memory. Its phase ends when all threads that it waits for have
// arrived and all bytes have come that they said to expect; then the next one begins.
using Mbarrier = unsigned long long;

#if HAVE_TMA && __CUDA_ARCH__ >= 900

__device__ inline unsigned address(const void *shared) { return unsigned(__cvta_generic_to_shared(shared)); }

__device__ inline void mbarrier_init(Mbarrier *b, int threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(b)), "r"(threads) : "memory");
}

__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive_expect_tx(Mbarrier *b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(b)), "r"(bytes) : "memory");
}

__device__ inline void mbarrier_arrive(Mbarrier *b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(b)) : "memory"); }

// mbarrier_wait waits for the end of the phase-th phase, from 0 on.
__device__ inline void mbarrier_wait(Mbarrier *b, int phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(address(b)),
      "r"(phase % 2)
      : "memory");
}

// tma_load loads the tile from x, y, z on. What lies outside of the array is zeros.
__device__ inline void tma_load(float *to, const TensorMap &map, int x, int y, Mbarrier *b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(address(to)),
               "l"(&map), "r"(x), "r"(y), "r"(address(b))
               : "memory");
}

// tma_load_multicast loads it for both CTAs of a pair, to the same place in each.
__device__ inline void tma_load_multicast(float *to, const TensorMap &map, int x, int y, Mbarrier *b) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(address(b)), "h"((unsigned short)3)
      : "memory");
}

__device__ inline void tma_load_multicast(float *to, const TensorMap &map, int x, int y, int z, Mbarrier *b) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
          address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(address(b)), "h"((unsigned short)3)
      : "memory");
}

// fence_proxy_async lets TMA see what this thread wrote to shared memory, once threads
// have met.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// tma_reduce_add is called by one thread and adds a tile in shared memory to what is in the
// array. bulk_commit_wait waits until that was read.
__device__ inline void tma_reduce_add(const TensorMap &map, int x, int y, const float *from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y),
               "r"(address(from))
               : "memory");
}

__device__ inline void bulk_commit_wait() { asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory"); }

#else

__device__ inline unsigned address(const void *) { return 0; }
__device__ inline void mbarrier_init(Mbarrier *, int) {}
__device__ inline void fence_mbarrier_init() {}
__device__ inline void mbarrier_arrive_expect_tx(Mbarrier *, int) {}
__device__ inline void mbarrier_arrive(Mbarrier *) {}
__device__ inline void mbarrier_wait(Mbarrier *, int) {}
__device__ inline void tma_load(float *, const TensorMap &, int, int, Mbarrier *) {}
__device__ inline void tma_load_multicast(float *, const TensorMap &, int, int, Mbarrier *) {}
__device__ inline void tma_load_multicast(float *, const TensorMap &, int, int, int, Mbarrier *) {}
__device__ inline void fence_proxy_async() {}
__device__ inline void tma_reduce_add(const TensorMap &, int, int, const float *) {}
__device__ inline void bulk_commit_wait() {}

#endif

// mbarriers_ready lets all threads of a pair go on when one of each CTA, thread 0, has made
// the mbarriers, and so before either loads a tile for both.
__device__ inline void mbarriers_ready() {
  if (threadIdx.x == 0) fence_mbarrier_init();
  __syncwarp();
  barrier_cluster_relaxed();
}

// mbarriers_start makes mbarriers that wait for one thread each.
__device__ inline void mbarriers_start(Mbarrier *b, int count) {
  if (threadIdx.x == 0)
    for (int i = 0; i < count; i++) mbarrier_init(b + i, 1);
  mbarriers_ready();
}

// tma_add_tile is called by a warp and adds its tile to what is in the array.
__device__ inline void tma_add_tile(const TensorMap &map, int x, int y, const float *from) {
  if (threadIdx.x % 32) return;
  tma_reduce_add(map, x, y, from);
  bulk_commit_wait();
}

}  // namespace gemm

#endif
