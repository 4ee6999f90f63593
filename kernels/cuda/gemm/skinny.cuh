// A layer of few rows, and the gradient through one.
#ifndef FEW_LAYER_CUH
#define FEW_LAYER_CUH

#include "few_lines.cuh"

namespace few {

using namespace matmuls;

// Layer is a product of a batch with weights: the next layer, the first one, of
// images, or the gradient of the one before. A lane has its part of the batch in
// registers, of images as bytes. The weights come to shared memory, TURNS of them at
// once, 784 of k. Of a turn a warp has 16 k, and a lane, t of four, 4t to 4t+3 of them.
// A pair of blocks has the same columns.
//
// Math says which rows a lane has, multiplies them, and leaves PARTS of the sums.
//
// Each multiprocessor should have one block. The first layer comes behind the updates,
// whose blocks end at different times: if two of its blocks went where there is room
// first, two of each following layer would go there as well, and all take twice as
// long. So of the first layer there is room for one only.
template <int FORM, int EPILOGUE, typename Math, bool IMAGES, Lines LINES>
struct Layer : Block<LINES == BULK, 2, int(IMAGES)> {
  using Base = Block<LINES == BULK, 2, int(IMAGES)>;
  static constexpr bool NT = FORM == KERNELS_NT, VECTOR = LINES != SINGLE;
  static constexpr int TURNS = 7, AHEAD = IMAGES ? TURNS : Math::AHEAD;
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
  };

  using Element = typename std::conditional<IMAGES, uint8_t, float>::type;
  using Quad = typename std::conditional<IMAGES, unsigned, float4>::type;

  // What a lane has of the batch.
  struct Batch {
    const Element *row[Math::ROWS];  // where its first quad is
    int turns, left;                 // of its warp; from its first quad on
    Quad quads[AHEAD][Math::ROWS];

    __device__ Batch(const Args &p, int m0, int k0) {
      int k = k0 + threadIdx.x / 32 * CHUNK;
      turns = (p.k - k + TURN - 1) / TURN;
      k += threadIdx.x % 4 * 4, left = p.k - k;
#pragma unroll
      for (int h = 0; h < Math::ROWS; h++) {
        int m = min(m0 + Math::row(h), p.m - 1);  // the sums of a row past the end go nowhere
        row[h] = (const Element *)p.a + int64_t(IMAGES ? p.order[m] : m) * p.k + k;
      }
    }

    __device__ void read(int turn) {
#pragma unroll
      for (int h = 0; h < Math::ROWS; h++) {
        Quad &q = quads[turn % AHEAD][h];
        const Element *from = row[h] + turn * TURN;
        if constexpr (LINES >= WHOLE && IMAGES) { if (turn < turns) q = *(const unsigned *)from; }
        else if constexpr (LINES >= WHOLE) { if (turn < turns) q = __ldcg((const float4 *)from); }
        else if constexpr (IMAGES) q = pixels(from, left - turn * TURN, VECTOR);
        else q = quad<VECTOR>(from, left - turn * TURN);
      }
    }

    __device__ void floats(float (&a)[Math::ROWS][4], int turn) const {
#pragma unroll
      for (int h = 0; h < Math::ROWS; h++) {
        if constexpr (IMAGES) {
#pragma unroll
          for (int e = 0; e < 4; e++) a[h][e] = pixel(quads[turn % AHEAD][h], e);
        } else {
          *(float4 *)a[h] = quads[turn % AHEAD][h];
        }
      }
    }
  };

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
    Math math;
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
        float a[Math::ROWS][4];
        if (WAITS > 1) weights.wait(i);
        batch.floats(a, i);
        if (i + AHEAD < TURNS) batch.read(i + AHEAD);
        math.template add<NT, IMAGES>(a, shared + i * SIZE);
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

    static_assert(Math::OVER ? Math::FLOATS <= SUMS : Math::FLOATS <= ARRIVALS - SUMS, "room for the sums");
    float *parts = shared + (Math::OVER ? 0 : SUMS);
    if (Math::OVER) __syncthreads();  // all weights are read
    math.template leave<NT>(parts);
    __syncthreads();
    if (columns <= 0) return;
    float2 sum = {0, 0};
#pragma unroll
    for (int i = 0; i < Math::PARTS; i++) {
      float2 v = Math::template pair<NT>(parts, i);
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

template <typename Math>
int layer(uintptr_t stream, int form, int epilogue, const Args &p) {
  return with(lines(p, true), [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value;
    switch (form * 4 + epilogue) {
#define LAYER(FORM, EPILOGUE, IMAGES) launch<Layer<KERNELS_##FORM, KERNELS_##EPILOGUE, Math, IMAGES, L>>(stream, p)
      case KERNELS_NN * 4 + KERNELS_STORE: return p.order ? LAYER(NN, STORE, true) : LAYER(NN, STORE, false);
      case KERNELS_NN * 4 + KERNELS_RELU: return p.order ? LAYER(NN, RELU, true) : LAYER(NN, RELU, false);
      case KERNELS_NT * 4 + KERNELS_STORE: return LAYER(NT, STORE, false);
      case KERNELS_NT * 4 + KERNELS_MASK: return LAYER(NT, MASK, false);
#undef LAYER
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace few

#endif
