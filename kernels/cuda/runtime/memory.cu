// Memory operations of tests and checks: fills, copies and comparisons of words, and a kernel that only takes
// time.
#include <mutex>

#include "launch.cuh"

namespace {

constexpr int THREADS = 256, MAX_CTAS = 4096;

__global__ void fill_words(uint32_t *x, uint32_t value, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) x[i] = value;
}

__global__ void __launch_bounds__(THREADS) differing(unsigned long long *count, const uint32_t *x, uint32_t value, int64_t n) {
  __shared__ unsigned long long found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  unsigned long long mine = 0;
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) mine += x[i] != value;
  if (mine) atomicAdd(&found, mine);
  __syncthreads();
  if (threadIdx.x == 0 && found) atomicAdd(count, found);
}

// checksum adds hashes, by splitmix64, of each word and its place: the sum does not depend on the order.
__global__ void __launch_bounds__(THREADS) checksum(unsigned long long *sum, const uint32_t *x, int64_t n) {
  __shared__ unsigned long long all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  unsigned long long mine = 0;
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    uint64_t z = (uint64_t(i) << 32 | x[i]) + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    mine += z ^ z >> 31;
  }
  atomicAdd(&all, mine);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sum, all);
}

// move_words has few threads and takes long, so that errors of the kernel behind it show.
constexpr int MOVE_THREADS = 32, MOVE_WORDS = 32;  // words of a thread, unless there are many

__global__ void __launch_bounds__(MOVE_THREADS) move_words(uint32_t *to, const uint32_t *from, int64_t n, bool early) {
  int64_t i = int64_t(blockIdx.x) * MOVE_THREADS + threadIdx.x, stride = int64_t(gridDim.x) * MOVE_THREADS;
  uint32_t first = early && i < n ? __ldcg(from + i) : 0;
  pdl_wait();
  for (int64_t j = i; j < n; j += stride) to[j] = early && j == i ? first : __ldcg(from + j);
}

__global__ void spin(long long cycles) {
  long long start = clock64();
  while (clock64() - start < cycles) {
  }
}

unsigned few_ctas(int64_t n) {
  unsigned b = ctas(n, THREADS);
  return b < MAX_CTAS ? b : MAX_CTAS;
}

bool words(uintptr_t addr, int64_t bytes) { return addr % 4 == 0 && bytes >= 0 && bytes % 4 == 0; }

// differing and checksum count in one of these places, by stream. Its lock is held until the count has been
// read.
constexpr int PLACES = 64;
__device__ unsigned long long counts[PLACES];
std::mutex locks[PLACES];

int place_of(uintptr_t stream) { return int(uint64_t(stream) * 0x9E3779B97F4A7C15u >> 58); }

// counted runs a kernel on the words at src and sets *count to what it counted.
template <typename Count, typename F>
int counted(Count *count, uintptr_t stream, uintptr_t src, int64_t bytes, F run) {
  *count = 0;
  if (!words(src, bytes)) return cudaErrorInvalidValue;
  int64_t n = bytes / 4;
  if (n == 0) return cudaSuccess;
  void *base = nullptr;
  if (int code = done(cudaGetSymbolAddress(&base, counts))) return code;
  int place = place_of(stream);
  auto *at = static_cast<unsigned long long *>(base) + place;
  std::lock_guard<std::mutex> lock(locks[place]);
  if (int code = done(cudaMemsetAsync(at, 0, sizeof *at, stream_of(stream)))) return code;
  run(at, n);
  if (int code = launched()) return code;
  return kernels_download(stream, count, reinterpret_cast<uintptr_t>(at), sizeof *count);
}

}  // namespace

int kernels_fill_words(uintptr_t stream, uintptr_t dst, uint32_t value, int64_t bytes) {
  if (!words(dst, bytes)) return cudaErrorInvalidValue;
  int64_t n = bytes / 4;
  if (n == 0) return cudaSuccess;
  fill_words<<<few_ctas(n), THREADS, 0, stream_of(stream)>>>(ptr<uint32_t>(dst), value, n);
  return launched();
}

int kernels_move(uintptr_t stream, uintptr_t dst, uintptr_t src, int64_t bytes, int early) {
  if (!words(dst, bytes) || !words(src, bytes)) return cudaErrorInvalidValue;
  int64_t n = bytes / 4;
  if (n == 0) return cudaSuccess;
  unsigned grid = std::min(ctas(n, MOVE_THREADS * MOVE_WORDS), unsigned(2 * device().sms));
  return launch(stream, {grid, MOVE_THREADS}, move_words, ptr<uint32_t>(dst), ptr<uint32_t>(src), n, early != 0);
}

int kernels_differing(int64_t *count, uintptr_t stream, uintptr_t src, uint32_t value, int64_t bytes) {
  return counted(count, stream, src, bytes, [=](unsigned long long *at, int64_t n) {
    differing<<<few_ctas(n), THREADS, 0, stream_of(stream)>>>(at, ptr<uint32_t>(src), value, n);
  });
}

int kernels_checksum(uint64_t *sum, uintptr_t stream, uintptr_t src, int64_t bytes) {
  return counted(sum, stream, src, bytes,
                 [=](unsigned long long *at, int64_t n) { checksum<<<few_ctas(n), THREADS, 0, stream_of(stream)>>>(at, ptr<uint32_t>(src), n); });
}

int kernels_spin(uintptr_t stream, int64_t cycles) {
  if (cycles < 0 || cycles > KERNELS_MOST_CYCLES) return cudaErrorInvalidValue;
  spin<<<1, 1, 0, stream_of(stream)>>>(cycles);
  return launched();
}
