// Products with the few rows of a small batch: all latency, no throughput.
//
// What a product waits for is what the kernel before it has just made; all else is
// old, and is read while that kernel still runs (see follow). So the tile of a block
// is low, 16 rows of the batch by 24 columns, 132 tiles for 64×784: little to wait
// for, the same for each multiprocessor, and room for the next kernel's blocks
// beside these. The k of a tile is dealt to seven warps, as 784 is 7×112, whose sums
// are added at the end, in order.
//
// Where the hardware can, tiles are copied in bulk, and blocks come in pairs that
// share what both need: half the bytes, and a few instructions for hundreds.
#include <type_traits>

#include "bulk.cuh"
#include "few.cuh"
#include "tensor.cuh"

using namespace matmuls;

namespace {

constexpr int WARPS = 7;
constexpr int CHUNK = 16;  // k that a warp of a layer multiplies at once

// What is known of the lines of the operands: nothing; that they are quads on 16-byte
// boundaries; that those of the batch are whole chunks; that they can be copied in bulk.
enum Lines { SINGLE, QUADS, WHOLE, BULK };

struct BulkArgs : Args {
  bulk::Map map[3];
};

template <bool BULK_, int BLOCKS_ = 2, bool ALONE_ = false>
struct Block {
  static constexpr int THREADS = 32 * WARPS, BLOCKS = BLOCKS_, CLUSTER = BULK_ ? bulk::PAIR : 1;
  static constexpr bool ALONE = ALONE_;

  using Params = typename std::conditional<BULK_, BulkArgs, Args>::type;
};

int pairs(int n) { return (n + bulk::PAIR - 1) / bulk::PAIR * bulk::PAIR; }

// quad reads four floats, or as many as left says and zeros, from L2: the L1 of
// this multiprocessor may hold what was there before.
template <bool VECTOR>
__device__ float4 quad(const float *from, int left) {
  float v[4] = {};
  if (VECTOR) {
    if (left > 0) return __ldcg((const float4 *)from);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < left) v[i] = __ldcg(from + i);
  }
  return make_float4(v[0], v[1], v[2], v[3]);
}

template <bool VECTOR>
__device__ void store_quad(float *to, float4 v, int left) {
  if (VECTOR) {
    if (left > 0) *(float4 *)to = v;
  } else {
    if (left > 0) to[0] = v.x;
    if (left > 1) to[1] = v.y;
    if (left > 2) to[2] = v.z;
    if (left > 3) to[3] = v.w;
  }
}

// Sums are a warp's, of 16 rows by NI eights of columns.
template <bool THREE, int NI>
struct Sums {
  float c[NI][4] = {};

  // add adds the products of eight k: a lane has two of them, of rows g and g+8 and of
  // column g of each eight. A byte is exact and has no rest.
  template <bool BYTES>
  __device__ void add(const float (&fa)[2][2], const float (&fb)[NI][2]) {
    unsigned a[2][2], a_rest[2][2], b[NI][2], b_rest[NI][2];
    if (BYTES) {
#pragma unroll
      for (int r = 0; r < 2; r++) a[r][0] = __float_as_uint(fa[r][0]), a[r][1] = __float_as_uint(fa[r][1]);
    } else {
      split<THREE>(a, a_rest, fa);
    }
    split<THREE>(b, b_rest, fb);
    if (THREE) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[j], a[0], a[1], b_rest[j]);
    }
    if (THREE && !BYTES) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[j], a_rest[0], a_rest[1], b[j]);
    }
#pragma unroll
    for (int j = 0; j < NI; j++) mma(c[j], a[0], a[1], b[j]);
  }
};

