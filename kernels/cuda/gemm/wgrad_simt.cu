// Weight gradients of few rows, on the CUDA cores.
#ifndef FEW_FFMA_UPDATE_CUH
#define FEW_FFMA_UPDATE_CUH

#include "few.cuh"
#include "tensor.cuh"

namespace few_ffma {

using namespace matmuls;

constexpr int WARPS = 8;

template <int WARPS_ = WARPS, int BLOCKS_ = 2, int AT_MOST_ = 0, typename Params_ = Args>
struct Block {
  static constexpr int THREADS = 32 * WARPS_, BLOCKS = BLOCKS_, AT_MOST = AT_MOST_, CLUSTER = 1;
  using Params = Params_;
  static int prepare(Params &p, const Args &args) { return static_cast<Args &>(p) = args, cudaSuccess; }
};

// The weight gradient of a batch of at most MOST, and the step that it makes. 784×784
// are 130 tiles of 64×80. Two slices of four warps take every other k; a thread keeps
// 8×5 sums, and finishes half of its and its partner's in the other slice.
constexpr int MOST = 128;

template <bool ADD, bool IMAGES, bool VECTOR>
struct Update : Block<> {
  static constexpr int BM = 64, BN = 80, SLICE = THREADS / 2, UNROLL = 8;
  static constexpr int FLOATS = MOST * (BM + BN);
  static int64_t tiles(const Args &p) { return tiles_of(p, BM, BN); }
  static __device__ void run(const Args &p, int block, float *shared);
};

template <bool ADD, bool IMAGES, bool VECTOR>
__device__ void Update<ADD, IMAGES, VECTOR>::run(const Args &p, int block, float *shared) {
  float *shared_b = shared + MOST * BM;
  unsigned to_a = shared_address(shared), to_b = shared_address(shared_b);
  int tiles_n = (p.n + BN - 1) / BN, m0 = block / tiles_n * BM, n0 = block % tiles_n * BN;
  int lines = (p.k + 2 * UNROLL - 1) / (2 * UNROLL) * (2 * UNROLL);

  // A thread's sums are those of rows 4ty.. and 32 + 4ty.., of columns 4tx.. and of
  // column 64 + tx. It finishes the slice-th four rows.
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / 4;
  int ty = warp % 2 * 4 + lane % 2 + lane / 16 * 2, tx = warp / 2 % 2 * 8 + lane / 2 % 8;
  int y = m0 + 32 * slice + 4 * ty, x = n0 + 4 * tx, single = n0 + 64 + tx;
  float old[4][5] = {};

  // First what is early, then the rest.
#pragma unroll 1
  for (int late = 0; late < 2; late++) {
    if (late) follow();
    if (p.early_a != late)
#pragma unroll 4
      for (int e = threadIdx.x; e < lines * (BM / 4); e += THREADS) {
        int k = e / (BM / 4), m = m0 + e % (BM / 4) * 4, left = k < p.k ? p.m - m : 0;
        if (IMAGES) {
          const uint8_t *image = (const uint8_t *)p.a + int64_t(left > 0 ? p.order[k] : 0) * p.m;
          store_pixels(shared + 4 * e, pixels(image + m, left, VECTOR));
        } else {
          copy_quad<VECTOR>(to_a + 16 * e, p.a + int64_t(k) * p.m + m, left);
        }
      }
    if (p.early_b != late)
#pragma unroll 4
      for (int e = threadIdx.x; e < lines * (BN / 4); e += THREADS) {
        int k = e / (BN / 4), n = n0 + e % (BN / 4) * 4;
        copy_quad<VECTOR>(to_b + 16 * e, p.b + int64_t(k) * p.n + n, k < p.k ? p.n - n : 0);
      }
    if (ADD && p.early_c != late)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (y + i >= p.m) continue;
        const float *from = p.c + int64_t(y + i) * p.n;
        if (x < p.n) {
          float quad[4] = {};
          read(quad, from + x, p.n - x, VECTOR);
#pragma unroll
          for (int j = 0; j < 4; j++) old[i][j] = quad[j];
        }
        if (single < p.n) old[i][4] = __ldcg(from + single);
      }
  }
  copies_commit();
  copies_wait<0>();
  __syncthreads();

