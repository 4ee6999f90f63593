// Products with the few rows of a small batch on the CUDA cores, where latency is all
// (matmul_few.cu: on the tensor cores): a layer, and the weight gradient of one.
#include <type_traits>

#include "few.cuh"
#include "tensor.cuh"

using namespace matmuls;

namespace {

constexpr int WARPS = 8;

struct Block {
  static constexpr int THREADS = 32 * WARPS, BLOCKS = 2, CLUSTER = 1;
  static constexpr bool ALONE = false;  // among its kind on a multiprocessor
  using Params = Args;
  static int prepare(Params &p, const Args &args) { return p = args, cudaSuccess; }
};

// pinned keeps a place in shared memory in a register: the compiler would rather make
// it again at every use, from the thread's number, which takes longer than the use.
__device__ unsigned pinned(unsigned place) {
  asm volatile("" : "+r"(place));
  return place;
}

__device__ unsigned pinned(const float *shared) { return pinned(unsigned(__cvta_generic_to_shared(shared))); }

// store_pixels converts four bytes, exactly.
__device__ void store_pixels(float *to, unsigned four) {
  *(float4 *)to = make_float4(pixel(four, 0), pixel(four, 1), pixel(four, 2), pixel(four, 3));
}

// scaled turns a sum over bytes into one over pixels.
template <bool IMAGES>
__device__ float scaled(float sum) {
  return IMAGES ? sum * (1 / 255.f) : sum;
}

// A product of a batch with weights, NN or NT. What it waits for is what the kernel
// before it has just made; all else is old, and is read while that kernel still runs
// (see follow). So a tile is low, 16 rows by 24 columns, 132 tiles for 64×784: little
// to wait for, the same for each multiprocessor, and room for the next kernel's
// blocks beside these.
//
// TURN of k are copied at a time, STAGES turns at once, and dealt to the warps, 16
// each, and in the warp to two groups of lanes, four at a time. A lane keeps 4×6 sums.
// The 16 groups' sums are added through shared memory at the end, in order.
template <int FORM, int EPILOGUE, bool IMAGES, bool VECTOR>
struct Layer : Block {
  static constexpr bool ALONE = IMAGES;  // see matmul_few.cu
  static constexpr bool NT = FORM == KERNELS_NT;
  static constexpr int BM = 16, BN = 24, CHUNK = 16, TURN = CHUNK * WARPS, STAGES = 5;
  static constexpr int TM = 4, TN = 6, LANES_M = BM / TM, GROUPS = 2;
  // Where k is contiguous a tile has lines of LINE: two lines on, lanes of a group
  // read eight banks further, and the next group reads the four between. Else it has
  // lines of columns, k = 4q + e of a chunk in line 4e + q, which spreads the groups.
  static constexpr int LINE = TURN + 4, A = BM * LINE, B = NT ? BN * LINE : TURN * BN, STAGE = A + B;
  static constexpr int PARTS = WARPS * GROUPS, PART = BM * BN + 8;  // eight banks apart
  static constexpr int FLOATS = STAGES * STAGE;
  static_assert(PARTS * PART <= STAGES * STAGE, "the sums fit where the stages were");
  static_assert(BM * BN / 2 <= THREADS && BM % WARPS == 0 && BN % WARPS == 0, "threads");
  static int64_t tiles(const Args &p) { return tiles_of(p, BM, BN); }
  static __device__ void run(const Args &p, int block, float *shared);
};

template <int FORM, int EPILOGUE, bool IMAGES, bool VECTOR>
__device__ void Layer<FORM, EPILOGUE, IMAGES, VECTOR>::run(const Args &p, int block, float *shared) {
  unsigned stages = pinned(shared);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int tiles_n = (p.n + BN - 1) / BN, m0 = block / tiles_n * BM, n0 = block % tiles_n * BN;
  int steps = (p.k + TURN - 1) / TURN;

  // Of the batch a warp copies whole lines, a lane a quad of each. Images are read a
  // turn ahead.
  constexpr int LINES = BM / WARPS;
  using Element = typename std::conditional<IMAGES, uint8_t, float>::type;
  const Element *line[LINES];
  unsigned ahead[LINES];
  int a_left = p.k - 4 * lane;
  auto read_ahead = [&] {
#pragma unroll
    for (int i = 0; i < LINES; i++) {
      ahead[i] = pixels((const uint8_t *)line[i], m0 + warp + i * WARPS < p.m ? a_left : 0, VECTOR);
      line[i] += TURN;
    }
    a_left -= TURN;
  };
  auto find_batch = [&] {
#pragma unroll
    for (int i = 0; i < LINES; i++) {
      int m = m0 + warp + i * WARPS;
      line[i] = (const Element *)p.a + int64_t(IMAGES && m < p.m ? p.order[m] : m) * p.k + 4 * lane;
    }
    if (IMAGES) read_ahead();
  };
  auto copy_batch = [&](unsigned slot) {
    unsigned to = slot + warp * LINE + 4 * lane;
    if (IMAGES) {
#pragma unroll
      for (int i = 0; i < LINES; i++) store_pixels(shared + to + i * WARPS * LINE, ahead[i]);
      read_ahead();
    } else {
#pragma unroll
      for (int i = 0; i < LINES; i++) {
        copy_quad<VECTOR>(stages + 4 * (to + i * WARPS * LINE), (const float *)line[i], m0 + warp + i * WARPS < p.m ? a_left : 0);
        line[i] += TURN;
      }
      a_left -= TURN;
    }
  };
  // The weights that a thread copies: NT, the same of their lines; NN, a quad of
  // columns of every 32nd line, for six warps.
  constexpr int EACH = NT ? BN / WARPS : TURN / 32;
  int r = threadIdx.x / (BN / 4), q = threadIdx.x % (BN / 4);
  int b_left = NT ? p.k - 4 * lane : p.n - n0 - 4 * q, b_lines = NT ? p.n - n0 - warp : p.k - r;
  const float *b = p.b + (NT ? int64_t(n0 + warp) * p.k + 4 * lane : int64_t(r) * p.n + n0 + 4 * q);
  unsigned b_place = A + (NT ? warp * LINE + 4 * lane : (r / 16 * 16 + r % 4 * 4 + r / 4 % 4) * BN + 4 * q);
  auto copy_weights = [&](unsigned slot) {
    if (NT || r < 32) {
#pragma unroll
      for (int i = 0; i < EACH; i++)
        copy_quad<VECTOR>(stages + 4 * (slot + b_place + i * (NT ? WARPS * LINE : 32 * BN)),
                          b + int64_t(i) * (NT ? WARPS * p.k : 32 * p.n), i * (NT ? WARPS : 32) < b_lines ? b_left : 0);
    }
    if (NT) b += TURN, b_left -= TURN;
    else b += int64_t(TURN) * p.n, b_lines -= TURN;
  };
  // The two elements in a line that a thread finishes.
  int y = m0 + threadIdx.x / (BN / 2), x = n0 + threadIdx.x % (BN / 2) * 2;
  bool mine = threadIdx.x < BM * BN / 2 && y < p.m;
  int64_t at = int64_t(y) * p.n + x;
  float old[2] = {};

  // First what is early, then the rest: one code, as it is run but once.
#pragma unroll 1
  for (int late = 0; late < 2; late++) {
    if (late) follow();
    if (p.early_a != late) find_batch();
#pragma unroll 1
    for (int s = 0; s < STAGES; s++) {
      if (s < steps && p.early_a != late) copy_batch(s * STAGE);
      if (s < steps && p.early_b != late) copy_weights(s * STAGE);
      if (late) copies_commit();
    }
    if (EPILOGUE == KERNELS_MASK && p.early_c != late)
#pragma unroll
      for (int j = 0; j < 2; j++)
        if (mine && x + j < p.n) old[j] = __ldcg(p.y + at + j);
  }

  // A lane has rows and columns in pairs: 2t, 2t + 1, and again.
  int tm = lane % 2 + lane / 8 % 2 * 2, tn = lane / 2 % 4, group = lane / 16, k0 = CHUNK * warp;
  const float *as = shared + pinned(2 * tm * LINE + k0 + 4 * group);
  const float *bs = shared + pinned(A + (NT ? 2 * tn * LINE + k0 + 4 * group : (k0 + group) * BN + 2 * tn));
  float sum[TM][TN] = {};
  auto multiply = [&](unsigned slot, int u) {
    float a[TM][4];
#pragma unroll
    for (int i = 0; i < TM; i++)
      *(float4 *)a[i] = *(const float4 *)(as + slot + (i / 2 * 2 * LANES_M + i % 2) * LINE + u * 4 * GROUPS);
    if (NT) {
#pragma unroll
      for (int j = 0; j < TN; j++) {
        float4 v = *(const float4 *)(bs + slot + (j / 2 * 8 + j % 2) * LINE + u * 4 * GROUPS);
        float b[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
          for (int i = 0; i < TM; i++) sum[i][j] += a[i][e] * b[e];
      }
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
          float2 b = *(const float2 *)(bs + slot + (4 * e + u * GROUPS) * BN + 4 * j);
#pragma unroll
          for (int i = 0; i < TM; i++) sum[i][j] += a[i][e] * b.x, sum[i][j + 1] += a[i][e] * b.y;
        }
    }
  };
  unsigned slot = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    if (step == 0) copies_wait<STAGES - 1>();
    else copies_wait<STAGES - 2>();
    __syncthreads();  // this turn has come for all, and the one before is read
    if (step > 0) {
      unsigned free = slot == 0 ? (STAGES - 1) * STAGE : slot - STAGE;
      if (step - 1 + STAGES < steps) copy_batch(free), copy_weights(free);
      copies_commit();  // empty past the end, to keep the count
    }
    if (step * TURN + k0 < p.k)
#pragma unroll
      for (int u = 0; u < 4 / GROUPS; u++) multiply(slot, u);
    slot = slot == (STAGES - 1) * STAGE ? 0 : slot + STAGE;
  }

