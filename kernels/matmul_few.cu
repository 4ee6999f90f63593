// Products with the few rows of a small batch: all latency, no throughput.
//
// What a product waits for is what the kernel before it has just made; all else is
// old, and is read while that kernel still runs (see follow). So the tile of a block
// is low, 16 rows of the batch by 24 columns, 132 tiles for 64×784: little to wait
// for, the same for each multiprocessor, and room for the next kernel's blocks
// beside these. The k of a tile is dealt to eight warps, whose sums are added at the
// end, in order.
#include <type_traits>

#include "few.cuh"
#include "tensor.cuh"

using namespace matmuls;

namespace {

constexpr int NI = 3, BN = 8 * NI;  // a warp's columns
constexpr int CHUNK = 16;           // k that a warp multiplies at once

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

// Sums are a warp's, of MI×16 rows by 24 columns.
template <bool THREE, int MI>
struct Sums {
  float c[MI][NI][4] = {};

  // add adds the products of eight k: a lane has two of them, of row g of 2·MI eights
  // and of column g of three. A byte is exact and has no rest.
  template <bool BYTES>
  __device__ void add(const float (&fa)[2 * MI][2], const float (&fb)[NI][2]) {
    unsigned a[2 * MI][2], a_rest[2 * MI][2], b[NI][2], b_rest[NI][2];
    if (BYTES) {
#pragma unroll
      for (int r = 0; r < 2 * MI; r++) a[r][0] = __float_as_uint(fa[r][0]), a[r][1] = __float_as_uint(fa[r][1]);
    } else {
      split<THREE>(a, a_rest, fa);
    }
    split<THREE>(b, b_rest, fb);
#pragma unroll
    for (int i = 0; i < MI; i++) {
      if (THREE) {
#pragma unroll
        for (int j = 0; j < NI; j++) mma(c[i][j], a[2 * i], a[2 * i + 1], b_rest[j]);
      }
      if (THREE && !BYTES) {
#pragma unroll
        for (int j = 0; j < NI; j++) mma(c[i][j], a_rest[2 * i], a_rest[2 * i + 1], b[j]);
      }
#pragma unroll
      for (int j = 0; j < NI; j++) mma(c[i][j], a[2 * i], a[2 * i + 1], b[j]);
    }
  }

  // leave writes row g of the o-th eight to a line in shared memory, from column 0 on.
  __device__ void leave(int o, float *line, int t) const {
#pragma unroll
    for (int j = 0; j < NI; j++)
      *(float2 *)(line + 8 * j + 2 * t) = make_float2(c[o / 2][j][o % 2 * 2], c[o / 2][j][o % 2 * 2 + 1]);
  }
};

// Layer is a product of a batch with weights: the next layer, the first one, of
// images, or the gradient of the one before. A lane has its part of the batch in
// registers, of images as bytes. The weights of a warp come to a place in shared
// memory of its own, so that no warp waits for another. CHUNKS of a warp, 896 of k in
// all, are on the way at once.
template <int FORM, int EPILOGUE, bool THREE, bool IMAGES, bool VECTOR>
struct Layer {
  static constexpr bool NT = FORM == KERNELS_NT;
  static constexpr int BM = 16, CHUNKS = 7, TURN = CHUNK * WARPS;
  // A chunk of the weights. NN: lines of columns, k = 4t + e in line 4e + t, so that
  // the lanes' banks differ. NT: a quad of k for each column and t.
  static constexpr int SIZE = CHUNK * BN, OWN = CHUNKS * SIZE, FLOATS = WARPS * OWN;
  static constexpr int PART = BM * BN, EACH = (PART + THREADS - 1) / THREADS;
  static_assert(PART <= OWN, "the sums fit");
  static int64_t tiles(const Args &p) { return tiles_of(p, BM, BN); }

  static __device__ void run(const Args &p, int block, float *shared) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int tiles_n = (p.n + BN - 1) / BN, m0 = block / tiles_n * BM, n0 = block % tiles_n * BN;
    float *mine = shared + warp * OWN;
    unsigned own = shared_address(mine);