  float sum[8][5] = {};
  const float *as = shared + slice * BM + 4 * ty, *bs = shared_b + slice * BN + 4 * tx, *singles = shared_b + slice * BN + 64 + tx;
#pragma unroll 1
  for (int k = 0; k < lines; k += 2 * UNROLL) {
#pragma unroll
    for (int u = 0; u < 2 * UNROLL; u += 2) {
      float4 a0 = *(const float4 *)(as + u * BM), a1 = *(const float4 *)(as + u * BM + 32), v = *(const float4 *)(bs + u * BN);
      float a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w}, b[5] = {v.x, v.y, v.z, v.w, singles[u * BN]};
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 5; j++) sum[i][j] += a[i] * b[j];
    }
    as += 2 * UNROLL * BM, bs += 2 * UNROLL * BN, singles += 2 * UNROLL * BN;
  }

  // The half that the partner finishes goes, the other comes.
  __syncthreads();
  float4 *sent = (float4 *)shared + threadIdx.x, *came = (float4 *)shared + (threadIdx.x ^ SLICE);
#pragma unroll
  for (int i = 0; i < 5; i++) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int f = 4 * i + j;
      v[j] = slice ? sum[f / 5][f % 5] : sum[4 + f / 5][f % 5];
    }
    sent[i * THREADS] = make_float4(v[0], v[1], v[2], v[3]);
  }
  __syncthreads();
  float result[4][5];
#pragma unroll
  for (int i = 0; i < 5; i++) {
    float4 v = came[i * THREADS];
    float other[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int f = 4 * i + j, row = f / 5, column = f % 5;
      float s = (slice ? sum[4 + row][column] : sum[row][column]) + other[j];
      result[row][column] = epilogue<ADD ? KERNELS_ADD : KERNELS_STORE>(scaled<IMAGES>(s), old[row][column], p.alpha);
    }
  }

#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (y + i >= p.m) continue;
    float *to = p.c + int64_t(y + i) * p.n;
    if (VECTOR) {
      if (x < p.n) *(float4 *)(to + x) = make_float4(result[i][0], result[i][1], result[i][2], result[i][3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (x + j < p.n) to[x + j] = result[i][j];
    }
    if (single < p.n) to[single] = result[i][4];
  }
}

// BulkUpdate is an Update of tiles copied in bulk, 112×56, by a pair of blocks with the same
// rows; the step is added in memory, where the old value is (see few_update.cuh).
template <bool IMAGES>
struct BulkUpdate : Block<4, 4, 3, BulkArgs> {
  static constexpr int CLUSTER = bulk::PAIR, BM = 112, BN = 56, BK = 64;
  static constexpr int ARRIVALS = BK * (BM + BN), FLOATS = ARRIVALS + 2, EACH = BM / 4;  // EACH: lines that a warp adds
  static constexpr int TM = 7, TN = 7;                                                    // sums of a thread
  static_assert(BM / TM * (BN / TN) == THREADS && BM <= BK * 2, "one each, and the sums fit where the factors were");

  static int64_t tiles(const Args &p) { return tiles_of_pairs(p, BM, BN); }

  static int prepare(BulkArgs &out, const Args &p) {
    static_cast<Args &>(out) = p;
    int code = IMAGES ? cudaSuccess : bulk::describe<2>(out.map[0], p.a, {{p.m, 1, BM}, {p.k, p.m, BK / 2}});
    if (!code) code = bulk::describe<2>(out.map[1], p.b, {{p.n, 1, BN}, {p.k, p.n, BK}});
    return code ? code : bulk::describe<2>(out.map[2], p.c, {{p.n, 1, BN}, {p.m, p.n, EACH}});
  }