// Layer is a product of a batch with weights: the next layer, the first one, of
// images, or the gradient of the one before. A lane has its part of the batch in
// registers, of images as bytes. The weights come to shared memory, TURNS of them at
// once, 784 of k. Of a turn a warp has 16 k. A pair of blocks has the same columns.
//
// Each multiprocessor should have one block. The first layer comes behind the updates,
// whose blocks end at different times: if two of its blocks went where there is room
// first, two of each following layer would go there as well, and all take twice as
// long. So of the first layer there is room for one only.
template <int FORM, int EPILOGUE, bool THREE, bool IMAGES, Lines LINES>
struct Layer : Block<LINES == BULK, 2, IMAGES> {
  using Base = Block<LINES == BULK, 2, IMAGES>;
  static constexpr bool NT = FORM == KERNELS_NT, VECTOR = LINES != SINGLE;
  static constexpr int BM = 16, BN = 24, TURNS = 7, TURN = CHUNK * WARPS, AHEAD = IMAGES ? TURNS : THREE ? 1 : 2;
  // A turn of weights. NN: lines of columns, k = 4q + e in line 28e + q, so that the
  // lanes' banks differ. NT: lines of k.
  static constexpr int SIZE = TURN * BN, SUMS = TURNS * SIZE, ARRIVALS = SUMS + WARPS * BM * BN;
  static constexpr int FLOATS = ARRIVALS + 2 * TURNS, WAITS = IMAGES ? TURNS : 1;
  static constexpr int PAIRS = BM * BN / 2;  // that the threads finish, one each
  static_assert(PAIRS <= Base::THREADS, "one each");

  static int64_t tiles(const Args &p) { return int64_t((p.n + BN - 1) / BN) * pairs((p.m + BM - 1) / BM); }

  static int prepare(typename Base::Params &out, const Args &p) {
    static_cast<Args &>(out) = p;
    if constexpr (LINES == BULK) {
      if (NT) return bulk::describe<2>(out.map[0], p.b, {{p.k, 1, TURN}, {p.n, p.k, BN / 2}});
      return bulk::describe<3>(out.map[0], p.b, {{p.n, 1, BN}, {p.k / 4, 4 * int64_t(p.n), TURN / 4}, {4, p.n, 2}});
    }
    return cudaSuccess;
  }

  struct Weights {
    const typename Base::Params &p;
    float *shared;
    int n0, pass = 0;

    __device__ bulk::Arrivals *arrivals(int turn) const { return (bulk::Arrivals *)(shared + ARRIVALS) + (WAITS > 1 ? turn : 0); }

    // send sends for the turns from k0 on.
    __device__ void send(int k0) {
      if constexpr (LINES == BULK) {
        if (threadIdx.x) return;
        int turns = min(TURNS, (p.k - k0 + TURN - 1) / TURN), half = bulk::rank();
        if (WAITS == 1) bulk::expect(arrivals(0), turns * SIZE * 4);
        for (int i = 0; i < turns; i++) {
          if (WAITS > 1) bulk::expect(arrivals(i), SIZE * 4);
          float *to = shared + i * SIZE + half * (SIZE / 2);
          if (NT) bulk::send_both(to, p.map[0], k0 + i * TURN, n0 + half * (BN / 2), arrivals(i));
          else bulk::send_both(to, p.map[0], n0, (k0 + i * TURN) / 4, 2 * half, arrivals(i));
        }
      } else {
        // A warp copies for itself, pieces of W floats, lanes side by side.
        constexpr int W = VECTOR ? 4 : 1, LINE = (NT ? CHUNK : BN) / W;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        unsigned to = shared_address(shared);
        k0 += CHUNK * warp;
        const float *from = p.b + (NT ? k0 : int64_t(k0) * p.n);
#pragma unroll 1
        for (int i = 0; i < TURNS; i++) {
#pragma unroll
          for (int q = lane; q < CHUNK * BN / W; q += 32) {
            int line = q / LINE, x = q % LINE * W, n = n0 + (NT ? line : x), k = NT ? x : line;
            int place = NT ? line * TURN + CHUNK * warp + x : (line % 4 * (TURN / 4) + CHUNK / 4 * warp + line / 4) * BN + x;
            if (k0 < p.k) copy<W>(to + 4 * place, from + (NT ? int64_t(n) * p.k + k : int64_t(k) * p.n + n), n < p.n && k0 + k < p.k);
          }
          to += 4 * SIZE, k0 += TURN, from += NT ? TURN : int64_t(TURN) * p.n;
          copies_commit();
        }
      }
    }

