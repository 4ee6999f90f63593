// Step changes weights by their gradient where no GEMM's epilogue does. Round copies float32 to values.
// AddUpdates, w[n] += x[n], is for several weights in one launch.
#include "gemm/gemm.cuh"
#include "gemm/pipeline.cuh"

namespace {

// A new rule is a struct and its row.
struct Sgd {
  static __device__ void step(const kernels_update &u, float &w, float *, float dw) { w += -u.rate * dw; }
};

template <typename Rule>
__global__ void step(const kernels_update u, float *w, float *state, const float *dw, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) Rule::step(u, w[i], state + i, dw[i]);
}

// By their numbers in package nn.
void (*const steps[])(kernels_update, float *, float *, const float *, int64_t) = {step<Sgd>};

template <typename Value>
__global__ void round_values(Value *y, const float *x, int64_t n) {
  int64_t stride = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) store(y + i, x[i]);
}

__device__ bool whole_float4(uintptr_t w, uintptr_t x, uintptr_t rounded) {
  return (w | x) % sizeof(float4) == 0 && rounded % (4 * sizeof(bf16)) == 0;
}

// add_updates runs while CTAs of warpgroup.cu do, which leave 1024 registers of each quarter of an SM, 32 for
// a thread of a CTA of UPDATE_THREADS, and, of some GEMMs, 32 KiB of its shared memory. These registers cannot hold loads
// in flight. So loads go to shared memory, where each thread has space for STAGES float4s of the weights and
// of the updates.
constexpr int UPDATE_THREADS = 128, UPDATE_CTAS = gemm::compiled(90) ? 2048 / UPDATE_THREADS : 1, STAGES = 5;

// add_elements does elements first to n of one array: of floats, or of float4s.
__device__ inline void store_rounded(bf16 *to, int i, float v) { store(to + i, v); }
__device__ inline void store_rounded(bf16 *to, int i, float4 v) { store4(to, v, i); }

template <typename T>
__device__ void add_elements(float4 *shared, T *w, const T *x, bf16 *rounded, int first, int n) {
  // A thread's room is the same for floats and float4s: no other thread's, which may be further or less far.
  auto slot = [&](int stage, int array) { return (T *)(shared + (stage * 2 + array) * UPDATE_THREADS + threadIdx.x); };
  auto load = [&](int i, int stage) {
    auto copy = [](T *to, const T *from) { gemm::cp_async<sizeof(T) / 4>((float *)to, (const float *)from, true); };
    if (i < n) {
      copy(slot(stage, 0), w + i);
      copy(slot(stage, 1), x + i);
    }
    gemm::cp_async_commit_group();  // empty past the end, to keep the count
  };
  int step = gridDim.x * UPDATE_THREADS, i = first + blockIdx.x * UPDATE_THREADS + threadIdx.x, stage = 0;
#pragma unroll 1
  for (int s = 0; s < STAGES - 1; s++) load(i + s * step, s);
#pragma unroll 1
  for (; i < n; i += step) {
    load(i + (STAGES - 1) * step, stage ? stage - 1 : STAGES - 1);
    gemm::cp_async_wait_group<STAGES - 1>();
    T sum = w[i] = *slot(stage, 0) + *slot(stage, 1);
    if (rounded) store_rounded(rounded, i, sum);
    stage = stage + 1 < STAGES ? stage + 1 : 0;
  }
  gemm::cp_async_wait_group<0>();
}

__global__ void __launch_bounds__(UPDATE_THREADS, UPDATE_CTAS) add_updates(const CONSTANT kernels_updates u) {
  extern __shared__ __align__(16) float4 stages[];
  for (int a = 0; a < u.count; a++) {
    auto &of = u.of[a];
    float *w = reinterpret_cast<float *>(of.w), *x = reinterpret_cast<float *>(of.x);
    bf16 *rounded = reinterpret_cast<bf16 *>(of.rounded);
    int fours = whole_float4(of.w, of.x, of.rounded) ? int(of.n / 4) : 0;
    add_elements(stages, (float4 *)w, (float4 *)x, rounded, 0, fours);
    add_elements(stages, w, x, rounded, 4 * fours, int(of.n));
  }
}

}  // namespace

int kernels_step(uintptr_t stream, kernels_update u, uintptr_t w, uintptr_t state, uintptr_t dw, int64_t n) {
  if (n < 0 || u.rule < 0 || u.rule >= int(std::size(steps))) return cudaErrorInvalidValue;
  return n == 0 ? int(cudaSuccess) : launch_elements(stream, n, steps[u.rule], u, ptr<float>(w), ptr<float>(state), ptr<float>(dw), n);
}

int kernels_round(uintptr_t stream, int precision, uintptr_t y, uintptr_t x, int64_t n) {
  if (n < 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    return launch_elements(stream, n, round_values<Value>, ptr<Value>(y), ptr<float>(x), n);
  });
}

int kernels_add_updates(uintptr_t stream, kernels_updates u) {
  if (u.count < 0 || u.count > KERNELS_MAX_GROUP) return cudaErrorInvalidValue;
  int64_t most = 0;
  for (int i = 0; i < u.count; i++) {
    if (u.of[i].n < 0 || u.of[i].n > int64_t(1) << 30) return cudaErrorInvalidValue;
    most = std::max(most, u.of[i].n);
  }
  if (most == 0) return cudaSuccess;
  unsigned grid = std::min(ctas(most, 4 * UPDATE_THREADS), unsigned(4 * device().sms));
  constexpr size_t SHARED = size_t(STAGES) * 2 * UPDATE_THREADS * sizeof(float4);
  static std::atomic<bool> has_shared;
  if (int code = opt_in_shared(has_shared, add_updates, SHARED)) return code;
  // Without PDL, as exchange.
  return launch(stream, {grid, UPDATE_THREADS, SHARED, 1, false}, add_updates, u);
}
