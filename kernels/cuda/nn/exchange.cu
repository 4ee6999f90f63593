// Exchange of updates between GPUs of one host, which reach each other's memory: a two-shot all-reduce
// (reduce-scatter and all-gather) over peer memory. Each rank has one part of the weights. It reads the
// updates of that part from the memory of all ranks, adds them to the weights, and stores the sums in the
// memory of all ranks. With S bytes of weights and N ranks, a rank receives 2·S·(N−1)/N bytes and sends as
// many. Where GEMMs read weights in bf16, a rank stores bf16 in the memory of the others: 1.5·S·(N−1)/N
// bytes.
#include "gemm/gemm.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/tma.cuh"
#include "warp.cuh"

namespace {

using gemm::EXCHANGE_SHARED;
using gemm::Mbarrier;

// The memory of every rank begins with Flags. Exchanges are numbered from 1, modulo 2^32.
struct Flags {
  uint32_t ready[KERNELS_MAX_RANKS];   // ready[r] is the last exchange for which rank r has its updates
  uint32_t stored[KERNELS_MAX_RANKS];  // stored[r] is the last exchange of which rank r has stored its part
  uint32_t last;                       // the last exchange that has ended on this rank
  uint32_t taken, ended;               // of the one under way: tiles that CTAs took in turn, and CTAs that have ended
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

// wait_until waits until a flag has reached a number, and returns true. Once *stop is not 0 it returns false.
__device__ bool wait_until(const uint32_t *flag, uint32_t number, const uint32_t *stop) {
  constexpr unsigned POLLS = 256;  // stop is in the host's memory, which is slow to read
  for (unsigned i = 1; int32_t(load_acquire(flag) - number) < 0; i++)
    if (i % POLLS == 0 && load_acquire(stop)) return false;
  return true;
}

// An exchange runs beside CTAs of warpgroup_gemm. They leave it some shared memory and 1024 registers of each
// quarter of an SM, which are 32 for a thread in a CTA of EXCHANGE_THREADS: too few to hold loads in flight.
// So with TMA a CTA loads tiles of the weights and of each rank's updates to STAGES of its shared memory,
// adds them up there, and stores the sums from there. Whole tiles also take less of a link's bandwidth than
// 16 bytes of each thread.
constexpr int EXCHANGE_THREADS = 128, EXCHANGE_CTAS = gemm::compiled(90) ? 2048 / EXCHANGE_THREADS : 1, STAGES = 3;
constexpr int TILE_UNIT = 512;
// IN_FLIGHT is how many bytes all CTAs load from other ranks at a time. With more CTAs exchanges take less
// time and GEMMs more, which in bf16 wait longer for exchanges: measured with two and four ranks (TUNING.md).
template <bool ROUNDED>
constexpr int IN_FLIGHT = (ROUNDED ? 768 : 512) << 10;

// part_of returns this rank's part, e.n elements, of an array in the memory of a rank.
template <typename T>
__device__ T *part_of(const kernels_exchange &e, int rank, int64_t offset) {
  return reinterpret_cast<T *>(e.base[rank] + offset) + e.rank * e.n;
}

// tiles adds up by TMA. CTAs take tiles in turn, since a CTA that shares its SM is slower than others. The
// first warp issues all copies: lane 0 loads the weights, and lane 1 + r loads from rank r and stores to it.
// A single thread would take longer to issue the copies of a tile than the copies take. If ROUNDED, lane 0
// stores the weights on this rank alone, and the other lanes store them in bf16.
template <bool ROUNDED>
__device__ void tiles(const kernels_exchange &e, float4 *shared, unsigned tile, uint32_t *taken) {
#if HAVE_TMA && __CUDA_ARCH__ >= 900
  __shared__ unsigned begin[STAGES];  // of each stage's tile; begin, n and tile count float4s
  auto *loaded = reinterpret_cast<Mbarrier *>(shared + STAGES * (1 + e.ranks) * tile);
  const unsigned n = e.n / 4;
  static_assert(1 + KERNELS_MAX_RANKS <= 32);
  const int lane = threadIdx.x, peer = lane == 0 || lane > e.ranks ? e.rank : lane - 1;
  const bool rounded = ROUNDED && lane > 0;
  const auto *from = reinterpret_cast<const float4 *>(part_of<float>(e, peer, lane ? e.updates : e.weights));
  auto *to = rounded ? reinterpret_cast<char *>(part_of<bf16>(e, peer, e.rounded)) : reinterpret_cast<char *>(part_of<float>(e, peer, e.weights));
  auto size = [&](unsigned at) { return min(n - at, tile); };
  auto slot = [&](int stage, int array) { return shared + (stage * (1 + e.ranks) + array) * tile; };
  auto load = [&](unsigned number, int stage) {
    const unsigned at = min(number * tile, n);
    const int bytes = size(at) * sizeof(float4);
    if (lane == 0) {
      begin[stage] = at;
      gemm::mbarrier_arrive_expect_tx(loaded + stage, (1 + e.ranks) * bytes);
    }
    __syncwarp();
    if (bytes && lane <= e.ranks) gemm::bulk_load(slot(stage, lane), from + at, bytes, loaded + stage);
  };
  unsigned next = (STAGES - 1) * gridDim.x + blockIdx.x;  // lane 0 takes a tile one turn before it is loaded
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
    const unsigned at = begin[stage];
    if (at == n) break;
    float4 *w = slot(stage, 0);
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < size(at); i += EXCHANGE_THREADS) {
      float4 sum = slot(stage, 1)[i];
#pragma unroll 1
      for (int r = 1; r < e.ranks; r++) sum = sum + slot(stage, 1 + r)[i];
      w[i] = w[i] + sum;
    }
    if constexpr (ROUNDED) {
      __syncthreads();  // slot 1 is read
#pragma unroll 1
      for (unsigned i = threadIdx.x; i < size(at); i += EXCHANGE_THREADS) store4((bf16 *)slot(stage, 1), w[i], i);
    }
    gemm::fence_proxy_async();
    __syncthreads();
    if ((ROUNDED || lane > 0) && lane <= e.ranks) {
      const int bytes = (rounded ? sizeof(bf16) : sizeof(float)) * 4;
      gemm::bulk_store(to + int64_t(at) * bytes, slot(stage, rounded), size(at) * bytes);
      gemm::bulk_commit();
    }
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  gemm::bulk_wait();
#endif
}

// elements adds up where there is no TMA.
template <bool ROUNDED>
__device__ void elements(const kernels_exchange &e) {
  auto four = [&](int rank, int64_t offset) { return reinterpret_cast<float4 *>(part_of<float>(e, rank, offset)); };
  int64_t n = e.n / 4, step = int64_t(gridDim.x) * EXCHANGE_THREADS;
  for (int64_t i = int64_t(blockIdx.x) * EXCHANGE_THREADS + threadIdx.x; i < n; i += step) {
    float4 sum = __ldcg(four(0, e.updates) + i);
    for (int r = 1; r < e.ranks; r++) sum = sum + __ldcg(four(r, e.updates) + i);
    sum = __ldcg(four(e.rank, e.weights) + i) + sum;
    if (ROUNDED) four(e.rank, e.weights)[i] = sum;
    for (int r = 0; r < e.ranks; r++) {
      if (ROUNDED) store4(part_of<bf16>(e, r, e.rounded) + 4 * i, sum);
      else four(r, e.weights)[i] = sum;
    }
  }
}

template <bool TMA, bool ROUNDED>
__global__ void __launch_bounds__(EXCHANGE_THREADS, EXCHANGE_CTAS) exchange(const CONSTANT kernels_exchange e, unsigned tile) {
  extern __shared__ __align__(128) float4 stages[];
  __shared__ bool here[KERNELS_MAX_RANKS], last;
  auto flags = [&](int rank) { return reinterpret_cast<Flags *>(e.base[rank]); };
  Flags *own = flags(e.rank);
  const uint32_t *stop = reinterpret_cast<const uint32_t *>(e.stop);
  // Called again at the end, since keeping it takes a register.
  auto next = [&] { return load_acquire(&own->last) + 1; };
  uint32_t number = next();
  int rank = threadIdx.x;  // each of the first threads waits for one rank
  if (blockIdx.x == 0 && rank < e.ranks) store_release(&flags(rank)->ready[e.rank], number);
  if (rank < e.ranks) here[rank] = wait_until(&own->ready[rank], number, stop);
  gemm::fence_proxy_async_global();  // what TMA reads was written before the flags
  __syncthreads();
  for (int r = 0; r < e.ranks; r++)
    if (!here[r]) return;
  if constexpr (TMA) tiles<ROUNDED>(e, stages, tile, &own->taken);
  else elements<ROUNDED>(e);
  gemm::fence_proxy_async_global();  // what this lane stored by TMA is like other stores behind it
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // orders what all threads of the CTA stored before the addition
    last = atomicAdd(&own->ended, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence_system();
  number = next();
  if (rank < e.ranks) {
    store_release(&flags(rank)->stored[e.rank], number);
    wait_until(&own->stored[rank], number, stop);
  }
  __syncthreads();
  if (threadIdx.x == 0) own->taken = own->ended = 0, own->last = number;
}

// queue queues an exchange. Its e.n is the number of elements of one part, so that the device need not
// divide.
template <bool ROUNDED>
int queue(uintptr_t stream, const kernels_exchange &e) {
  bool tma = HAVE_TMA && device().major >= 9;
  int tile = EXCHANGE_SHARED / (STAGES * (1 + e.ranks)) / TILE_UNIT * TILE_UNIT;
  unsigned grid = std::min(std::max(1u, ctas(e.n, tma ? tile / 4 : 4 * EXCHANGE_THREADS)), unsigned(device().sms));
  if (tma && e.ranks > 1) grid = std::min(grid, unsigned(IN_FLIGHT<ROUNDED> / ((STAGES - 1) * (e.ranks - 1) * tile)));
  // No PDL: CTAs that only wait for the exchange before this one would take the place of CTAs of GEMMs.
  if (!tma) return launch(stream, {grid, EXCHANGE_THREADS, 0, 1, false}, exchange<false, ROUNDED>, e, 0u);
  size_t barriers = STAGES * sizeof(Mbarrier), shared = size_t(STAGES) * (1 + e.ranks) * tile + barriers;
  if (int code = opt_in_shared<exchange<true, ROUNDED>>(int(EXCHANGE_SHARED + barriers))) return code;
  return launch(stream, {grid, EXCHANGE_THREADS, shared, 1, false}, exchange<true, ROUNDED>, e, unsigned(tile / sizeof(float4)));
}

}  // namespace

int kernels_exchange_updates(uintptr_t stream, kernels_exchange e) {
  constexpr int64_t WHOLE = 64;  // floats of 256 bytes
  if (e.ranks < 1 || e.ranks > KERNELS_MAX_RANKS || e.rank < 0 || e.rank >= e.ranks || e.n < 0 || e.n > int64_t(1) << 32 || e.n % (WHOLE * e.ranks))
    return cudaErrorInvalidValue;
  if (!e.stop || std::find(e.base, e.base + e.ranks, 0) != e.base + e.ranks) return cudaErrorInvalidValue;
  int64_t first = std::min({e.weights, e.updates, e.rounded ? e.rounded : e.weights});
  if ((e.weights | e.updates | e.rounded) % int64_t(sizeof(float4)) || first < KERNELS_EXCHANGE_FLAGS) return cudaErrorInvalidValue;
  e.n /= e.ranks;
  return e.rounded ? queue<true>(stream, e) : queue<false>(stream, e);
}