    // wait waits for a turn, or for all of them.
    __device__ void wait(int turn) const {
      if constexpr (LINES == BULK) {
        bulk::wait(arrivals(turn), pass);
      } else {
        if (WAITS > 1) copies_wait_but<TURNS>(TURNS - 1 - turn);
        else copies_wait<0>();
        __syncwarp();
      }
    }

    // read reads what a lane multiplies of a turn, of column g of three eights. NN: the
    // first two eights share 16 columns, one of two neighbours each.
    __device__ void read(float (&b)[3][4], int turn) const {
      int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
      const float *from = shared + turn * SIZE + (NT ? g * TURN + CHUNK * warp + 4 * t : (CHUNK / 4 * warp + t) * BN);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (NT) {
          if (e < 3) *(float4 *)b[e] = *(const float4 *)(from + 8 * e * TURN);
        } else {
          float2 two = *(const float2 *)(from + e * (SIZE / 4) + 2 * g);
          b[0][e] = two.x, b[1][e] = two.y, b[2][e] = from[e * (SIZE / 4) + 16 + g];
        }
      }
    }
  };

  using Element = typename std::conditional<IMAGES, uint8_t, float>::type;
  using Quad = typename std::conditional<IMAGES, unsigned, float4>::type;

  // What a lane has of the batch, of rows g and g+8.
  struct Batch {
    const Element *row[2];  // where its first quad is
    int turns, left;        // of its warp; from its first quad on
    Quad quads[AHEAD][2];

    __device__ Batch(const Args &p, int m0, int k0) {
      int k = k0 + threadIdx.x / 32 * CHUNK;
      turns = (p.k - k + TURN - 1) / TURN;
      k += threadIdx.x % 4 * 4, left = p.k - k;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int m = min(m0 + 8 * h + int(threadIdx.x) % 32 / 4, p.m - 1);  // the sums of a row past the end go nowhere
        row[h] = (const Element *)p.a + int64_t(IMAGES ? p.order[m] : m) * p.k + k;
      }
    }

    __device__ void read(int turn) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        Quad &q = quads[turn % AHEAD][h];
        const Element *from = row[h] + turn * TURN;
        if constexpr (LINES >= WHOLE && IMAGES) { if (turn < turns) q = *(const unsigned *)from; }
        else if constexpr (LINES >= WHOLE) { if (turn < turns) q = __ldcg((const float4 *)from); }
        else if constexpr (IMAGES) q = pixels(from, left - turn * TURN, VECTOR);
        else q = quad<VECTOR>(from, left - turn * TURN);
      }
    }

    __device__ void floats(float (&a)[2][4], int turn) const {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if constexpr (IMAGES) {
#pragma unroll
          for (int e = 0; e < 4; e++) a[h][e] = pixel(quads[turn % AHEAD][h], e);
        } else {
          *(float4 *)a[h] = quads[turn % AHEAD][h];
        }
      }
    }
  };

  // leave writes a warp's sums to lines of BN.
  static __device__ void leave(const Sums<THREE, 3> &sums, float *to) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const auto &c = sums.c;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float *line = to + (8 * h + g) * BN;
