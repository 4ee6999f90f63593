// Matrix products in float32 on the CUDA cores (matmul_tensor.cu: on the tensor
// cores), in the three forms that
// training a layer y = x·w needs, each with what follows it as an epilogue:
//
//   NN  y[m,n]  = x[m,k]·w[k,n]         forward, with ReLU
//   NT  dx[m,n] = dy[m,k]·w[n,k]ᵀ       backward, masked by the ReLU before
//   TN  w[m,n] += alpha·x[k,m]ᵀ·dy[k,n]  weight gradient and SGD update
//
// In NN and TN, x may be images: bytes, picked by p.order, each standing for a 255th.
//
// A block makes a tile of the result. What lies past the end of m, n or k is copied
// as zeros. All additions happen in an order that depends on the shape and the GPU
// alone: equal calls give equal bits. Three kernels do it:
//
//   layer   a batch of few rows times weights, where latency is all;
//   update  the weight gradient of such a batch;
//   matmul  everything else.
#include <type_traits>

#include "tensor.cuh"

using namespace matmuls;

namespace {

// What layer and update have in common.
constexpr int WARPS = 8, THREADS = 32 * WARPS;

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
template <int FORM>
struct Layer {
  static constexpr bool NT = FORM == KERNELS_NT;
  static constexpr int BM = 16, BN = 24, CHUNK = 16, TURN = CHUNK * WARPS, STAGES = 5;
  static constexpr int TM = 4, TN = 6, LANES_M = BM / TM, GROUPS = 2;
  // Where k is contiguous a tile has lines of LINE: two lines on, lanes of a group
  // read eight banks further, and the next group reads the four between. Else it has
  // lines of columns, k = 4q + e of a chunk in line 4e + q, which spreads the groups.
  static constexpr int LINE = TURN + 4, A = BM * LINE, B = NT ? BN * LINE : TURN * BN, STAGE = A + B;
  static constexpr int PARTS = WARPS * GROUPS, PART = BM * BN + 8;  // eight banks apart
  static constexpr int BYTES = 4 * STAGES * STAGE;
  static_assert(PARTS * PART <= STAGES * STAGE, "the sums fit where the stages were");
  static_assert(BM * BN / 2 <= THREADS && BM % WARPS == 0 && BN % WARPS == 0, "threads");
  static int64_t tiles(const Args &p) { return (int64_t(p.m) + BM - 1) / BM * ((int64_t(p.n) + BN - 1) / BN); }
};

template <int FORM, int EPILOGUE, bool IMAGES, bool VECTOR>
__global__ void __launch_bounds__(THREADS, 2) layer(const Args p) {
  using L = Layer<FORM>;
  constexpr bool NT = L::NT;
  constexpr int BM = L::BM, BN = L::BN, TM = L::TM, TN = L::TN, LINE = L::LINE, TURN = L::TURN, STAGE = L::STAGE;
  extern __shared__ __align__(16) float shared[];
  unsigned stages = pinned(shared);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int tiles_n = (p.n + BN - 1) / BN, m0 = blockIdx.x / tiles_n * BM, n0 = blockIdx.x % tiles_n * BN;
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
  unsigned b_place = L::A + (NT ? warp * LINE + 4 * lane : (r / 16 * 16 + r % 4 * 4 + r / 4 % 4) * BN + 4 * q);
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
    for (int s = 0; s < L::STAGES; s++) {
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
  int tm = lane % 2 + lane / 8 % 2 * 2, tn = lane / 2 % 4, group = lane / 16, k0 = L::CHUNK * warp;
  const float *as = shared + pinned(2 * tm * LINE + k0 + 4 * group);
  const float *bs = shared + pinned(L::A + (NT ? 2 * tn * LINE + k0 + 4 * group : (k0 + group) * BN + 2 * tn));
  float sum[TM][TN] = {};
  auto multiply = [&](unsigned slot, int u) {
    float a[TM][4];
#pragma unroll
    for (int i = 0; i < TM; i++)
      *(float4 *)a[i] = *(const float4 *)(as + slot + (i / 2 * 2 * L::LANES_M + i % 2) * LINE + u * 4 * L::GROUPS);
    if (NT) {
#pragma unroll
      for (int j = 0; j < TN; j++) {
        float4 v = *(const float4 *)(bs + slot + (j / 2 * 8 + j % 2) * LINE + u * 4 * L::GROUPS);
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
          float2 b = *(const float2 *)(bs + slot + (4 * e + u * L::GROUPS) * BN + 4 * j);
#pragma unroll
          for (int i = 0; i < TM; i++) sum[i][j] += a[i][e] * b.x, sum[i][j + 1] += a[i][e] * b.y;
        }
    }
  };
  unsigned slot = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    if (step == 0) copies_wait<L::STAGES - 1>();
    else copies_wait<L::STAGES - 2>();
    __syncthreads();  // this turn has come for all, and the one before is read
    if (step > 0) {
      unsigned free = slot == 0 ? (L::STAGES - 1) * STAGE : slot - STAGE;
      if (step - 1 + L::STAGES < steps) copy_batch(free), copy_weights(free);
      copies_commit();  // empty past the end, to keep the count
    }
    if (step * TURN + k0 < p.k)
#pragma unroll
      for (int u = 0; u < 4 / L::GROUPS; u++) multiply(slot, u);
    slot = slot == (L::STAGES - 1) * STAGE ? 0 : slot + STAGE;
  }

  copies_wait<0>();
  __syncthreads();
  float *part = shared + (warp * L::GROUPS + group) * L::PART + 2 * tm * BN + 2 * tn;
#pragma unroll
  for (int i = 0; i < TM; i++)
#pragma unroll
    for (int j = 0; j < TN; j += 2)
      *(float2 *)(part + (i / 2 * 2 * L::LANES_M + i % 2) * BN + 4 * j) = make_float2(sum[i][j], sum[i][j + 1]);
  __syncthreads();
  if (!mine) return;
  float2 s = {};
#pragma unroll
  for (int i = 0; i < L::PARTS; i++) {
    float2 v = *(const float2 *)(shared + i * L::PART + 2 * threadIdx.x);
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
struct Update {
  static constexpr int MOST = 128, BM = 64, BN = 80, SLICE = THREADS / 2, UNROLL = 8;
  static constexpr int BYTES = 4 * MOST * (BM + BN);
  static int64_t tiles(const Args &p) { return (int64_t(p.m) + BM - 1) / BM * ((int64_t(p.n) + BN - 1) / BN); }
};

template <int EPILOGUE, bool IMAGES, bool VECTOR>
__global__ void __launch_bounds__(THREADS, 2) update(const Args p) {
  using U = Update;
  constexpr int BM = U::BM, BN = U::BN;
  extern __shared__ __align__(16) float shared[];
  float *shared_b = shared + U::MOST * BM;
  unsigned to_a = pinned(shared), to_b = pinned(shared_b);
  int tiles_n = (p.n + BN - 1) / BN, m0 = blockIdx.x / tiles_n * BM, n0 = blockIdx.x % tiles_n * BN;
  int lines = (p.k + 2 * U::UNROLL - 1) / (2 * U::UNROLL) * (2 * U::UNROLL);

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
    if (EPILOGUE == KERNELS_ADD && p.early_c != late)
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
  for (int k = 0; k < lines; k += 2 * U::UNROLL) {
#pragma unroll
    for (int u = 0; u < 2 * U::UNROLL; u += 2) {
      float4 a0 = *(const float4 *)(as + u * BM), a1 = *(const float4 *)(as + u * BM + 32), v = *(const float4 *)(bs + u * BN);
      float a[8] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w}, b[5] = {v.x, v.y, v.z, v.w, singles[u * BN]};
#pragma unroll
      for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 5; j++) sum[i][j] += a[i] * b[j];
    }
    as += 2 * U::UNROLL * BM, bs += 2 * U::UNROLL * BN, singles += 2 * U::UNROLL * BN;
  }

  // The half that the partner finishes goes, the other comes.
  __syncthreads();
  float4 *sent = (float4 *)shared + threadIdx.x, *came = (float4 *)shared + (threadIdx.x ^ U::SLICE);
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
      result[row][column] = epilogue<EPILOGUE>(scaled<IMAGES>(s), old[row][column], p.alpha);
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

// From here on: matmul. Tiles of both operands pass through shared memory, STAGES
// deep; a thread keeps TM×TN sums in registers, so that a value read from shared
// memory is used TM or TN times. Two things fill a GPU that has more multiprocessors
// than the result has tiles:
//
//   SLICES groups of threads inside a block share its tile, each taking every
//   SLICES-th k, and are added through shared memory at the end;
//   a cluster of up to 8 blocks (compute capability 9) shares a tile, each block
//   taking a part of k, and is added through distributed shared memory.

constexpr int BK = 32;  // k per stage

// In shared memory a tile of an operand, X rows (of m or n) by BK, always lies
// with its rows contiguous, [BK][STRIDE]: what a thread needs for one k it then
// reads 16 bytes at a time. K: in global memory k is contiguous, and the copy
// turns the tile. The stride lets eight k by four rows, which a warp copies at
// once in whole sectors, fall into 32 different banks.
template <bool K_, int X_>
struct Tile {
  static constexpr bool K = K_;
  static constexpr int X = X_, STRIDE = K ? X + 4 : X, SIZE = BK * STRIDE;
  static_assert(!K || STRIDE % 32 == 4, "banks");
};

// A Source copies the tiles of one operand, stage by stage. A thread copies W
// floats at places that depend on the stage only by a constant. Bytes of images come
// by registers: settle stores those of the last next, as late as the caller can.
template <typename T, int W, int THREADS, bool IMAGES>
struct Source {
  // THREADS as KS k by XS places along the rows.
  static constexpr int KS = T::K ? 8 : THREADS / (T::X / W), XS = THREADS / KS;
  static constexpr int PLACES_X = T::K ? T::X / XS : 1, PLACES = PLACES_X * ((BK + KS - 1) / KS);
  static_assert(T::K ? W == 1 && T::X % XS == 0 : XS * W == T::X && KS * XS == THREADS, "the threads tile the tile");
  static_assert(!IMAGES || (W == 1 && BK % KS == 0), "bytes are read one by one");

  const float *from;
  const uint8_t *images;
  const int32_t *order;
  int width;   // of a line in global memory
  int k, x;    // the thread's first place in the tile
  int x_left;  // rows from the tile's first on
  float *tile;
  uint8_t bytes[IMAGES ? PLACES : 1];

  __device__ Source(const Args &p, const float *operand, int width_, int x0, int x_end, int k0) : width(width_), x_left(x_end - x0) {
    k = T::K ? threadIdx.x % KS : threadIdx.x / XS;
    x = T::K ? threadIdx.x / KS : threadIdx.x % XS * W;
    if (IMAGES) {
      images = (const uint8_t *)operand + (T::K ? k0 + k : x0 + x);
      order = p.order + (T::K ? x0 + x : k0 + k);
    } else {
      from = operand + (T::K ? int64_t(x0 + x) * width + k0 + k : int64_t(k0 + k) * width + x0 + x);
    }
  }

  // next copies the tile of the next BK of k, of which k_left are valid.
  __device__ void next(float *to, int k_left) {
    tile = to;
#pragma unroll
    for (int i = 0; i < PLACES; i++) {
      int dx = i % PLACES_X * XS, dk = i / PLACES_X * KS;
      bool valid = k + dk < k_left && x + dx < x_left;
      if (IMAGES)
        bytes[i] = valid ? images[int64_t(order[T::K ? dx : dk]) * width + (T::K ? dk : dx)] : 0;
      else if (BK % KS == 0 || k + dk < BK)
        copy<W>(tile + (k + dk) * T::STRIDE + x + dx, from + (T::K ? int64_t(dx) * width + dk : int64_t(dk) * width), valid);
    }
    if (!IMAGES) from += T::K ? BK : int64_t(BK) * width;
    else if (T::K) images += BK;
    else order += BK;
  }

  __device__ void settle() {
    if (IMAGES)
#pragma unroll
      for (int i = 0; i < PLACES; i++) tile[(k + i / PLACES_X * KS) * T::STRIDE + x + i % PLACES_X * XS] = bytes[i];
  }
};

// row is the i-th row of a tile that thread t of THREADS owns: four rows in a
// line, and again four.
template <int THREADS>
__device__ int row(int t, int i) {
  return i / 4 * (4 * THREADS) + t * 4 + i % 4;
}

// fragment reads a thread's rows for one k.
template <int ROWS, int THREADS>
__device__ void fragment(float (&f)[ROWS], const float *line, int t) {
#pragma unroll
  for (int i = 0; i < ROWS; i += 4) {
    float4 v = *(const float4 *)(line + row<THREADS>(t, i));
    f[i] = v.x, f[i + 1] = v.y, f[i + 2] = v.z, f[i + 3] = v.w;
  }
}

template <int BM_, int BN_, int TM_, int TN_, int SLICES_, int STAGES_, int MIN_BLOCKS_>
struct Config {
  static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, SLICES = SLICES_, STAGES = STAGES_;
  static constexpr int MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr int TY = BM / TM, TX = BN / TN, THREADS = TY * TX * SLICES;
  static constexpr int PART = BM * BN;  // a slice's sums, where the stages were
  static_assert(BK % SLICES == 0, "slices take turns at k");
};

// shared_floats is what a block takes for its stages, and after them its sums.
template <int FORM, typename C>
__host__ __device__ constexpr int shared_floats() {
  int stages = C::STAGES * (Tile<FORM != KERNELS_TN, C::BM>::SIZE + Tile<FORM == KERNELS_NT, C::BN>::SIZE);
  int parts = C::SLICES * C::PART;
  return stages > parts ? stages : parts;
}

// multiply adds the products of one k.
template <typename C>
__device__ void multiply(float (&sum)[C::TM][C::TN], const float *as, const float *bs, int ty, int tx) {
  float a[C::TM], b[C::TN];
  fragment<C::TM, C::TY>(a, as, ty);
  fragment<C::TN, C::TX>(b, bs, tx);
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j++) sum[i][j] += a[i] * b[j];
}

// W: the floats of one copy of an operand whose rows are contiguous, 4 if its
// lines are whole quads on 16-byte boundaries, else 1.
template <int FORM, int EPILOGUE, bool IMAGES, int W, typename C>
__global__ void __launch_bounds__(C::THREADS, C::MIN_BLOCKS) matmul(const Args p) {
  constexpr bool A_K = FORM != KERNELS_TN, B_K = FORM == KERNELS_NT;
  using A = Tile<A_K, C::BM>;
  using B = Tile<B_K, C::BN>;
  constexpr int STAGE = A::SIZE + B::SIZE;
  extern __shared__ __align__(16) float shared[];

  int rank, ranks;
  cluster_arrive(rank, ranks);
  int tiles_n = (p.n + C::BN - 1) / C::BN, tile = blockIdx.x / ranks;
  int m0 = tile / tiles_n * C::BM, n0 = tile % tiles_n * C::BN;
  int k0 = min(p.k, rank * p.k_part), k1 = min(p.k, k0 + p.k_part);
  int steps = (k1 - k0 + BK - 1) / BK;

  int slice = threadIdx.x / (C::TY * C::TX), t = threadIdx.x % (C::TY * C::TX);
  int ty = t / C::TX, tx = t % C::TX;

  Source<A, A_K || IMAGES ? 1 : W, C::THREADS, IMAGES> from_a(p, p.a, A_K ? p.k : p.m, m0, p.m, k0);
  Source<B, B_K ? 1 : W, C::THREADS, false> from_b(p, p.b, B_K ? p.k : p.n, n0, p.n, k0);
  auto fetch = [&](int step, bool a, bool b) {
    float *s = shared + step % C::STAGES * STAGE;
    int left = k1 - k0 - step * BK;
    if (a && left > 0) from_a.next(s, left);
    if (b && left > 0) from_b.next(s + A::SIZE, left);
  };

  // First what is early, then the rest.
#pragma unroll 1
  for (int late = 0; late < 2; late++) {
    if (late) follow();
#pragma unroll 1
    for (int step = 0; step < C::STAGES - 1; step++) {
      fetch(step, p.early_a != late, p.early_b != late);
      if (p.early_a != late && step < steps) from_a.settle();
      if (late) copies_commit();  // empty past the end, to keep the count
    }
  }
  float sum[C::TM][C::TN] = {};
  for (int step = 0; step < steps; step++) {
    copies_wait<C::STAGES - 2>();
    __syncthreads();  // this step has landed for all, and the stage before it is free
    fetch(step + C::STAGES - 1, true, true);
    copies_commit();
    // This slice's k are slice, slice + SLICES, ... A whole stage is straight
    // code, in which reads for the next k hide behind products for this one.
    const float *as = shared + step % C::STAGES * STAGE + slice * A::STRIDE;
    const float *bs = shared + step % C::STAGES * STAGE + A::SIZE + slice * B::STRIDE;
    int count = k1 - k0 - step * BK;
    if (count >= BK) {
#pragma unroll
      for (int k = 0; k < BK; k += C::SLICES) multiply<C>(sum, as + k * A::STRIDE, bs + k * B::STRIDE, ty, tx);
    } else {
#pragma unroll 1
      for (int k = 0; k < count; k += C::SLICES) multiply<C>(sum, as + k * A::STRIDE, bs + k * B::STRIDE, ty, tx);
    }
    if (step + C::STAGES - 1 < steps) from_a.settle();
  }

  // What the epilogue needs is on its way while the sums are added.
  Finish<EPILOGUE, C::BM, C::BN, C::BN, C::PART, C::SLICES, C::THREADS> finish(p, m0, n0, rank, ranks);
  finish.read_old();

  // Every slice leaves its sums in shared memory.
  copies_wait<0>();
  __syncthreads();
  float *part = shared + slice * C::PART;
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j += 4)
      *(float4 *)(part + row<C::TY>(ty, i) * C::BN + row<C::TX>(tx, j)) =
          make_float4(scaled<IMAGES>(sum[i][j]), scaled<IMAGES>(sum[i][j + 1]), scaled<IMAGES>(sum[i][j + 2]),
                      scaled<IMAGES>(sum[i][j + 3]));
  __syncthreads();