    auto copy_weights = [&](int k0) {
#pragma unroll 1
      for (int i = 0; i < CHUNKS; i++) {
        int k = k0 + i * TURN + CHUNK * warp;
        if (k < p.k) {
          // In turns of W floats, lanes side by side.
          constexpr int W = VECTOR ? 4 : 1, LINE = (NT ? CHUNK : BN) / W;
#pragma unroll
          for (int q = lane; q < SIZE / W; q += 32) {
            int line = q / LINE, x = q % LINE * W;
            if (NT) {
              copy<W>(own + 4 * (i * SIZE + q * W), p.b + int64_t(n0 + line) * p.k + k + x, n0 + line < p.n && k + x < p.k);
            } else {
              copy<W>(own + 4 * (i * SIZE + (line % 4 * 4 + line / 4) * BN + x), p.b + int64_t(k + line) * p.n + n0 + x,
                      k + line < p.k && n0 + x < p.n);
            }
          }
        }
        copies_commit();
      }
    };
    using Element = typename std::conditional<IMAGES, uint8_t, float>::type;
    using Quad = typename std::conditional<IMAGES, unsigned, float4>::type;
    Quad batch[CHUNKS][2];  // of rows g and g+8
    auto read_batch = [&](int k0) {
      int k = k0 + CHUNK * warp + 4 * t;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int m = m0 + 8 * h + g, left = m < p.m ? p.k - k : 0;
        const Element *from = (const Element *)p.a + int64_t(IMAGES && m < p.m ? p.order[m] : m) * p.k + k;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
          if constexpr (IMAGES) batch[i][h] = pixels(from + i * TURN, left - i * TURN, VECTOR);
          else batch[i][h] = quad<VECTOR>(from + i * TURN, left - i * TURN);
        }
      }
    };
    // Of the tile a thread finishes every THREADS-th element.
    auto at = [&](int i) {
      int e = threadIdx.x + i * THREADS, m = m0 + e / BN, n = n0 + e % BN;
      return e < PART && m < p.m && n < p.n ? int64_t(m) * p.n + n : -1;
    };
    float old[EACH] = {};
    auto read_old = [&] {
#pragma unroll
      for (int i = 0; i < EACH; i++)
        if (EPILOGUE == KERNELS_MASK && at(i) >= 0) old[i] = __ldcg(p.y + at(i));
    };

    Sums<THREE, 1> sums;
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += CHUNKS * TURN) {
      bool first = k0 == 0;
      if (!first) __syncwarp();
      if (!first || p.early_b) copy_weights(k0);
      if (first && p.early_c) read_old();
      if (IMAGES) read_batch(k0);
      if (first) {
        follow();
        if (!p.early_b) copy_weights(0);
        if (!p.early_c) read_old();
      }
      if (!IMAGES) read_batch(k0);
#pragma unroll
      for (int i = 0; i < CHUNKS; i++) {
        copies_wait_but<CHUNKS>(CHUNKS - 1 - i);
        __syncwarp();
        if (k0 + i * TURN + CHUNK * warp >= p.k) continue;
        const float *chunk = mine + i * SIZE;
        float a[2][4], b[NI][4];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if constexpr (IMAGES) {
#pragma unroll
            for (int e = 0; e < 4; e++) a[h][e] = pixel(batch[i][h], e);
          } else {
            *(float4 *)a[h] = batch[i][h];
          }
        }
#pragma unroll
        for (int j = 0; j < NI; j++) {
          if (NT) {
            *(float4 *)b[j] = *(const float4 *)(chunk + 128 * j + 4 * lane);
          } else {
#pragma unroll
            for (int e = 0; e < 4; e++) b[j][e] = chunk[(4 * e + t) * BN + 8 * j + g];
          }
        }
#pragma unroll
        for (int s = 0; s < 4; s += 2) {
          float fa[2][2], fb[NI][2];
#pragma unroll
          for (int h = 0; h < 2; h++) fa[h][0] = a[h][s], fa[h][1] = a[h][s + 1];
#pragma unroll
          for (int j = 0; j < NI; j++) fb[j][0] = b[j][s], fb[j][1] = b[j][s + 1];
          sums.template add<IMAGES>(fa, fb);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int o = 0; o < 2; o++) sums.leave(o, mine + (8 * o + g) * BN, t);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      if (at(i) < 0) continue;
      float sum = 0;
#pragma unroll
      for (int w = 0; w < WARPS; w++) sum += shared[w * OWN + threadIdx.x + i * THREADS];
      p.c[at(i)] = epilogue<EPILOGUE>(IMAGES ? sum * (1 / 255.f) : sum, old[i], 0);
    }
  }
};

// Update is a weight gradient, a sum over the batch, and with ADD the step that it makes. A
// tile is 64×96, 117 for 784×784, of which a warp has 32×24; 64 of k come at once.
template <bool THREE, bool ADD, bool IMAGES, bool VECTOR_A, bool VECTOR>
struct Update {
  static constexpr int M = 64, N = 96, K = 64;
  static constexpr int A = M + 8, B = N + 8, C = N + 4;  // lines in shared memory; the banks of two k are 8 apart
  static constexpr int FLOATS = K * A + K * B, QUADS = M * N / 4 / THREADS;
  static_assert(M * C <= FLOATS && M / 32 * (N / BN) == WARPS, "the sums fit, the warps tile the tile");
  static int64_t tiles(const Args &p) { return tiles_of(p, M, N); }