#pragma unroll
      for (int j = NT ? 0 : 2; j < 3; j++) *(float2 *)(line + 8 * j + 2 * t) = make_float2(c[j][2 * h], c[j][2 * h + 1]);
      if (!NT) *(float4 *)(line + 4 * t) = make_float4(c[0][2 * h], c[1][2 * h], c[0][2 * h + 1], c[1][2 * h + 1]);
    }
  }

  static __device__ void run(const typename Base::Params &p, int block, float *shared) {
    int tiles_m = (p.m + BM * bulk::PAIR - 1) / (BM * bulk::PAIR) * bulk::PAIR, m0 = block % tiles_m * BM, n0 = block / tiles_m * BN;

    if (LINES != BULK && m0 >= p.m) return;  // one more, for the sake of pairs

    // Of the tile a thread finishes two neighbours.
    int m = m0 + threadIdx.x / (BN / 2), n = n0 + threadIdx.x % (BN / 2) * 2;
    int columns = threadIdx.x < PAIRS && m < p.m ? p.n - n : 0;
    int64_t place = int64_t(m) * p.n + n;
    float2 old = {0, 0};
    auto read_old = [&] {
      if (EPILOGUE != KERNELS_MASK) return;
      if (VECTOR) {
        if (columns > 0) old = __ldcg((const float2 *)(p.y + place));
      } else {
        if (columns > 0) old.x = __ldcg(p.y + place);
        if (columns > 1) old.y = __ldcg(p.y + place + 1);
      }
    };

    Weights weights = {p, shared, n0};
    if (LINES == BULK) bulk::start(weights.arrivals(0), WAITS);
    Sums<THREE, 3> sums;
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += TURNS * TURN) {
      bool first = k0 == 0;
      if (!first) {
        __syncwarp();
        if (LINES == BULK) bulk::meet();
        weights.pass++;
      }
      if (!first || p.early_b) weights.send(k0);
      if (first && p.early_c) read_old();
      Batch batch(p, m0, k0);
      auto read_ahead = [&] {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) batch.read(i);
      };
      if (IMAGES) read_ahead();
      if (first) follow();
      if (first && !p.early_b) weights.send(k0);
      if (!IMAGES) read_ahead();
      if (first && !p.early_c) read_old();
      if (WAITS == 1) weights.wait(0);
      auto multiply = [&](int i) {
        float a[2][4], b[3][4];
        if (WAITS > 1) weights.wait(i);
        batch.floats(a, i);
        if (i + AHEAD < TURNS) batch.read(i + AHEAD);
        weights.read(b, i);
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
          float fa[2][2], fb[3][2];
#pragma unroll
          for (int h = 0; h < 2; h++) fa[h][0] = a[h][s], fa[h][1] = a[h][s + 1];
#pragma unroll
          for (int j = 0; j < 3; j++) fb[j][0] = b[j][s], fb[j][1] = b[j][s + 1];
          sums.template add<IMAGES>(fa, fb);
        }
      };
      // All of them in one piece, which the compiler may put in a better order.
      if (batch.turns >= TURNS) {
#pragma unroll
        for (int i = 0; i < TURNS; i++) multiply(i);
      } else {
#pragma unroll
        for (int i = 0; i < TURNS; i++)
          if (i < batch.turns) multiply(i);
      }
    }

    leave(sums, shared + SUMS + threadIdx.x / 32 * (BM * BN));
    __syncthreads();
    if (columns <= 0) return;
    float2 sum = {0, 0};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float2 v = *(const float2 *)(shared + SUMS + w * BM * BN + 2 * threadIdx.x);
      sum.x += v.x, sum.y += v.y;
    }
    if (IMAGES) sum.x *= 1 / 255.f, sum.y *= 1 / 255.f;
    sum.x = epilogue<EPILOGUE>(sum.x, old.x, 0), sum.y = epilogue<EPILOGUE>(sum.y, old.y, 0);
    if (VECTOR) {
      *(float2 *)(p.c + place) = sum;
    } else {
      p.c[place] = sum.x;
      if (columns > 1) p.c[place + 1] = sum.y;
    }
  }
};

// UPDATES are on a multiprocessor at once. In bulk those of four layers are all there.
template <Lines LINES>
constexpr int UPDATES = LINES == BULK ? 4 : 2;

// Update is a weight gradient, a sum over the batch, and with ADD the step that it
// makes. A tile is 112×48, or narrower, of which a warp has 16 rows; 64 of k come at once. A pair of
// blocks has the same rows. In bulk the step is added in memory, where the old value is,
// and where one addition an element leaves nothing to the order of things.
template <bool THREE, bool ADD, bool IMAGES, Lines LINES_A, Lines LINES, int EIGHTS = 6>
struct Update : Block<LINES == BULK, UPDATES<LINES>> {
  using Base = Block<LINES == BULK, UPDATES<LINES>>;
  static_assert(LINES != BULK || ADD, "what is in memory is added to");
  static constexpr int M = 16 * WARPS, N = 8 * EIGHTS, K = 64;
  static constexpr int A = M + 8, B = N + 8, C = LINES == BULK ? N : N + 8;  // lines in shared memory, for the sake of the banks
  static constexpr int ARRIVALS = K * A + K * B + (LINES == BULK ? 0 : M * C), FLOATS = ARRIVALS + 2;
  static_assert(LINES != BULK || M * C <= K * A, "the sums fit where the first factor was");

