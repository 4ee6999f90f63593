// Weight gradients of few rows, on the tensor cores.
#ifndef FEW_UPDATE_CUH
#define FEW_UPDATE_CUH

#include "few_tensor.cuh"

namespace few {

using namespace matmuls;

// In bulk the updates of four layers of 784×784 are three tiles for each multiprocessor.
template <Lines LINES>
using UpdateBlock = Block<LINES == BULK, LINES == BULK ? 4 : 2, LINES == BULK ? 3 : 0>;

// Update is a weight gradient, a sum over the batch, and with ADD the step that it
// makes. A tile is 112×48, in bulk 112×56, or narrower, of which a warp has 16 rows; 64
// of k come at once. A pair of blocks has the same rows. In bulk the step is added in memory,
// where the old value is; one addition an element leaves nothing to the order of things.
template <bool THREE, bool ADD, bool IMAGES, Lines LINES_A, Lines LINES, int EIGHTS = LINES == BULK ? 7 : 6>
struct Update : UpdateBlock<LINES> {
  using Base = UpdateBlock<LINES>;
  static_assert(LINES != BULK || ADD, "what is in memory is added to");
  static constexpr int M = 16 * WARPS, N = 8 * EIGHTS, K = 64;
  // Lines in shared memory, with room for the sake of the banks.
  static constexpr int A = M + 8, B = N % 16 ? N : N + 8, C = LINES == BULK ? N : N + 8;
  static constexpr int ARRIVALS = K * A + K * B + (LINES == BULK ? 0 : M * C), FLOATS = ARRIVALS + 2;
  static_assert(LINES != BULK || M * C <= K * A, "the sums fit where the first factor was");

  static int64_t tiles(const Args &p) { return tiles_of_pairs(p, M, N); }

  static int prepare(typename Base::Params &out, const Args &p) {
    static_cast<Args &>(out) = p;
    if constexpr (LINES == BULK) {
      int code = IMAGES ? cudaSuccess : bulk::describe<2>(out.map[0], p.a, {{p.m, 1, A}, {p.k, p.m, K / 2}});
      if (!code) code = bulk::describe<2>(out.map[1], p.b, {{p.n, 1, B}, {p.k, p.n, K}});
      return code ? code : bulk::describe<2>(out.map[2], p.c, {{p.n, 1, N}, {p.m, p.n, 16}});
    }
    return cudaSuccess;
  }

  const typename Base::Params &p;
  float *shared_a, *shared_b, *shared_c;
  bulk::Arrivals *arrivals;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int m0, n0;

  __device__ Update(const typename Base::Params &args, int tile, float *shared)
      : p(args), shared_a(shared), shared_b(shared + K * A), shared_c(LINES == BULK ? shared_a : shared_b + K * B),
        arrivals((bulk::Arrivals *)(shared + ARRIVALS)) {
    int tiles_n = (p.n + N * bulk::PAIR - 1) / (N * bulk::PAIR) * bulk::PAIR;
    m0 = tile / tiles_n * M, n0 = tile % tiles_n * N;
  }

  __device__ void send_a(int k0) {
    if (LINES == BULK && !IMAGES) {
      if constexpr (LINES == BULK) {
        if (threadIdx.x) return;
        int half = K / 2 * bulk::rank();
        bulk::send_both(shared_a + half * A, p.map[0], m0, k0 + half, arrivals);
      }
      return;
    }
    constexpr int QUADS_ = M / 4, STEP = Base::THREADS / QUADS_;
    int m = threadIdx.x % QUADS_ * 4, line = threadIdx.x / QUADS_, left = p.m - m0 - m;
#pragma unroll
    for (int i = 0; i < K / STEP; i++) {
      int k = line + i * STEP;
      float *to = shared_a + k * A + m;
      bool valid = k0 + k < p.k && left > 0;
      if (IMAGES) {
        unsigned v = valid ? pixels((const uint8_t *)p.a + int64_t(p.order[k0 + k]) * p.m + m0 + m, left, LINES_A != SINGLE) : 0;
        store_pixels(to, v);
      } else {
        copy_quad<LINES_A != SINGLE>(unsigned(__cvta_generic_to_shared(to)), p.a + int64_t(k0 + k) * p.m + m0 + m, valid ? left : 0);
      }
    }
  }