  const Args &p;
  float *stage;
  int m0, n0;
  float4 result[QUADS] = {};

  __device__ Update(const Args &args, int tile, float *shared) : p(args), stage(shared) {
    int tiles_n = (p.n + N - 1) / N;
    m0 = tile / tiles_n * M, n0 = tile % tiles_n * N;
  }

  // A thread finishes six quads: of every 32nd row, and of its columns every 32nd.
  __device__ int row(int i) const { return threadIdx.x / 8 + i / 3 * 32; }
  __device__ int column(int i) const { return threadIdx.x % 8 * 4 + i % 3 * 32; }
  __device__ float *place(int i) const { return p.c + int64_t(m0 + row(0)) * p.n + n0 + column(0) + i / 3 * int64_t(32) * p.n + i % 3 * 32; }
  __device__ int left(int i) const { return m0 + row(i) < p.m ? p.n - n0 - column(i) : 0; }

  __device__ void copy_a(int k0) {
#pragma unroll
    for (int i = 0; i < K * M / 4 / THREADS; i++) {
      int e = threadIdx.x + i * THREADS, k = e / (M / 4), m = e % (M / 4) * 4, left = k0 + k < p.k ? p.m - m0 - m : 0;
      float *to = stage + k * A + m;
      if (IMAGES) {
        const uint8_t *image = (const uint8_t *)p.a + m0 + m;
        unsigned v = left > 0 ? pixels(image + int64_t(p.order[k0 + k]) * p.m, left, VECTOR_A) : 0;
        *(float4 *)to = make_float4(pixel(v, 0), pixel(v, 1), pixel(v, 2), pixel(v, 3));
      } else {
        copy_quad<VECTOR_A>(unsigned(__cvta_generic_to_shared(to)), p.a + int64_t(k0 + k) * p.m + m0 + m, left);
      }
    }
  }

  __device__ void copy_b(int k0) {
#pragma unroll
    for (int i = 0; i < K * N / 4 / THREADS; i++) {
      int e = threadIdx.x + i * THREADS, k = e / (N / 4), n = e % (N / 4) * 4;
      copy_quad<VECTOR>(unsigned(__cvta_generic_to_shared(stage + K * A + k * B + n)), p.b + int64_t(k0 + k) * p.n + n0 + n,
                        k0 + k < p.k ? p.n - n0 - n : 0);
    }
  }

  __device__ void read_old() {
#pragma unroll
    for (int i = 0; i < QUADS; i++) result[i] = quad<VECTOR>(place(i), left(i));
  }

  // multiply adds the products; the first K of k have been sent for.
  __device__ void multiply() {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int wm = warp / (N / BN) * 32, wn = warp % (N / BN) * BN;
    float alpha = (ADD ? p.alpha : 1) * (IMAGES ? 1 / 255.f : 1);
    for (int k0 = 0; k0 == 0 || k0 < p.k; k0 += K) {
      if (k0) {
        __syncthreads();
        copy_a(k0), copy_b(k0);
      }
      copies_commit();
      copies_wait<0>();
      __syncthreads();
      const float *a = stage + t * A + wm + 4 * g, *b = stage + K * A + t * B + wn + g;
      Sums<THREE, 2> sums;
#pragma unroll(THREE ? 2 : 8)
      for (int k = 0; k < K; k += 8) {
        // Of 32 rows a lane reads four in a line: row 4g + o is row g of eight o.
        float fa[4][2], fb[NI][2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float4 v = *(const float4 *)(a + (k + 4 * e) * A);
          fa[0][e] = v.x, fa[1][e] = v.y, fa[2][e] = v.z, fa[3][e] = v.w;
#pragma unroll
          for (int j = 0; j < NI; j++) fb[j][e] = b[(k + 4 * e) * B + 8 * j];
        }
        sums.template add<IMAGES>(fa, fb);
      }
      // The sums go through the stage, to be added as they are stored.
      __syncthreads();
#pragma unroll
      for (int o = 0; o < 4; o++) sums.leave(o, stage + (wm + 4 * g + o) * C + wn, t);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < QUADS; i++) {
        float4 v = *(const float4 *)(stage + row(i) * C + column(i)), &r = result[i];
        r = make_float4(r.x + alpha * v.x, r.y + alpha * v.y, r.z + alpha * v.z, r.w + alpha * v.w);
      }
    }
#pragma unroll
    for (int i = 0; i < QUADS; i++) store_quad<VECTOR>(place(i), result[i], left(i));
  }

  static __device__ void run(const Args &p, int block, float *shared) {
    Update u(p, block, shared);
    if (p.early_a) u.copy_a(0);
    if (p.early_b) u.copy_b(0);
    if (ADD && p.early_c) u.read_old();
    follow();
    if (!p.early_a) u.copy_a(0);
    if (!p.early_b) u.copy_b(0);
    if (ADD && !p.early_c) u.read_old();
    u.multiply();
  }
};