  static int64_t tiles(const Args &p) { return int64_t((p.m + M - 1) / M) * pairs((p.n + N - 1) / N); }

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
      : p(args), shared_a(shared), shared_b(shared + K * A), shared_c(LINES == BULK ? shared_a : shared_b + K * B), arrivals((bulk::Arrivals *)(shared + ARRIVALS)) {
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
        *(float4 *)to = make_float4(pixel(v, 0), pixel(v, 1), pixel(v, 2), pixel(v, 3));
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
  // of four eights, and two neighbours of the last 16. Its sums are those of columns 2t
  // and 2t+1 of the eights: of 8t to 8t+7, and four from 4t on of the last 16.
  static constexpr int LAST = N - 16;
  static_assert(LAST == 0 || LAST == 32, "four eights or none, and two");
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
#pragma unroll(4)
      for (int k = 0; k < K; k += 8) {
        float fa[2][2], fb[EIGHTS][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float *line = b + (k + 4 * e) * B;
          float2 rows = *(const float2 *)(a + (k + 4 * e) * A), two = *(const float2 *)(line + LAST + 2 * g);
          fa[0][e] = rows.x, fa[1][e] = rows.y;
          if constexpr (LAST > 0) {
            float4 four = *(const float4 *)(line + 4 * g);
            fb[0][e] = four.x, fb[1][e] = four.y, fb[2][e] = four.z, fb[3][e] = four.w;
          }
          fb[EIGHTS - 2][e] = two.x, fb[EIGHTS - 1][e] = two.y;
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
      if constexpr (LAST > 0) {
#pragma unroll
        for (int x = 0; x < 2; x++) put(8 * t + 4 * x, c[0][2 * h + x], c[1][2 * h + x], c[2][2 * h + x], c[3][2 * h + x]);
      }
      put(LAST + 4 * t, c[EIGHTS - 2][2 * h], c[EIGHTS - 1][2 * h], c[EIGHTS - 2][2 * h + 1], c[EIGHTS - 1][2 * h + 1]);
    }
    if constexpr (LINES == BULK) bulk::add(p.map[2], n0, m0 + 16 * warp, shared_c + 16 * warp * C);
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
struct Narrow : Block<LINES == BULK, UPDATES<LINES>> {
  using Columns = Update<THREE, true, false, LINES == SINGLE ? SINGLE : QUADS, SINGLE, 2>;
  static constexpr int FLOATS = Columns::FLOATS;
  static int64_t tiles(const Args &p) { return Columns::tiles(p); }
  static int prepare(typename Block<LINES == BULK>::Params &out, const Args &p) { return static_cast<Args &>(out) = p, cudaSuccess; }
  static __device__ void run(const Args &p, int block, float *shared) { Columns::run(p, block, shared); }
};

// What the operands of a product allow.
Lines lines(const Args &p, bool batch) {
  if (!(p.vector_a && p.vector_b && p.vector_c) || !p.k) return SINGLE;
  if (!batch) return bulk::possible() && p.k <= 128 ? BULK : QUADS;
  return p.k % CHUNK ? QUADS : bulk::possible() ? BULK : WHOLE;
}

// with calls f with lines as a type.
template <typename F>
int with(Lines lines, F f) {
  switch (lines) {
    case SINGLE: return f(std::integral_constant<Lines, SINGLE>());
    case QUADS: return f(std::integral_constant<Lines, QUADS>());
    case WHOLE: return f(std::integral_constant<Lines, WHOLE>());
#if HAVE_BULK
    case BULK: return f(std::integral_constant<Lines, BULK>());
#endif
  }
  return cudaErrorInvalidValue;
}

template <bool THREE>
int layer(uintptr_t stream, int form, int epilogue, const Args &p) {
  return with(lines(p, true), [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value;
    switch (form * 4 + epilogue) {
#define LAYER(FORM, EPILOGUE, IMAGES) launch<Layer<KERNELS_##FORM, KERNELS_##EPILOGUE, THREE, IMAGES, L>>(stream, p)
      case KERNELS_NN * 4 + KERNELS_STORE: return p.order ? LAYER(NN, STORE, true) : LAYER(NN, STORE, false);
      case KERNELS_NN * 4 + KERNELS_RELU: return p.order ? LAYER(NN, RELU, true) : LAYER(NN, RELU, false);
      case KERNELS_NT * 4 + KERNELS_STORE: return LAYER(NT, STORE, false);
      case KERNELS_NT * 4 + KERNELS_MASK: return LAYER(NT, MASK, false);
#undef LAYER
    }
    return cudaErrorInvalidValue;
  });
}

template <bool THREE, bool ADD, bool IMAGES>
int update(uintptr_t stream, const Args &p) {
  return with(lines(p, false), [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value == WHOLE || !ADD && decltype(l)::value == BULK ? QUADS : decltype(l)::value;
    return launch<Update<THREE, ADD, IMAGES, L, L>>(stream, p);
  });
}

// A narrow update is that of a head, of whose columns nothing needs to be known.
bool narrow(const Args &p) { return p.n <= 16 && !p.order; }

template <bool THREE>
int updates(uintptr_t stream, const Args *p, int count) {
  Lines least = BULK;
  for (int i = 0; i < count; i++)
    least = std::min(least, !narrow(p[i]) ? lines(p[i], false) : !p[i].vector_a ? SINGLE : bulk::possible() ? BULK : QUADS);
  return with(least, [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value == WHOLE ? QUADS : decltype(l)::value;
    using Inner = Update<THREE, true, false, L, L>;
    using First = Update<THREE, true, true, L, L>;
    using Head = Narrow<THREE, L>;
    using Params = typename Inner::Params;
    constexpr int MOST = List<Params>::MOST;
    List<Params> list;
    for (int i = 0, n; i < count; i += n) {
      n = std::min(MOST, count - i);
      for (int j = 0; j < n; j++) {
        const Args &a = p[i + j];
        if (int code = narrow(a) ? add<Head>(list, j, 2, a) : a.order ? add<First>(list, j, 1, a) : add<Inner>(list, j, 0, a))
          return code;
      }
      if (int code = launch<Inner, First, Head>(stream, list, n)) return code;
    }
    return cudaSuccess;
  });
}

}  // namespace

bool matmul_is_few(int form, int epilogue, const Args &p) {
  // Of images these are the only products; how many rows are few was measured.
  if (p.order) return true;
  int64_t room = 2 * device().sms;
  if (form == KERNELS_TN) return epilogue == KERNELS_ADD && p.k <= 128 && tiles_of(p, 112, 48) <= room;
  return p.n > 16 && p.k > 32 && p.k <= 1024 && tiles_of(p, 16, 24) <= room;
}

int matmul_few(uintptr_t stream, int form, int epilogue, bool three, const Args &p) {
  if (form != KERNELS_TN) return three ? layer<true>(stream, form, epilogue, p) : layer<false>(stream, form, epilogue, p);
  if (epilogue == KERNELS_ADD) {
    if (p.order) return three ? update<true, true, true>(stream, p) : update<false, true, true>(stream, p);
    return three ? update<true, true, false>(stream, p) : update<false, true, false>(stream, p);
  }
  if (p.order) return three ? update<true, false, true>(stream, p) : update<false, false, true>(stream, p);
  return three ? update<true, false, false>(stream, p) : update<false, false, false>(stream, p);
}

int matmul_few_updates(uintptr_t stream, bool three, const Args *p, int count) {
  return three ? updates<true>(stream, p, count) : updates<false>(stream, p, count);
}