  finish.write(shared, (float4 *)(shared + shared_floats<FORM, C>()));
}

// Every thread keeps 8×8 sums, four products for each value it reads: that is as
// many as shared memory can feed. Several slices give small tiles enough threads.
//
// Long is for long sums: four stages, so that a block of a cluster has all of its
// k on the way at once, and registers for two blocks on a multiprocessor.
using Long = Config<64, 64, 8, 8, 4, 4, 2>;
// Narrow is for ten classes: a tile of 64 columns would be products of zeros.
using Narrow = Config<64, 16, 8, 4, 8, 4, 1>;
// Small fits GPUs that give a block no more than 48 KB.
using Small = Config<64, 64, 8, 8, 2, 2, 2>;

template <int FORM, int EPILOGUE, bool IMAGES, int W, typename C>
int launch(uintptr_t stream, Args p) {
  constexpr int BYTES = 4 * shared_floats<FORM, C>(), INBOX = 4 * C::PART;
  auto kernel = matmul<FORM, EPILOGUE, IMAGES, W, C>;
  static const int allowed = done(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       BYTES + (device().major >= 9 ? INBOX : 0)));
  if (allowed != cudaSuccess) return allowed;

  int64_t tiles = (int64_t(p.m) + C::BM - 1) / C::BM * ((int64_t(p.n) + C::BN - 1) / C::BN);
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  // Twice as many blocks to a tile while all find a multiprocessor of their own
  // and keep enough of k each to be worth adding up.
  int ranks = 1;
  if (device().major >= 9)
    while (ranks < MAX_RANKS && tiles * ranks * 2 <= device().sms && p.k >= 64 * ranks * 2) ranks *= 2;
  p.k_part = (p.k + ranks - 1) / ranks;

  Launch l = {unsigned(tiles * ranks), C::THREADS, size_t(BYTES + (ranks > 1 ? INBOX : 0)), unsigned(ranks)};
  // Clusters that came early to a busy device would share multiprocessors among
  // themselves and leave others idle.
  l.early = ranks == 1 || tiles * ranks * 2 <= device().sms;
  return ::launch(stream, l, kernel, p);
}