  copies_wait<0>();
  __syncthreads();
  float *part = shared + (warp * GROUPS + group) * PART + 2 * tm * BN + 2 * tn;
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j += 2)
      *(float2 *)(part + (i / 2 * 2 * LANES_M + i % 2) * BN + 4 * j) = make_float2(sum[i][j], sum[i][j + 1]);
  __syncthreads();
  if (!mine) return;
  float2 s = {};
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    float2 v = *(const float2 *)(shared + i * PART + 2 * threadIdx.x);
    s.x += v.x, s.y += v.y;
  }
  float first = epilogue<EPILOGUE>(scaled<IMAGES>(s.x), old[0], 0), second = epilogue<EPILOGUE>(scaled<IMAGES>(s.y), old[1], 0);
  if (VECTOR) {
    if (x < p.n) *(float2 *)(p.c + at) = make_float2(first, second);
  } else {
    if (x < p.n) p.c[at] = first;
    if (x + 1 < p.n) p.c[at + 1] = second;
  }
}

// The weight gradient of a batch of at most MOST, and the step that it makes. 784×784
// are 130 tiles of 64×80. Two slices of four warps take every other k; a thread keeps
// 8×5 sums, and finishes half of its and its partner's in the other slice.
constexpr int MOST = 128;

template <bool ADD, bool IMAGES, bool VECTOR>
struct Update : Block {
  static constexpr int BM = 64, BN = 80, SLICE = THREADS / 2, UNROLL = 8;
  static constexpr int FLOATS = MOST * (BM + BN);
  static int64_t tiles(const Args &p) { return tiles_of(p, BM, BN); }
  static __device__ void run(const Args &p, int block, float *shared);
};