  static __device__ void run(const BulkArgs &p, int block, float *shared) {
    auto arrivals = (bulk::Arrivals *)(shared + ARRIVALS);
    float *shared_b = shared + BK * BM;
    int tiles_n = (p.n + BN * bulk::PAIR - 1) / (BN * bulk::PAIR) * bulk::PAIR;
    int m0 = block / tiles_n * BM, n0 = block % tiles_n * BN;
    auto send_a = [&](int k0) {
      if (IMAGES) {
        for (int e = threadIdx.x; e < BK * (BM / 4); e += THREADS) {
          int k = k0 + e / (BM / 4), m = m0 + e % (BM / 4) * 4;
          bool valid = k < p.k && m < p.m;
          store_pixels(shared + 4 * e, valid ? *(const unsigned *)((const uint8_t *)p.a + int64_t(p.order[k]) * p.m + m) : 0);
        }
      } else if (threadIdx.x == 0) {
        int half = BK / 2 * bulk::rank();
        bulk::send_both(shared + half * BM, p.map[0], m0, k0 + half, arrivals);
      }
    };
    auto send_b = [&](int k0) {
      if (threadIdx.x) return;
      bulk::expect(arrivals, 4 * BK * (BN + (IMAGES ? 0 : BM)));
      bulk::send(shared_b, p.map[1], n0, k0, arrivals);
    };

    bulk::start(arrivals, 1);
    if (p.early_a) send_a(0);
    if (p.early_b) send_b(0);
    follow();
    if (!p.early_a) send_a(0);
    if (!p.early_b) send_b(0);

    // A thread has rows 4ty.. of the first 64, 2ty.. of the next 32 and ty of the last 16, and
    // columns 4tx.., 2tx.. and tx of 32, 16 and eight.
    int ty = threadIdx.x / 8, tx = threadIdx.x % 8;
    float sum[TM][TN] = {};
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += BK) {
      if (k0 > 0) {
        __syncthreads();
        if (!IMAGES) bulk::meet();
        send_a(k0), send_b(k0);
      }
      bulk::wait(arrivals, k0 / BK);
      if (IMAGES) __syncthreads();
      if (n0 >= p.n) continue;  // one more, for the sake of pairs
      const float *a4 = shared + 4 * ty, *a2 = shared + 64 + 2 * ty, *a1 = shared + 96 + ty;
      const float *b4 = shared_b + 4 * tx, *b2 = shared_b + 32 + 2 * tx, *b1 = shared_b + 48 + tx;
#pragma unroll 8
      for (int k = 0; k < BK; k++) {
        float4 af = *(const float4 *)(a4 + k * BM), bf = *(const float4 *)(b4 + k * BN);
        float2 at = *(const float2 *)(a2 + k * BM), bt = *(const float2 *)(b2 + k * BN);
        float a[TM] = {af.x, af.y, af.z, af.w, at.x, at.y, a1[k * BM]}, b[TN] = {bf.x, bf.y, bf.z, bf.w, bt.x, bt.y, b1[k * BN]};
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
          for (int j = 0; j < TN; j++) sum[i][j] += a[i] * b[j];
      }
    }

    __syncthreads();
    float scale = scaled<IMAGES>(p.alpha);
#pragma unroll
    for (int i = 0; i < TM; i++) {
      float *to = shared + (i < 4 ? 4 * ty + i : i < 6 ? 64 + 2 * ty + i - 4 : 96 + ty) * BN, *s = sum[i];
      *(float4 *)(to + 4 * tx) = make_float4(scale * s[0], scale * s[1], scale * s[2], scale * s[3]);
      *(float2 *)(to + 32 + 2 * tx) = make_float2(scale * s[4], scale * s[5]);
      to[48 + tx] = scale * s[6];
    }
    bulk::publish();
    __syncthreads();
    int line = threadIdx.x / 32 * EACH;
    bulk::add(p.map[2], n0, m0 + line, shared + line * BN);
  }
};

// Narrow is the update of a head, of at most 16 columns, beside others of kind Other. A
// thread has eight of them, of one row.
template <typename Other>
struct Narrow : Other {
  static constexpr int BM = Other::THREADS / 2, BN = 16, FLOATS = MOST * BN, UNROLL = 32;
  static int64_t tiles(const Args &p) { return (tiles_of(p, BM, BN) + Other::CLUSTER - 1) / Other::CLUSTER * Other::CLUSTER; }
  static int prepare(typename Other::Params &out, const Args &p) { return static_cast<Args &>(out) = p, cudaSuccess; }

  static __device__ void run(const Args &p, int block, float *shared) {
    int m = block * BM + threadIdx.x / 2, n = threadIdx.x % 2 * 8;
    if (block * BM >= p.m) return;
    const float *a = p.a + min(m, p.m - 1);
    float v[UNROLL];
    auto read = [&](int k0) {
#pragma unroll
      for (int k = 0; k < UNROLL; k++) v[k] = k0 + k < p.k ? __ldcg(a + int64_t(k0 + k) * p.m) : 0;
    };
    if (p.early_a) read(0);
    follow();
    if (!p.early_a) read(0);
    for (int e = threadIdx.x; e < (p.k + UNROLL - 1) / UNROLL * UNROLL * BN; e += Other::THREADS)
      shared[e] = e / BN < p.k && e % BN < p.n ? __ldcg(p.b + int64_t(e / BN) * p.n + e % BN) : 0;
    __syncthreads();
    float sum[8] = {};
    for (int k0 = 0; k0 < p.k; k0 += UNROLL) {
      if (k0 > 0) read(k0);
#pragma unroll
      for (int k = 0; k < UNROLL; k++)
#pragma unroll
        for (int j = 0; j < 8; j++) sum[j] += v[k] * shared[(k0 + k) * BN + n + j];
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
      if (m < p.m && n + j < p.n) {
        float *c = p.c + int64_t(m) * p.n + n + j;
        *c = __ldcg(c) + p.alpha * sum[j];
      }
  }
};

}  // namespace few_ffma

#endif