// launch for layer and update.
int launch(uintptr_t stream, int64_t tiles, int bytes, void (*kernel)(Args), const Args &p) {
  if (int err = done(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))) return err;
  return ::launch(stream, {unsigned(tiles), THREADS, size_t(bytes)}, kernel, p);
}

template <int FORM, int EPILOGUE, bool IMAGES>
int choose(uintptr_t stream, const Args &p) {
  bool vector = p.vector_a && p.vector_b && p.vector_c;
  // Layers of ten classes are Narrow.
  bool narrow = !IMAGES && FORM != KERNELS_NT && p.n <= 16;
  if constexpr (FORM == KERNELS_TN) {
    if (!narrow && p.k <= Update::MOST && Update::BYTES <= device().shared && Update::tiles(p) <= INT32_MAX)
      return launch(stream, Update::tiles(p), Update::BYTES,
                    vector ? update<EPILOGUE, IMAGES, true> : update<EPILOGUE, IMAGES, false>, p);
  } else {
    using L = Layer<FORM>;
    // Measured: more tiles, or single floats, are done sooner by matmul.
    if (!narrow && L::tiles(p) <= (vector ? 3 * device().sms : device().sms / 2) && L::BYTES <= device().shared)
      return launch(stream, L::tiles(p), L::BYTES, vector ? layer<FORM, EPILOGUE, IMAGES, true> : layer<FORM, EPILOGUE, IMAGES, false>, p);
  }
  if (device().shared < 4 * shared_floats<FORM, Long>()) return launch<FORM, EPILOGUE, IMAGES, 1, Small>(stream, p);
  // A is turned in NN and NT, B in NT: those are copied by single floats.
  if constexpr (FORM != KERNELS_NT) {
    bool wide = p.vector_b && (FORM == KERNELS_NN || IMAGES || p.vector_a);
    if constexpr (!IMAGES)
      if (narrow) return wide ? launch<FORM, EPILOGUE, false, 4, Narrow>(stream, p) : launch<FORM, EPILOGUE, false, 1, Narrow>(stream, p);
    if (wide) return launch<FORM, EPILOGUE, IMAGES, 4, Long>(stream, p);
  }
  return launch<FORM, EPILOGUE, IMAGES, 1, Long>(stream, p);
}

}  // namespace