template <bool ADD, bool IMAGES, bool VECTOR>
__device__ void Update<ADD, IMAGES, VECTOR>::run(const Args &p, int block, float *shared) {
  float *shared_b = shared + MOST * BM;
  unsigned to_a = pinned(shared), to_b = pinned(shared_b);
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

// Narrow is the update of a head, of at most 16 columns. A thread has eight of them, of
// one row.
struct Narrow : Block {
  static constexpr int BM = THREADS / 2, BN = 16, FLOATS = MOST * BN, UNROLL = 8;
  static int64_t tiles(const Args &p) { return tiles_of(p, BM, BN); }

  static __device__ void run(const Args &p, int block, float *shared) {
    int m = block * BM + threadIdx.x / 2, n = threadIdx.x % 2 * 8;
    const float *a = p.a + min(m, p.m - 1);
    follow();
    for (int e = threadIdx.x; e < (p.k + UNROLL - 1) / UNROLL * UNROLL * BN; e += THREADS)
      shared[e] = e / BN < p.k && e % BN < p.n ? __ldcg(p.b + int64_t(e / BN) * p.n + e % BN) : 0;
    __syncthreads();
    float sum[8] = {};
    for (int k0 = 0; k0 < p.k; k0 += UNROLL) {
      float v[UNROLL];
#pragma unroll
      for (int k = 0; k < UNROLL; k++) v[k] = __ldcg(a + int64_t(min(k0 + k, p.k - 1)) * p.m);
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

template <int FORM, int EPILOGUE>
int layer(uintptr_t stream, bool vector, const Args &p) {
  if constexpr (FORM == KERNELS_NN) {
    if (p.order)
      return vector ? launch<Layer<FORM, EPILOGUE, true, true>>(stream, p) : launch<Layer<FORM, EPILOGUE, true, false>>(stream, p);
  }
  return vector ? launch<Layer<FORM, EPILOGUE, false, true>>(stream, p) : launch<Layer<FORM, EPILOGUE, false, false>>(stream, p);
}

template <bool ADD>
int update(uintptr_t stream, bool vector, const Args &p) {
  if (p.order) return vector ? launch<Update<ADD, true, true>>(stream, p) : launch<Update<ADD, true, false>>(stream, p);
  return vector ? launch<Update<ADD, false, true>>(stream, p) : launch<Update<ADD, false, false>>(stream, p);
}

bool whole_quads(const Args &p) { return p.vector_a && p.vector_b && p.vector_c; }

}  // namespace

bool matmul_is_few_ffma(int form, int epilogue, const Args &p) {
  using L = Layer<KERNELS_NN, KERNELS_STORE, false, true>;
  using U = Update<true, false, true>;
  // Layers of ten classes have a tile of their own.
  if (!p.order && form != KERNELS_NT && p.n <= 16) return false;
  if (form == KERNELS_TN) return p.k <= MOST && 4 * U::FLOATS <= device().shared && U::tiles(p) <= INT32_MAX;
  // Measured: more tiles, or single floats, are done sooner by matmul.
  return L::tiles(p) <= (whole_quads(p) ? 3 * device().sms : device().sms / 2) && 4 * L::FLOATS <= device().shared;
}

int matmul_few_ffma(uintptr_t stream, int form, int epilogue, const Args &p) {
  bool vector = whole_quads(p);
  switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return layer<KERNELS_NN, KERNELS_STORE>(stream, vector, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return layer<KERNELS_NN, KERNELS_RELU>(stream, vector, p);
    case KERNELS_NT * 4 + KERNELS_STORE: return layer<KERNELS_NT, KERNELS_STORE>(stream, vector, p);
    case KERNELS_NT * 4 + KERNELS_MASK: return layer<KERNELS_NT, KERNELS_MASK>(stream, vector, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return update<false>(stream, vector, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return update<true>(stream, vector, p);
  }
  return cudaErrorInvalidValue;
}

bool matmul_is_few_ffma_update(const Args &p) {
  using U = Update<true, false, true>;
  return p.k <= MOST && 4 * U::FLOATS <= device().shared && U::tiles(p) <= INT32_MAX;
}

int matmul_few_ffma_updates(uintptr_t stream, const Args *p, int count) {
  using Quads = Update<true, false, true>;
  using Singles = Update<true, false, false>;
  using Images = Update<true, true, true>;
  using SingleImages = Update<true, true, false>;
  for (int i = 0, n; i < count; i += n) {
    List<Args> list;
    n = std::min(count - i, list.MOST);
    for (int j = 0; j < n; j++) {
      const Args &a = p[i + j];
      int code = a.n <= Narrow::BN && !a.order ? add<Narrow>(list, j, 0, a)
                 : whole_quads(a)              ? a.order ? add<Images>(list, j, 1, a) : add<Quads>(list, j, 2, a)
                 : a.order                     ? add<SingleImages>(list, j, 3, a)
                                               : add<Singles>(list, j, 4, a);
      if (code) return code;
    }
    if (int code = launch<Narrow, Images, Quads, SingleImages, Singles>(stream, list, n)) return code;
  }
  return cudaSuccess;
}
