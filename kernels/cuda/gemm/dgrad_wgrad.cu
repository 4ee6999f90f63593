// The gradient through a layer of few rows and large weights, and the step of these
// weights, on the tensor cores, with tiles copied in bulk. Weights that do not stay in L2
// are read once for both: c = a·bᵀ where y > 0, else 0; b += alpha·yᵀ·a.
//
// A pair of blocks has 32 columns of c, which are 32 rows of the weights, and each block
// one half of k. They pass through shared memory in pieces of 128 k, with the same k of a:
// one thread sends for a piece when an earlier one has been read. A warp has 16 k of
// a piece, which nobody else reads, for c and for the step. At the end the warps' sums of
// c are added up, and the blocks give each other those of the rows that the other finishes.
#include "few.cuh"
#include "few_tensor.cuh"

using namespace matmuls;

namespace {

template <bool THREE>
struct Step {
  static constexpr int WARPS = 8, THREADS = 32 * WARPS, BLOCKS = 1, AT_MOST = 0, CLUSTER = bulk::PAIR;
  static constexpr int M = 64, N = 32, K = 128, SLICE = K / WARPS, STAGES = 4;
  // Lines in shared memory, with room for the sake of the banks.
  static constexpr int LINE = K + 8, LINE_N = N + 8;
  static constexpr int SIZE_A = M * LINE, SIZE_B = N * LINE, SIZE_Y = M * LINE_N, SIZE_INBOX = M / 2 * N;
  static constexpr int ALL_B = STAGES * SIZE_A, ALL_Y = ALL_B + STAGES * SIZE_B, INBOX = ALL_Y + SIZE_Y, ARRIVALS = INBOX + SIZE_INBOX;
  static constexpr int FLOATS = ARRIVALS + 2 * (2 * STAGES + 2), PART = M * LINE_N;  // PART: a warp's sums
  static_assert(WARPS * PART <= ALL_Y, "the sums fit where the factors were");
  using Params = BulkArgs;

  static int64_t tiles(const Args &p) { return int64_t((p.n + N - 1) / N) * bulk::PAIR; }

  static int prepare(BulkArgs &out, const Args &p) {
    static_cast<Args &>(out) = p;
    int code = bulk::describe<2>(out.map[0], p.a, {{p.k, 1, LINE}, {p.m, p.k, M}});
    if (!code) code = bulk::describe<2>(out.map[1], p.b, {{p.k, 1, LINE}, {p.n, p.k, N}});
    return code ? code : bulk::describe<2>(out.map[2], p.y, {{p.n, 1, LINE_N}, {p.m, p.n, M}});
  }

  const BulkArgs &p;
  float *shared;
  bulk::Arrivals *full = (bulk::Arrivals *)(shared + ARRIVALS), *read = full + STAGES, *y_came = read + STAGES, *inbox_came = y_came + 1;
  int n0, k0, pieces;  // this block's first column and k, and how many pieces it has
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slice = warp * SLICE;
  few::Sums<THREE, N / 8> sums[M / 16];

  __device__ Step(const BulkArgs &args, int block, float *shared_) : p(args), shared(shared_) {
    int all = (p.k + K - 1) / K, half = (all + 1) / 2, rank = bulk::rank();
    n0 = block / bulk::PAIR * N, k0 = rank * half * K, pieces = rank ? all - half : half;
  }

  __device__ float *piece_a(int piece) const { return shared + piece % STAGES * SIZE_A; }
  __device__ float *piece_b(int piece) const { return shared + ALL_B + piece % STAGES * SIZE_B; }

  // The send functions are for one thread; send_b comes first.
  __device__ void send_b(int piece) const {
    if (piece >= pieces) return;
    bulk::expect(full + piece % STAGES, 4 * (SIZE_A + SIZE_B));
    bulk::send(piece_b(piece), p.map[1], k0 + piece * K, n0, full + piece % STAGES);
  }

  __device__ void send_a(int piece) const {
    if (piece < pieces) bulk::send(piece_a(piece), p.map[0], k0 + piece * K, 0, full + piece % STAGES);
  }

  __device__ void send_y() const {
    bulk::expect(y_came, 4 * SIZE_Y);
    bulk::send(shared + ALL_Y, p.map[2], n0, 0, y_came);
  }

  // start sends for the first pieces.
  __device__ void start() const {
    bool one = threadIdx.x == 0;
    if (one) {
      bulk::init(full, STAGES, 1);
      bulk::init(read, STAGES, WARPS);
      bulk::init(y_came, 2, 1);
    }
    bulk::started();
    if (one) {
      bulk::expect(inbox_came, 4 * SIZE_INBOX);
      if (p.early_c) send_y();
      for (int i = 0; i < STAGES && p.early_b; i++) send_b(i);
    }
    follow();
    if (one) {
      if (!p.early_c) send_y();
      for (int i = 0; i < STAGES; i++) {
        if (!p.early_b) send_b(i);
        send_a(i);
      }
    }
  }

  // release says that this warp has read a piece. One thread then sends for a later one to the
  // place of the piece before, for which it has hardly to wait.
  __device__ void release(int piece) const {
    __syncwarp();
    if (lane == 0) bulk::arrive(read + piece % STAGES);
    if (threadIdx.x == 0 && --piece >= 0 && piece + STAGES < pieces) {
      bulk::wait(read + piece % STAGES, piece / STAGES);
      send_b(piece + STAGES), send_a(piece + STAGES);
    }
    __syncwarp();
  }

