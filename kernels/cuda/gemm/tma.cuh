// The tensor memory accelerator, TMA, the copy engine of an SM. One thread has it load a tile, which it can
// multicast to both CTAs of a pair; mbarriers count the bytes that have arrived. It needs CUDA 12.1 and
// compute capability 9; GEMMs do not use it on 10, where nothing was measured, nor on 12, which has no
// multicast.
//
//   host                       one thread of a CTA                      every thread
//   encode: address, shape  →  mbarrier_init
//     and tile of a matrix,    mbarrier_arrive_expect_tx(bytes)
//     the tensor map           tma_load(to, map, x, y)               →  mbarrier_wait(parity)
#pragma once

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

struct TmaGemm : Gemm {
  TensorMap map[3];
};

bool tma_possible();

// A Dimension of an array: its length, its stride in elements (1 for the first), and the length of a tile.
struct Dimension {
  int64_t count, stride;
  int tile;
};

// TileFormat says how TMA writes a tile to shared memory. PLAIN is row by row; kernels pad rows against bank
// conflicts. SWIZZLE_128B is what wgmma reads: rows of 128 bytes, where the 16-byte chunk c of row r is in
// the place of chunk c ^ r % 8, so that a column of eight is in all banks. SWIZZLE_128B_TF32 also rounds to
// tf32, to nearest even. Elements are floats, and bf16 in PLAIN_BF16 and SWIZZLE_128B_BF16.
enum class TileFormat { PLAIN, PLAIN_BF16, SWIZZLE_128B, SWIZZLE_128B_TF32, SWIZZLE_128B_BF16 };

// encode makes the tensor map of an array whose rows begin on 16-byte boundaries. tensormap.cu caches them.
int encode(TensorMap &map, const void *array, const Dimension *dimensions, int rank, TileFormat format);

template <int RANK>
int encode(TensorMap &map, const void *array, const Dimension (&d)[RANK], TileFormat format = TileFormat::PLAIN) {
  return encode(map, array, d, RANK, format);
}

// An Mbarrier is in shared memory. Its phase ends when the number of threads that it was initialized with
// have arrived, and all bytes that they expect have been loaded; then the next phase begins.
using Mbarrier = unsigned long long;

__device__ inline unsigned address(const void *shared) { return unsigned(__cvta_generic_to_shared(shared)); }

__device__ inline void mbarrier_init(Mbarrier *b, int threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(b)), "r"(threads) : "memory");
}

__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// mbarrier_arrive_expect_tx arrives, and adds to the bytes that the phase expects (tx: transactions).
__device__ inline void mbarrier_arrive_expect_tx(Mbarrier *b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(b)), "r"(bytes) : "memory");
}

__device__ inline void mbarrier_arrive(Mbarrier *b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(b)) : "memory"); }

// mbarrier_wait waits until phase number phase (from 0) has ended; phase -1 counts as ended. Only the parity
// of phase counts, so 1 stands for -1 until phase 0 has ended.
__device__ inline void mbarrier_wait(Mbarrier *b, int phase) {
  asm volatile("{\n.reg .pred done;\nagain:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(address(b)),
               "r"(phase % 2)
               : "memory");
}

// tma_load loads the tile whose first element is (x, y), x along the contiguous dimension. Elements outside
// the array become zeros. tma_load_multicast loads it for both CTAs of a pair, to the same offset in each.
__device__ inline void tma_load(void *to, const TensorMap &map, int x, int y, Mbarrier *b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(address(to)),
               "l"(&map), "r"(x), "r"(y), "r"(address(b))
               : "memory");
}

__device__ inline void tma_load_multicast(void *to, const TensorMap &map, int x, int y, Mbarrier *b) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
                   address(to)),
               "l"(&map), "r"(x), "r"(y), "r"(address(b)), "h"((unsigned short)3)
               : "memory");
}

__device__ inline void tma_load_multicast(void *to, const TensorMap &map, int x, int y, int z, Mbarrier *b) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
          address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(address(b)), "h"((unsigned short)3)
      : "memory");
}

// fence_proxy_async makes this thread's writes to shared memory visible to TMA and wgmma, which access it by
// the async proxy, not the generic one. A barrier must follow before another thread starts the copy.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// tma_reduce_add adds a tile in shared memory to the array, tma_store stores it. One thread calls them.
__device__ inline void tma_reduce_add(const TensorMap &map, int x, int y, const float *from) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y),
               "r"(address(from))
               : "memory");
}

__device__ inline void tma_store(const TensorMap &map, int x, int y, const float *from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y), "r"(address(from))
               : "memory");
}

// bulk_load loads bytes, and bulk_store stores them, both whole multiples of 16 on 16-byte boundaries. One
// thread calls them.
__device__ inline void bulk_load(void *to, const void *from, int bytes, Mbarrier *b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)), "l"(from), "r"(bytes),
               "r"(address(b))
               : "memory");
}

__device__ inline void bulk_store(void *to, const void *from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address(from)), "r"(bytes) : "memory");
}

// fence_proxy_async_global orders accesses to global memory before it by threads and after it by TMA, and the
// other way round.
__device__ inline void fence_proxy_async_global() {
#if HAVE_TMA && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

// bulk_commit ends a group of tiles that this thread stores. bulk_wait_read waits until TMA has read the
// tiles of all groups from shared memory. bulk_wait also waits until TMA has written them.
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// mbarriers_ready waits until thread 0 of each CTA of a pair has initialized its mbarriers. Only then may
// either CTA load a tile for both.
__device__ inline void mbarriers_ready() {
  if (threadIdx.x == 0) fence_mbarrier_init();
  __syncwarp();
  barrier_cluster_arrive_relaxed();  // the fence is a release
  barrier_cluster_wait();
}

// mbarriers_start initializes mbarriers, at each of which one thread arrives.
__device__ inline void mbarriers_start(Mbarrier *b, int count) {
  if (threadIdx.x == 0)
    for (int i = 0; i < count; i++) mbarrier_init(b + i, 1);
  mbarriers_ready();
}

// tma_write_tile, called by a warp, adds its tile in shared memory to the array or stores it.
__device__ inline void tma_write_tile(bool add, const TensorMap &map, int x, int y, const float *from) {
  if (threadIdx.x % 32) return;
  if (add) tma_reduce_add(map, x, y, from);
  else tma_store(map, x, y, from);
  bulk_commit();
  bulk_wait_read();
}

}  // namespace gemm
