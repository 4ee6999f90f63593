// Tiles copied by the copy engine of a multiprocessor (TMA), which one thread sends for
// and which may bring one read to both blocks of a pair. It takes a toolkit from CUDA
// 12.1 on and compute capability 9: of 10 nothing was measured, and 12 does not multicast.
#ifndef BULK_CUH
#define BULK_CUH

#include "launch.cuh"

#if defined(__CUDACC_VER_MAJOR__) && 100 * __CUDACC_VER_MAJOR__ + __CUDACC_VER_MINOR__ >= 1201
#define HAVE_BULK 1
#include <cuda.h>
#else
#define HAVE_BULK 0
#endif

namespace bulk {

// A dimension of an array: how many there are, how many floats apart (of the first: 1),
// and how many a tile has.
struct Dimension {
  int64_t count, stride;
  int tile;
};

#if HAVE_BULK

using Map = CUtensorMap;  // says what an array and its tiles are like

using Encode = decltype(&cuTensorMapEncodeTiled);

inline Encode encode() {
  static const Encode found = [] {
    Encode f;
    driver_function(f, "cuTensorMapEncodeTiled", 12000);
    return f;
  }();
  return found;
}

inline bool possible() { return device().major == 9 && device().capability / 10 == 9 && encode(); }

// describe makes a map. Rows begin on 16-byte boundaries.
template <int RANK>
int describe(Map &map, const float *array, const Dimension (&d)[RANK]) {
  // The driver wants a context, which a thread may not have yet.
  static thread_local const int ready = done(cudaSetDevice(0));
  if (ready != cudaSuccess) return ready;
  cuuint64_t counts[RANK], strides[RANK];
  cuuint32_t tile[RANK], steps[RANK];
  for (int i = 0; i < RANK; i++) counts[i] = d[i].count, strides[i] = 4 * d[i].stride, tile[i] = d[i].tile, steps[i] = 1;
  CUresult code = encode()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, RANK, const_cast<float *>(array), counts, strides + 1, tile, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return code;  // the runtime's errors have the driver's numbers
}

#else

struct Map {};

inline bool possible() { return false; }

template <int RANK>
int describe(Map &, const float *, const Dimension (&)[RANK]) {
  return cudaErrorNotSupported;
}

#endif

constexpr int PAIR = 2;  // blocks in a cluster

// Arrivals, in shared memory, counts the bytes of the tiles that were sent for.
using Arrivals = unsigned long long;

#if HAVE_BULK && __CUDA_ARCH__ >= 900

__device__ inline unsigned address(const void *shared) { return unsigned(__cvta_generic_to_shared(shared)); }

// rank is which of its pair this block is.
__device__ inline int rank() {
  int r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}

// meet waits for the other block of the pair. It orders no memory: what was read before
// must have been used. meet_begin and meet_end are its halves.
__device__ inline void meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ inline void meet_begin() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void meet_end() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// init makes Arrivals of which each waits for so many calls of expect or arrive. One thread
// does so, and all go on from started.
__device__ inline void init(Arrivals *a, int count, int calls) {
  for (int i = 0; i < count; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(a + i)), "r"(calls) : "memory");
}

__device__ inline void started() {
  if (threadIdx.x == 0) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  meet();
}

// start makes the Arrivals of a block, before either of the pair sends for a tile.
__device__ inline void start(Arrivals *a, int count) {
  if (threadIdx.x == 0) init(a, count, 1);
  started();
}

// expect is called by one thread, once before each wait.
__device__ inline void expect(Arrivals *a, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(a)), "r"(bytes) : "memory");
}

// arrive says that this thread is done with what the Arrivals are for.
__device__ inline void arrive(Arrivals *a) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(a)) : "memory"); }

// wait waits for what was expected the time-th time, from 0 on.
__device__ inline void wait(Arrivals *a, int time) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(address(a)),
      "r"(time % 2)
      : "memory");
}

// send sends for the tile from x, y, z on. What lies outside of the array is zeros.
__device__ inline void send(float *to, const Map &map, int x, int y, Arrivals *a) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(address(to)),
               "l"(&map), "r"(x), "r"(y), "r"(address(a))
               : "memory");
}

// send_both sends for it for both blocks, to the same place in each.
__device__ inline void send_both(float *to, const Map &map, int x, int y, Arrivals *a) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
          address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(address(a)), "h"((unsigned short)3)
      : "memory");
}

__device__ inline void send_both(float *to, const Map &map, int x, int y, int z, Arrivals *a) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
          address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(address(a)), "h"((unsigned short)3)
      : "memory");
}

// publish lets add see what this thread wrote to shared memory, once threads have met.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// add is called by a warp and adds a tile in shared memory to what is in the array.
__device__ inline void add(const Map &map, int x, int y, const float *from) {
  if (threadIdx.x % 32) return;
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y),
               "r"(address(from))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

// there is the address of this block's shared memory in another block of the cluster.
__device__ inline unsigned there(const void *shared, int rank) {
  unsigned a;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(address(shared)), "r"(rank));
  return a;
}

// give writes to another block of the cluster, whose Arrivals expect it.
__device__ inline void give(float *to, float4 v, Arrivals *a, int rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there(to, rank)), "f"(v.x),
               "f"(v.y), "f"(v.z), "f"(v.w), "r"(there(a, rank))
               : "memory");
}

#else

__device__ inline int rank() { return 0; }
__device__ inline void init(Arrivals *, int, int) {}
__device__ inline void started() {}
__device__ inline void arrive(Arrivals *) {}
__device__ inline void give(float *, float4, Arrivals *, int) {}
__device__ inline void meet() {}
__device__ inline void meet_begin() {}
__device__ inline void meet_end() {}
__device__ inline void start(Arrivals *, int) {}
__device__ inline void expect(Arrivals *, int) {}
__device__ inline void wait(Arrivals *, int) {}
__device__ inline void send(float *, const Map &, int, int, Arrivals *) {}
__device__ inline void send_both(float *, const Map &, int, int, Arrivals *) {}
__device__ inline void send_both(float *, const Map &, int, int, int, Arrivals *) {}
__device__ inline void publish() {}
__device__ inline void add(const Map &, int, int, const float *) {}

#endif

}  // namespace bulk

#endif