  // store_if stores: for a branch the compiler would not move products across it.
  static __device__ void store_if(bool valid, float *to, float2 v) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to), "f"(v.x), "f"(v.y), "r"(int(valid))
                 : "memory");
  }

  // multiply: a lane's weights are the same for its part of c and of the step, rows g of
  // the eights and two neighbours of k.
  __device__ void multiply() {
    bulk::wait(y_came, 0);
    float y[M / 8][N / 16][2][2];
    unsigned big[M / 8][N / 16][2][2], none[2][2];
#pragma unroll
    for (int s = 0; s < M / 8; s++)
#pragma unroll
      for (int r = 0; r < N / 16; r++) {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
          for (int e = 0; e < 2; e++) y[s][r][h][e] = shared[ALL_Y + (8 * s + 4 * e + t) * LINE_N + 16 * r + 8 * h + g];
        if (!THREE) split<THREE>(big[s][r], none, y[s][r]);
      }
    int k = k0 + slice + 2 * t, rows = p.n - n0 - g;
    float *to[N / 8];
#pragma unroll
    for (int j = 0; j < N / 8; j++) to[j] = const_cast<float *>(p.b) + int64_t(n0 + 8 * j + g) * p.k + k;
#pragma unroll 1
    for (int i = 0; i < pieces; i++) {
      bulk::wait(full + i % STAGES, i / STAGES);
      const float *a = piece_a(i) + slice, *b = piece_b(i) + g * LINE + slice + 2 * t;
      few::Sums<THREE, SLICE / 8> gradient[N / 16];
#pragma unroll
      for (int s = 0; s < M / 8; s++) {
        float fa[SLICE / 8][2];
#pragma unroll
        for (int j = 0; j < SLICE / 8; j++)
#pragma unroll
          for (int e = 0; e < 2; e++) fa[j][e] = a[(8 * s + 4 * e + t) * LINE + 8 * j + g];
#pragma unroll
        for (int r = 0; r < N / 16; r++) {
          if (THREE) gradient[r].template add<false>(y[s][r], fa);
          else gradient[r].template add<false>(big[s][r], none, fa);
        }
      }
#pragma unroll
      for (int s = 0; s < SLICE / 8; s++) {
        float fb[N / 8][2];
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
          float2 v = *(const float2 *)(b + 8 * j * LINE + 8 * s);
          fb[j][0] = v.x, fb[j][1] = v.y;
          const float *c = gradient[j / 2].c[s] + j % 2 * 2;
          v.x = fmaf(p.alpha, c[0], v.x), v.y = fmaf(p.alpha, c[1], v.y);
          store_if(k + 8 * s < p.k && 8 * j < rows, to[j] + 8 * s, v);
        }
#pragma unroll
        for (int r = 0; r < M / 16; r++) {
          float fa[2][2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            float2 v = *(const float2 *)(a + (16 * r + 8 * h + g) * LINE + 8 * s + 2 * t);
            fa[h][0] = v.x, fa[h][1] = v.y;
          }
          sums[r].template add<false>(fa, fb);
        }
      }
      k += K;
#pragma unroll
      for (int j = 0; j < N / 8; j++) to[j] += K;
      release(i);
    }
  }

  // finish adds up the warps' sums, gives away those of the rows that the other block
  // finishes, and adds what that one has given to its own.
  __device__ void finish() const {
    constexpr int QUADS = N / 4;
    static_assert(M / 2 * QUADS == THREADS, "a quad each");
    __syncthreads();
    float *part = shared + warp * PART + g * LINE_N + 2 * t;
#pragma unroll
    for (int r = 0; r < M / 16; r++)
#pragma unroll
      for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
          *(float2 *)(part + (16 * r + 8 * h) * LINE_N + 8 * j) = make_float2(sums[r].c[j][2 * h], sums[r].c[j][2 * h + 1]);
    __syncthreads();
    int rank = bulk::rank(), row = threadIdx.x / QUADS, x = threadIdx.x % QUADS * 4, m = M / 2 * rank + row;
    auto sum = [&](int first) {
      const float *from = shared + (first + row) * LINE_N + x;
      float4 v = *(const float4 *)from;
#pragma unroll
      for (int i = 1; i < WARPS; i++) add(v, *(const float4 *)(from + i * PART));
      return v;
    };
    float *inbox = shared + INBOX + 4 * threadIdx.x;
    bulk::give(inbox, sum(M / 2 * (1 - rank)), inbox_came, 1 - rank);
    float4 v = sum(M / 2 * rank), y = *(const float4 *)(shared + ALL_Y + m * LINE_N + x);
    bulk::wait(inbox_came, 0);
    add(v, *(const float4 *)inbox);
    if (m < p.m && n0 + x < p.n)
      *(float4 *)(p.c + int64_t(m) * p.n + n0 + x) = make_float4(epilogue<KERNELS_MASK>(v.x, y.x, 0), epilogue<KERNELS_MASK>(v.y, y.y, 0),
                                                                epilogue<KERNELS_MASK>(v.z, y.z, 0), epilogue<KERNELS_MASK>(v.w, y.w, 0));
  }

  static __device__ void run(const BulkArgs &p, int block, float *shared) {
    Step s(p, block, shared);
    s.start();
    s.multiply();
    s.finish();
  }
};

}  // namespace

bool matmul_is_step(bool three, const Args &p) {
  if (!bulk::possible() || !p.vector_a || !p.vector_b || !p.vector_c || p.m > Step<true>::M || p.n < 1024 || p.k < 1024) return false;
  // 3xtf32 multiplies for longer than it copies, and gained only with a block on each multiprocessor.
  int64_t blocks = Step<true>::tiles(p), sms = device().sms;
  return !three || (blocks <= sms && 10 * blocks >= 9 * sms);
}

int matmul_step(uintptr_t stream, bool three, const Args &p) {
  return three ? launch<Step<true>>(stream, p) : launch<Step<false>>(stream, p);
}