  __device__ void send_b(int k0) {
    if constexpr (LINES == BULK) {
      if (threadIdx.x) return;
      bulk::expect(arrivals, 4 * K * (B + (IMAGES ? 0 : A)));
      bulk::send(shared_b, p.map[1], n0, k0, arrivals);
    } else {
      constexpr int QUADS_ = N / 4, STEP = 16;
      static_assert(QUADS_ * STEP <= Base::THREADS && K % STEP == 0, "a quad a thread");
      int n = threadIdx.x % QUADS_ * 4, line = threadIdx.x / QUADS_;
      if (line >= STEP) return;
#pragma unroll
      for (int i = 0; i < K / STEP; i++) {
        int k = line + i * STEP;
        copy_quad<LINES != SINGLE>(unsigned(__cvta_generic_to_shared(shared_b + k * B + n)), p.b + int64_t(k0 + k) * p.n + n0 + n,
                                   k0 + k < p.k ? p.n - n0 - n : 0);
      }
    }
  }

  // send_old sends for what a warp adds to, for itself.
  __device__ void send_old() {
    if constexpr (ADD && LINES != BULK) {
#pragma unroll
      for (int e = lane; e < 16 * N / 4; e += 32) {
        int row = 16 * warp + e / (N / 4), n = e % (N / 4) * 4;
        copy_quad<LINES != SINGLE>(unsigned(__cvta_generic_to_shared(shared_c + row * C + n)), p.c + int64_t(m0 + row) * p.n + n0 + n,
                                   m0 + row < p.m ? p.n - n0 - n : 0);
      }
    }
  }

  // A lane's rows are 2g and 2g+1. It has columns 4g to 4g+3 of the first 32, one of each
  // of four eights, two neighbours of the next 16, and one of the last eight. Its sums are
  // those of columns 2t and 2t+1 of the eights: of 8t to 8t+7, four from 4t on of the
  // next 16, and two of the last eight.
  static constexpr int FOURS = EIGHTS / 4 * 4, TWOS = EIGHTS / 2 * 2;
  static_assert(FOURS <= 4 && TWOS == FOURS + 2, "four eights or none, two, and one or none");
  Sums<THREE, EIGHTS> sums;

  __device__ void multiply() {
    Sums<THREE, EIGHTS> whole;
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += K) {
      if (k0 > 0) {
        __syncthreads();
        if (LINES == BULK && !IMAGES) bulk::meet();
        send_a(k0), send_b(k0);
      }
      if (LINES == BULK) bulk::wait(arrivals, k0 / K);
      if (LINES != BULK || IMAGES) {
        copies_commit();
        copies_wait<0>();
        __syncthreads();
      }
      const float *a = shared_a + t * A + 16 * warp + 2 * g, *b = shared_b + t * B;
      if (n0 >= p.n) continue;  // one more, for the sake of pairs
#pragma unroll(4)
      for (int k = 0; k < K; k += 8) {
        float fa[2][2], fb[EIGHTS][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float *line = b + (k + 4 * e) * B;
          float2 rows = *(const float2 *)(a + (k + 4 * e) * A), two = *(const float2 *)(line + 8 * FOURS + 2 * g);
          fa[0][e] = rows.x, fa[1][e] = rows.y;
          if constexpr (FOURS > 0) {
            float4 four = *(const float4 *)(line + 4 * g);
            fb[0][e] = four.x, fb[1][e] = four.y, fb[2][e] = four.z, fb[3][e] = four.w;
          }
          fb[FOURS][e] = two.x, fb[FOURS + 1][e] = two.y;
          if constexpr (TWOS < EIGHTS) fb[TWOS][e] = line[8 * TWOS + g];
        }
        sums.template add<IMAGES>(fa, fb);
      }
      // The tensor cores round sums toward zero: no longer ones than these.
      if (LINES != BULK) {
#pragma unroll
        for (int j = 0; j < EIGHTS; j++)
#pragma unroll
          for (int i = 0; i < 4; i++) whole.c[j][i] += sums.c[j][i];
        sums = {};
      }
    }
    if (LINES != BULK) sums = whole;
    else __syncthreads();
  }

