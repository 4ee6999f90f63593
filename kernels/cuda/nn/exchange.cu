// Exchange of updates between GPUs of one host, which reach each other's memory: a two-shot all-reduce (reduce-scatter
// and all-gather) over peer memory. Each rank adds up one part of the updates of all ranks, which it reads from their
// memory, to the weights, and stores these to the memory of all. So a rank receives, and sends, 2·S·(N−1)/N bytes for S
// bytes of weights on N ranks.
#include "gemm/gemm.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/tma.cuh"
#include "warp.cuh"

namespace {

using gemm::EXCHANGE_SHARED;
using gemm::Mbarrier;

// Flags is the begin of every rank's memory. Numbers of exchanges count from 1, modulo 2^32.
struct Flags {
  uint32_t ready[KERNELS_MAX_RANKS];   // by rank: the last exchange for which it has updates
  uint32_t stored[KERNELS_MAX_RANKS];  // by rank: the last exchange whose weights it has stored
  // Of this rank alone: the last exchange, and of the next one the tiles that CTAs have taken, and the CTAs that have ended.
  uint32_t last, taken, ended;
};
static_assert(sizeof(Flags) <= KERNELS_EXCHANGE_FLAGS);

__device__ uint32_t load_acquire(const uint32_t *p) {
#if __CUDA_ARCH__ >= 700
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
#else
  uint32_t v = *(const volatile uint32_t *)p;
  __threadfence_system();
#endif
  return v;
}

__device__ void store_release(uint32_t *p, uint32_t v) {
#if __CUDA_ARCH__ >= 700
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#else
  __threadfence_system();
  *(volatile uint32_t *)p = v;
#endif
}

// wait_until waits for a flag to reach a number, and reports whether it has: it gives up once stop is not 0.
__device__ bool wait_until(const uint32_t *flag, uint32_t number, const uint32_t *stop) {
  constexpr unsigned POLLS = 256;  // stop is in the host's memory, which is slow to read
  for (unsigned i = 1; int32_t(load_acquire(flag) - number) < 0; i++)
    if (i % POLLS == 0 && load_acquire(stop)) return false;
  return true;
}

// Like add_updates, exchange runs while CTAs of warpgroup.cu do: see there for registers and shared memory. With TMA a
// CTA loads tiles of the weights and of each rank's updates to STAGES of its shared memory, and stores the sums from
// there: whole tiles take less of a link's bandwidth than each thread's 16 bytes do.
constexpr int EXCHANGE_THREADS = 128, EXCHANGE_CTAS = gemm::compiled(90) ? 2048 / EXCHANGE_THREADS : 1, STAGES = 3;
constexpr int TILE_UNIT = 512;
// IN_FLIGHT is how many bytes all CTAs load from other ranks at a time. With more CTAs links move no more, and GEMMs are
// slower: measured with two and four ranks (TUNING.md).
constexpr int IN_FLIGHT = 512 << 10;

// part_of returns this rank's part, e.n floats, of an array in the memory of a rank.
__device__ float4 *part_of(const kernels_exchange &e, int rank, int64_t offset) {
  return reinterpret_cast<float4 *>(e.base[rank] + offset) + e.rank * (e.n / 4);
}

// tiles adds up by TMA. Each CTA takes the next tile: those that share an SM with others are slower. The first warp
// issues all copies: lane 0 loads the weights, and lane 1 + r loads from rank r and stores to it. A single thread would
// take longer to issue the copies of a tile than they take.
__device__ void tiles(const kernels_exchange &e, char *shared, int tile, uint32_t *taken) {
#if HAVE_TMA && __CUDA_ARCH__ >= 900
  __shared__ int64_t begin[STAGES];  // of each stage's tile, in bytes
  auto *loaded = reinterpret_cast<Mbarrier *>(shared + STAGES * (1 + e.ranks) * tile);
  const int64_t bytes = e.n * int64_t(sizeof(float));
  static_assert(1 + KERNELS_MAX_RANKS <= 32);
  const int lane = threadIdx.x, peer = lane == 0 || lane > e.ranks ? e.rank : lane - 1;
  const auto *from = reinterpret_cast<const char *>(part_of(e, peer, lane ? e.updates : e.weights));
  auto *to = reinterpret_cast<char *>(part_of(e, peer, e.weights));
  auto size = [&](int64_t at) { return int(bytes - at < tile ? bytes - at : tile); };
  auto slot = [&](int stage, int array) { return shared + (stage * (1 + e.ranks) + array) * tile; };
  auto load = [&](uint32_t number, int stage) {
    const int64_t at = int64_t(number) * tile;
    if (lane == 0) {
      begin[stage] = at;
      gemm::mbarrier_arrive_expect_tx(loaded + stage, at < bytes ? (1 + e.ranks) * size(at) : 0);
    }
    __syncwarp();
    if (at < bytes && lane <= e.ranks) gemm::bulk_load(slot(stage, lane), from + at, size(at), loaded + stage);
  };
  uint32_t next = (STAGES - 1) * gridDim.x + blockIdx.x;  // lane 0 takes a tile one turn before it is loaded
  if (lane == 0) {
    for (int s = 0; s < STAGES; s++) gemm::mbarrier_init(loaded + s, 1);
    gemm::fence_mbarrier_init();
  }
  if (lane < 32)
    for (int s = 0; s < STAGES - 1; s++) load(s * gridDim.x + blockIdx.x, s);
  __syncthreads();
  int stage = 0, phase = 0;
#pragma unroll 1
  for (;;) {
    if (lane < 32) {
      gemm::bulk_wait_read();  // of the stage that is loaded next
      load(__shfl_sync(ALL, next, 0), stage ? stage - 1 : STAGES - 1);
      if (lane == 0) next = STAGES * gridDim.x + atomicAdd(taken, 1u);
    }
    gemm::mbarrier_wait(loaded + stage, phase);
    const int64_t at = begin[stage];
    if (at >= bytes) break;
    float4 *w = (float4 *)slot(stage, 0);
#pragma unroll 1
    for (int i = threadIdx.x; i < size(at) / int(sizeof(float4)); i += EXCHANGE_THREADS) {
      float4 sum = ((float4 *)slot(stage, 1))[i];
#pragma unroll 1
      for (int r = 1; r < e.ranks; r++) sum = sum + ((float4 *)slot(stage, 1 + r))[i];
      w[i] = w[i] + sum;
    }
    gemm::fence_proxy_async();
    __syncthreads();
    if (0 < lane && lane <= e.ranks) {
      gemm::bulk_store(to + at, w, size(at));
      gemm::bulk_commit();
    }
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  gemm::bulk_wait();
#endif
}

// elements adds up where there is no TMA.
__device__ void elements(const kernels_exchange &e) {
  int64_t n = e.n / 4, step = int64_t(gridDim.x) * EXCHANGE_THREADS;
  for (int64_t i = int64_t(blockIdx.x) * EXCHANGE_THREADS + threadIdx.x; i < n; i += step) {
    float4 sum = __ldcg(part_of(e, 0, e.updates) + i);
    for (int r = 1; r < e.ranks; r++) sum = sum + __ldcg(part_of(e, r, e.updates) + i);
    sum = __ldcg(part_of(e, e.rank, e.weights) + i) + sum;
    for (int r = 0; r < e.ranks; r++) part_of(e, r, e.weights)[i] = sum;
  }
}

template <bool TMA>
__global__ void __launch_bounds__(EXCHANGE_THREADS, EXCHANGE_CTAS) exchange(const CONSTANT kernels_exchange e, int tile) {
  extern __shared__ __align__(128) char stages[];
  __shared__ bool here[KERNELS_MAX_RANKS], last;
  auto flags = [&](int rank) { return reinterpret_cast<Flags *>(e.base[rank]); };
  Flags *own = flags(e.rank);
  const uint32_t *stop = reinterpret_cast<const uint32_t *>(e.stop);
  uint32_t number = load_acquire(&own->last) + 1;
  int rank = threadIdx.x;  // the first threads are each for one
  if (blockIdx.x == 0 && rank < e.ranks) store_release(&flags(rank)->ready[e.rank], number);
  if (rank < e.ranks) here[rank] = wait_until(&own->ready[rank], number, stop);
  gemm::fence_proxy_async_global();  // what TMA reads was written before the flags
  __syncthreads();
  for (int r = 0; r < e.ranks; r++)
    if (!here[r]) return;
  if constexpr (TMA) tiles(e, stages, tile, &own->taken);
  else elements(e);
  gemm::fence_proxy_async_global();
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&own->ended, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence_system();
  if (rank < e.ranks) {
    store_release(&flags(rank)->stored[e.rank], number);
    wait_until(&own->stored[rank], number, stop);
  }
  __syncthreads();
  if (threadIdx.x == 0) own->taken = own->ended = 0, own->last = number;
}

}  // namespace

int kernels_exchange_updates(uintptr_t stream, kernels_exchange e) {
  constexpr int64_t WHOLE = 64;  // floats of 256 bytes
  if (e.ranks < 1 || e.ranks > KERNELS_MAX_RANKS || e.rank < 0 || e.rank >= e.ranks || e.n < 0 || e.n % (WHOLE * e.ranks))
    return cudaErrorInvalidValue;
  if (!e.stop || std::find(e.base, e.base + e.ranks, 0) != e.base + e.ranks) return cudaErrorInvalidValue;
  if ((e.weights | e.updates) % int64_t(sizeof(float4)) || std::min(e.weights, e.updates) < KERNELS_EXCHANGE_FLAGS) return cudaErrorInvalidValue;
  e.n /= e.ranks;  // from here on of a part: the device would divide for every copy
  bool tma = HAVE_TMA && device().major >= 9;
  int tile = EXCHANGE_SHARED / (STAGES * (1 + e.ranks)) / TILE_UNIT * TILE_UNIT;
  unsigned grid = std::min(std::max(1u, ctas(e.n, tma ? tile / 4 : 4 * EXCHANGE_THREADS)), unsigned(device().sms));
  if (tma && e.ranks > 1) grid = std::min(grid, unsigned(IN_FLIGHT / ((STAGES - 1) * (e.ranks - 1) * tile)));
  // Without PDL: CTAs that only wait for the exchange before this one would keep those of GEMMs from their SMs.
  if (!tma) return launch(stream, {grid, EXCHANGE_THREADS, 0, 1, false}, exchange<false>, e, 0);
  static std::atomic<bool> has_shared;
  size_t barriers = STAGES * sizeof(Mbarrier), shared = size_t(STAGES) * (1 + e.ranks) * tile + barriers;
  if (int code = opt_in_shared(has_shared, exchange<true>, int(EXCHANGE_SHARED + barriers))) return code;
  return launch(stream, {grid, EXCHANGE_THREADS, shared, 1, false}, exchange<true>, e, tile);
}