int matmul_ffma(uintptr_t stream, int form, int epilogue, const Args &p) {
  if (p.order) switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return choose<KERNELS_NN, KERNELS_STORE, true>(stream, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return choose<KERNELS_NN, KERNELS_RELU, true>(stream, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return choose<KERNELS_TN, KERNELS_STORE, true>(stream, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return choose<KERNELS_TN, KERNELS_ADD, true>(stream, p);
    default: return cudaErrorInvalidValue;
  }
  switch (form * 4 + epilogue) {
    case KERNELS_NN * 4 + KERNELS_STORE: return choose<KERNELS_NN, KERNELS_STORE, false>(stream, p);
    case KERNELS_NN * 4 + KERNELS_RELU: return choose<KERNELS_NN, KERNELS_RELU, false>(stream, p);
    case KERNELS_NT * 4 + KERNELS_STORE: return choose<KERNELS_NT, KERNELS_STORE, false>(stream, p);
    case KERNELS_NT * 4 + KERNELS_MASK: return choose<KERNELS_NT, KERNELS_MASK, false>(stream, p);
    case KERNELS_TN * 4 + KERNELS_STORE: return choose<KERNELS_TN, KERNELS_STORE, false>(stream, p);
    case KERNELS_TN * 4 + KERNELS_ADD: return choose<KERNELS_TN, KERNELS_ADD, false>(stream, p);
  }
  return cudaErrorInvalidValue;
}
