// Chains of GEMMs on the CUDA cores, in float32 in every precision: NN or NT with n and k of up to 64, of which each reads
// the c of the one before as its a. So the hidden layers of a narrow network are one launch, where a launch for each would
// take longer than its multiplications.
//
// No row of a chain needs another row. A CTA has the weights of all GEMMs in shared memory, and its warps take rows through
// all of them without a barrier. LANES threads compute ROWS rows at once: a thread has COLUMNS columns of the weights in
// registers, LANES apart, and reads the rows of a from shared memory, which are those of its own warp.
#include "gemm/epilogue.cuh"
#include "gemm/pipeline.cuh"

namespace gemm {

namespace {

constexpr int THREADS = 128, MOST = 8;  // GEMMs of a launch

struct Chain {
  Gemm g[MOST];
  int count;
};

// Config is for weights of up to W columns and k. A line of weights is contiguous in global memory.
template <typename Value_, int LAYOUT_, int W_>
struct Config {
  using Value = Value_;
  static constexpr int LAYOUT = LAYOUT_, W = W_;
  static constexpr int LANES = W < 32 ? W : 32, COLUMNS = W / LANES, ROWS = 4 / COLUMNS, CTA_ROWS = THREADS / LANES * ROWS;
  static constexpr int CHUNK = 16 / sizeof(Value), LINE = W + CHUNK, SIZE = W * LINE;  // of weights, in values
  static constexpr int BYTES = SIZE * sizeof(Value), ROW_BYTES = 4 * CTA_ROWS * W;
  static constexpr int COUNT = MOST * BYTES + ROW_BYTES <= CP_ASYNC_SHARED ? MOST : (CP_ASYNC_SHARED - ROW_BYTES) / BYTES;
};

__device__ inline float as_stored(float v, float) { return v; }
__device__ inline float as_stored(float v, bf16) { return to_float(to_bf16(v, 0)); }

// load_weights copies those weights that may be prefetched, or the others.
template <typename C>
__device__ void load_weights(const Chain &chain, typename C::Value *weights, bool prefetched) {
  using Value = typename C::Value;
  for (int i = 0; i < chain.count; i++, weights += C::SIZE) {
    const Gemm &g = chain.g[i];
    if (g.prefetch_b != prefetched) continue;
    const int lines = C::LAYOUT == NN ? g.k : g.n, width = C::LAYOUT == NN ? g.n : g.k;
    for (int q = threadIdx.x; q < C::W * C::W / C::CHUNK; q += THREADS) {
      const int line = q / (C::W / C::CHUNK), at = q % (C::W / C::CHUNK) * C::CHUNK;
      const bool valid = line < lines && at < width;
      cp_async<4>((float *)(weights + line * C::LINE + at), (const float *)((const Value *)g.b + (valid ? line * width + at : 0)), valid);
    }
  }
}

// read_rows reads a thread's columns of its rows, of which the matrix has width. Past its end it returns zeros.
template <typename C>
__device__ void read_rows(float (&v)[C::ROWS][C::COLUMNS], const float *matrix, int width, int row, int m, int lane) {
#pragma unroll
  for (int r = 0; r < C::ROWS; r++)
#pragma unroll
    for (int j = 0; j < C::COLUMNS; j++) {
      const int n = lane + C::LANES * j;
      v[r][j] = row + r < m && n < width ? ld_l2((const typename C::Value *)matrix + int64_t(row + r) * width + n) : 0;
    }
}

template <typename C>
__device__ void read_weights(float (&w)[C::COLUMNS][C::W], const typename C::Value *weights, int lane) {
  using Four = typename std::conditional<sizeof(typename C::Value) == 2, uint2, float4>::type;
#pragma unroll
  for (int j = 0; j < C::COLUMNS; j++)
#pragma unroll
    for (int k = 0; k < C::W; k += 4) {
      const int n = lane + C::LANES * j;
      if (C::LAYOUT == NN) {
#pragma unroll
        for (int e = 0; e < 4; e++) w[j][k + e] = to_float(weights[(k + e) * C::LINE + n]);
      } else {
        float4 four = four_of(*(const Four *)(weights + n * C::LINE + k));
        w[j][k] = four.x, w[j][k + 1] = four.y, w[j][k + 2] = four.z, w[j][k + 3] = four.w;
      }
    }
}

template <typename C>
__global__ void __launch_bounds__(THREADS) chain_gemm(const CONSTANT Chain chain) {
  using Value = typename C::Value;
  if (!compiled(80)) return;
  extern __shared__ __align__(16) float shared[];
  Value *weights = (Value *)shared;
  const int lane = threadIdx.x % C::LANES, group = threadIdx.x / C::LANES * C::ROWS, m = chain.g[0].m;
  float *rows = shared + (chain.count * C::BYTES / 4 + group * C::W);  // of a, of the thread's group

  load_weights<C>(chain, weights, true);
  pdl_wait();
  load_weights<C>(chain, weights, false);
  cp_async_commit_group();
  int row = blockIdx.x * C::CTA_ROWS + group;
  float values[C::ROWS][C::COLUMNS], old[C::ROWS][C::COLUMNS], next[C::ROWS][C::COLUMNS] = {};
  // read_old reads, ahead of time, what the epilogue of the i-th GEMM reads.
  auto read_old = [&](int i) {
    if (C::LAYOUT == NT && i < chain.count && chain.g[i].epilogue != KERNELS_NONE) read_rows<C>(next, chain.g[i].y, chain.g[i].n, row, m, lane);
  };
  read_rows<C>(values, chain.g[0].a, chain.g[0].k, row, m, lane);
  read_old(0);
  cp_async_wait_group<0>();
  __syncthreads();

  while (row - group < m) {
#pragma unroll 1
    for (int i = 0; i < chain.count; i++) {
      const Gemm &g = chain.g[i];
      const Epilogue<C::LAYOUT> epilogue{g};
#pragma unroll
      for (int r = 0; r < C::ROWS; r++)
#pragma unroll
        for (int j = 0; j < C::COLUMNS; j++) old[r][j] = next[r][j];
      read_old(i + 1);
      __syncwarp();
#pragma unroll
      for (int r = 0; r < C::ROWS; r++)
#pragma unroll
        for (int j = 0; j < C::COLUMNS; j++) rows[r * C::W + lane + C::LANES * j] = values[r][j], values[r][j] = 0;
      __syncwarp();
      float w[C::COLUMNS][C::W];
      read_weights<C>(w, weights + i * C::SIZE, lane);
#pragma unroll
      for (int k = 0; k < C::W; k += 4)
#pragma unroll
        for (int r = 0; r < C::ROWS; r++) {
          const float4 a = *(const float4 *)(rows + r * C::W + k);
#pragma unroll
          for (int j = 0; j < C::COLUMNS; j++)
            values[r][j] = fmaf(a.w, w[j][k + 3], fmaf(a.z, w[j][k + 2], fmaf(a.y, w[j][k + 1], fmaf(a.x, w[j][k], values[r][j]))));
        }
#pragma unroll
      for (int r = 0; r < C::ROWS; r++)
#pragma unroll
        for (int j = 0; j < C::COLUMNS; j++) {
          const int n = lane + C::LANES * j;
          const int64_t at = int64_t(row + r) * g.n + n;
          const float v = epilogue(values[r][j], old[r][j]);
          if (row + r < m && n < g.n) {
            if (epilogue.fused()) store((Value *)g.c + at, v);
            else store(g.c + at, v);
          }
          values[r][j] = n < g.n ? as_stored(v, Value()) : 0;  // not infinity by zero
        }
    }
    row += gridDim.x * C::CTA_ROWS;
    read_rows<C>(values, chain.g[0].a, chain.g[0].k, row, m, lane);
    read_old(0);
  }
}

template <typename C>
int launch_config(uintptr_t stream, const Gemm *g, int count) {
  constexpr auto KERNEL = chain_gemm<C>;
  if (int code = opt_in_shared<KERNEL>(C::COUNT * C::BYTES + C::ROW_BYTES)) return code;
  const int64_t ctas = std::min<int64_t>(ceil_div<int64_t>(g->m, C::CTA_ROWS), 4 * device().sms);
  for (Chain chain; count > 0; g += chain.count, count -= chain.count) {
    chain.count = std::min(count, C::COUNT);
    std::copy_n(g, chain.count, chain.g);
    if (int code = launch(stream, {unsigned(ctas), THREADS, size_t(chain.count * C::BYTES + C::ROW_BYTES)}, KERNEL, chain)) return code;
  }
  return cudaSuccess;
}

template <typename Value, int W>
int launch_layout(uintptr_t stream, const Gemm *g, int count) {
  return g->layout == NN ? launch_config<Config<Value, NN, W>>(stream, g, count) : launch_config<Config<Value, NT, W>>(stream, g, count);
}

}  // namespace

// A GEMM has the same kernel in every chain, and alone, so that it has the same bits.
int chain(uintptr_t stream, const Gemm *g, int count) {
  auto side = [](const Gemm &one) { return one.n <= 16 && one.k <= 16 ? 16 : one.n <= 32 && one.k <= 32 ? 32 : CHAIN_SIDE; };
  for (const Gemm *end = g + count, *last; g < end; g = last) {
    last = std::find_if(g, end, [&](const Gemm &one) { return side(one) != side(*g); });
    int code = with_values(g->precision, [&](auto value) {
      using Value = decltype(value);
      auto launch = side(*g) == 16 ? launch_layout<Value, 16> : side(*g) == 32 ? launch_layout<Value, 32> : launch_layout<Value, CHAIN_SIDE>;
      return launch(stream, g, int(last - g));
    });
    if (code) return code;
  }
  return cudaSuccess;
}

}  // namespace gemm