  __device__ void finish() {
    float alpha = (ADD ? p.alpha : 1) * (IMAGES ? 1 / 255.f : 1);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = 16 * warp + 2 * g + h;
      auto put = [&](int n, float x, float y, float z, float w) {
        float4 *at = (float4 *)(shared_c + row * C + n), v = make_float4(alpha * x, alpha * y, alpha * z, alpha * w);
        if (LINES == BULK) {
          *at = v;
        } else {
          if (ADD) v = make_float4(fmaf(alpha, x, at->x), fmaf(alpha, y, at->y), fmaf(alpha, z, at->z), fmaf(alpha, w, at->w));
          store_quad<LINES != SINGLE>(p.c + int64_t(m0 + row) * p.n + n0 + n, v, m0 + row < p.m ? p.n - n0 - n : 0);
        }
      };
      const auto &c = sums.c;
      if constexpr (FOURS > 0) {
#pragma unroll
        for (int x = 0; x < 2; x++) put(8 * t + 4 * x, c[0][2 * h + x], c[1][2 * h + x], c[2][2 * h + x], c[3][2 * h + x]);
      }
      put(8 * FOURS + 4 * t, c[FOURS][2 * h], c[FOURS + 1][2 * h], c[FOURS][2 * h + 1], c[FOURS + 1][2 * h + 1]);
      if constexpr (TWOS < EIGHTS) {
        static_assert(LINES == BULK, "half a quad");
        *(float2 *)(shared_c + row * C + 8 * TWOS + 2 * t) = make_float2(alpha * c[TWOS][2 * h], alpha * c[TWOS][2 * h + 1]);
      }
    }
    if constexpr (LINES == BULK) {
      bulk::publish();
      __syncwarp();
      bulk::add(p.map[2], n0, m0 + 16 * warp, shared_c + 16 * warp * C);
    }
  }

  static __device__ void run(const typename Base::Params &p, int block, float *shared) {
    Update u(p, block, shared);
    if (LINES != BULK && u.n0 >= p.n) return;  // one more, for the sake of pairs
    if (LINES == BULK) bulk::start(u.arrivals, 1);
    if (p.early_a) u.send_a(0);
    if (p.early_b) u.send_b(0);
    if (p.early_c) u.send_old();
    follow();
    if (!p.early_a) u.send_a(0);
    if (!p.early_b) u.send_b(0);
    if (!p.early_c) u.send_old();
    u.multiply();
    u.finish();
  }
};

// Narrow is the update of a head of few columns, among others.
template <bool THREE, Lines LINES>
struct Narrow : UpdateBlock<LINES> {
  using Columns = Update<THREE, true, false, LINES == SINGLE ? SINGLE : QUADS, SINGLE, 2>;
  static constexpr int FLOATS = Columns::FLOATS;
  static int64_t tiles(const Args &p) { return pairs(int(tiles_of(p, Columns::M, Columns::N))); }
  static int prepare(typename UpdateBlock<LINES>::Params &out, const Args &p) { return static_cast<Args &>(out) = p, cudaSuccess; }
  static __device__ void run(const Args &p, int block, float *shared) {
    if (block * Columns::M < p.m) Columns::run(p, block * bulk::PAIR, shared);
  }
};

}  // namespace few

#endif