template <bool THREE>
int layer(uintptr_t stream, int form, int epilogue, const Args &p) {
  bool vector = p.vector_a && p.vector_b;
  switch (form * 4 + epilogue) {
#define LAYER(FORM, EPILOGUE, IMAGES)                                                         \
  (vector ? launch<Layer<KERNELS_##FORM, KERNELS_##EPILOGUE, THREE, IMAGES, true>>(stream, p) \
          : launch<Layer<KERNELS_##FORM, KERNELS_##EPILOGUE, THREE, IMAGES, false>>(stream, p))
    case KERNELS_NN * 4 + KERNELS_STORE: return p.order ? LAYER(NN, STORE, true) : LAYER(NN, STORE, false);
    case KERNELS_NN * 4 + KERNELS_RELU: return p.order ? LAYER(NN, RELU, true) : LAYER(NN, RELU, false);
    case KERNELS_NT * 4 + KERNELS_STORE: return LAYER(NT, STORE, false);
    case KERNELS_NT * 4 + KERNELS_MASK: return LAYER(NT, MASK, false);
#undef LAYER
  }
  return cudaErrorInvalidValue;
}

template <bool THREE, bool ADD>
int update(uintptr_t stream, const Args &p) {
  bool vector = p.vector_b && p.vector_c;
  if (p.order) {
    if (p.vector_a && vector) return launch<Update<THREE, ADD, true, true, true>>(stream, p);
    return launch<Update<THREE, ADD, true, false, false>>(stream, p);
  }
  if (p.vector_a && vector) return launch<Update<THREE, ADD, false, true, true>>(stream, p);
  return launch<Update<THREE, ADD, false, false, false>>(stream, p);
}

// pair launches p, a gradient through a layer or the first layer's update, beside an
// update q.
template <bool THREE, bool VECTOR>
int pair(uintptr_t stream, int form, const Args &p, const Args &q) {
  using Q = Update<THREE, true, false, VECTOR, VECTOR>;
  using Head = Update<THREE, true, false, VECTOR, false>;  // ten columns
  bool head = !(q.vector_b && q.vector_c);
  if (form == KERNELS_NT) {
    using P = Layer<KERNELS_NT, KERNELS_MASK, THREE, false, VECTOR>;
    return head ? launch<P, Head>(stream, p, q) : launch<P, Q>(stream, p, q);
  }
  using P = Update<THREE, true, true, VECTOR, VECTOR>;
  return head ? launch<P, Head>(stream, p, q) : launch<P, Q>(stream, p, q);
}

}  // namespace

bool matmul_is_few(int form, int epilogue, const Args &p) {
  // Of images these are the only products; how many rows are few was measured.
  if (p.order) return true;
  int64_t room = 2 * device().sms;
  if (form == KERNELS_TN) return epilogue == KERNELS_ADD && p.k <= 128 && tiles_of(p, 64, 96) <= room;
  return p.n > 16 && p.k > 32 && p.k <= 1024 && tiles_of(p, 16, BN) <= room;
}

int matmul_few(uintptr_t stream, int form, int epilogue, bool three, const Args &p) {
  if (form != KERNELS_TN)
    return three ? layer<true>(stream, form, epilogue, p) : layer<false>(stream, form, epilogue, p);
  if (epilogue == KERNELS_ADD) return three ? update<true, true>(stream, p) : update<false, true>(stream, p);
  return three ? update<true, false>(stream, p) : update<false, false>(stream, p);
}

int matmul_few_pair(uintptr_t stream, int form, int epilogue, bool three, const Args &p, const Args &q) {
  bool backward = form == KERNELS_NT && epilogue == KERNELS_MASK, first = form == KERNELS_TN && epilogue == KERNELS_ADD && p.order;
  bool vector = p.vector_a && p.vector_b && (backward || p.vector_c);
  if (!backward && !first) return cudaErrorNotSupported;
  if (vector && q.vector_a) return three ? pair<true, true>(stream, form, p, q) : pair<false, true>(stream, form, p, q);
  auto scalar = [](Args a) { a.vector_a = a.vector_b = a.vector_c = false; return a; };
  return three ? pair<true, false>(stream, form, scalar(p), scalar(q)) : pair<false, false>(stream, form, scalar(p), scalar(q));
}
