// What the matrix products on the CUDA cores and on the tensor cores share: the
// arguments, copies to shared memory, and the epilogues.
#ifndef MATMUL_CUH
#define MATMUL_CUH

#include <cooperative_groups.h>

#include "launch.cuh"

namespace matmuls {

constexpr int MAX_RANKS = 8;  // blocks in a cluster; more are not portable

struct Args {
  float *c;
  const float *a, *b, *y;
  const int32_t *order;  // not null: the rows of a are images, bytes, picked by it
  float alpha;
  int m, n, k, k_part;  // k_part: the k of one block of a cluster
  // The operand, or y and the old c, may be read before follow.
  bool early_a, early_b, early_c;
  // Lines of the operand, or rows of c and y, are whole quads on 16-byte boundaries.
  bool vector_a, vector_b, vector_c;
};

// shared_address is pinned: the compiler would make it again at every use, which
// costs more than it thinks.
__device__ inline unsigned shared_address(const float *p) {
  unsigned a;
  asm volatile("mov.u32 %0, %1;" : "=r"(a) : "r"(unsigned(__cvta_generic_to_shared(p))));
  return a;
}

// copy copies W floats, 1, 2 or 4, from global to shared memory, or stores zeros if
// !valid: asynchronously where the hardware can.
template <int W>
__device__ void copy(unsigned to, const float *from, bool valid) {
#if __CUDA_ARCH__ >= 800
  int bytes = valid ? 4 * W : 0;
  if (W == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(4 * W), "r"(bytes) : "memory");
#else
#pragma unroll
  for (int i = 0; i < W; i++)
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 4 * i), "f"(valid ? from[i] : 0.f) : "memory");
#endif
}

template <int W>
__device__ void copy(float *to, const float *from, bool valid) {
  copy<W>(unsigned(__cvta_generic_to_shared(to)), from, valid);
}

// copy_quad copies four floats, or as many as left says and zeros.
template <bool VECTOR>
__device__ void copy_quad(unsigned to, const float *from, int left) {
  if (VECTOR || left <= 0) {
    copy<4>(to, from, VECTOR && left > 0);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) copy<1>(to + 4 * i, from + i, i < left);
  }
}

__device__ inline void copies_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// copies_wait waits for all but the newest LEFT groups of copies.
template <int LEFT>
__device__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// copies_wait_but is copies_wait for a number below N that is known when unrolled.
template <int N>
__device__ void copies_wait_but(int left) {
  if constexpr (N > 0) {
    if (left == N - 1) copies_wait<N - 1>();
    else copies_wait_but<N - 1>(left);
  }
}

__device__ inline void add(float4 &s, float4 v) { s.x += v.x, s.y += v.y, s.z += v.z, s.w += v.w; }

// read reads four elements, or as many as left says, from L2: what is read early must
// not be what L1 still has of before.
__device__ inline void read(float (&v)[4], const float *from, int left, bool vector) {
  if (vector) {
    float4 f = __ldcg((const float4 *)from);
    v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
  } else {
#pragma unroll
    for (int j = 0; j < 4; j++)
      if (j < left) v[j] = __ldcg(from + j);
  }
}

// epilogue finishes one element: sum is that of the product, old the element of
// y (MASK) or c (ADD) at its place.
template <int EPILOGUE>
__device__ float epilogue(float sum, float old, float alpha) {
  if (EPILOGUE == KERNELS_RELU) return sum < 0 ? 0 : sum;
  if (EPILOGUE == KERNELS_MASK) return old > 0 ? sum : 0;
  if (EPILOGUE == KERNELS_ADD) return old + alpha * sum;
  return sum;
}

// Finish is what follows the sums of a block's tile, BM×BN, of which every slice
// of the block has left its part in shared memory, in rows of LD, PART apart. A
// thread finishes quads of columns. In a cluster each block finishes an equal
// part of the tile; the others send it their sums of that part, into its inbox.
template <int EPILOGUE, int BM, int BN, int LD, int PART, int SLICES, int THREADS>
struct Finish {
  static constexpr int ROW_QUADS = BN / 4, QUADS = BM * ROW_QUADS;
  static constexpr int PER_THREAD = (QUADS + THREADS - 1) / THREADS;
  static constexpr bool OLD = EPILOGUE == KERNELS_MASK || EPILOGUE == KERNELS_ADD;

  const Args &p;
  int m0, n0, rank, ranks, each, first, end;
  float old[PER_THREAD][4];

  // Of the tile's quads this thread has those from first on, every THREADS-th,
  // below end: all of them, or this block's part.
  __device__ Finish(const Args &args, int m, int n, int r, int rs)
      : p(args), m0(m), n0(n), rank(r), ranks(rs), each(QUADS / rs), first(each * r + threadIdx.x), end(each * (r + 1)) {}

  // read_old sends for what the epilogue needs.
  __device__ void read_old() {
    if (!OLD) return;
    const float *olds = EPILOGUE == KERNELS_MASK ? p.y : p.c;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      int e = first + i * THREADS, y = m0 + e / ROW_QUADS, x = n0 + e % ROW_QUADS * 4;
      if (e < end && y < p.m && x < p.n) read(old[i], olds + int64_t(y) * p.n + x, p.n - x, p.vector_c);
    }
  }

  __device__ static float4 slices(const float *parts, int e) {
    const float *at = parts + e / ROW_QUADS * LD + e % ROW_QUADS * 4;
    float4 v = *(const float4 *)at;
#pragma unroll
    for (int s = 1; s < SLICES; s++) add(v, *(const float4 *)(at + s * PART));
    return v;
  }

  __device__ void write(const float *parts, float4 *inbox) {
#if __CUDA_ARCH__ >= 900
    if (ranks > 1) {
      auto cluster = cooperative_groups::this_cluster();
      asm volatile("barrier.cluster.wait.aligned;");  // the others run
#pragma unroll 1
      for (int e = threadIdx.x; e < QUADS; e += THREADS) {
        int owner = e / each;
        *cluster.map_shared_rank(inbox + (rank - owner) * each + e, owner) = slices(parts, e);
      }
      cluster.sync();
    }
#endif
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      int e = first + i * THREADS, y = m0 + e / ROW_QUADS, x = n0 + e % ROW_QUADS * 4;
      if (e >= end || y >= p.m || x >= p.n) continue;
      float4 v;
      if (ranks == 1) {
        v = slices(parts, e);
      } else {
        v = inbox[e - each * rank];
#pragma unroll 1
        for (int r = 1; r < ranks; r++) add(v, inbox[e + each * (r - rank)]);
      }
      float result[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; j++) result[j] = epilogue<EPILOGUE>(result[j], OLD ? old[i][j] : 0, p.alpha);
      float *to = p.c + int64_t(y) * p.n + x;
      if (p.vector_c) {
        *(float4 *)to = make_float4(result[0], result[1], result[2], result[3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; j++)
          if (x + j < p.n) to[j] = result[j];
      }
    }
  }
};

// cluster_arrive says that this block runs, and finds its place in its cluster.
__device__ inline void cluster_arrive(int &rank, int &ranks) {
  rank = 0, ranks = 1;
#if __CUDA_ARCH__ >= 900
  auto cluster = cooperative_groups::this_cluster();
  rank = cluster.block_rank(), ranks = cluster.num_blocks();
  if (ranks > 1) asm volatile("barrier.cluster.arrive.aligned;");
#endif
}

}  // namespace matmuls

// matmul.cu: on the CUDA cores.
int matmul_ffma(uintptr_t stream, int form, int epilogue, const matmuls::Args &p);

// matmul_few_ffma.cu: the same, for the few rows of a small batch; updates of few rows
// all, in one launch or few.
bool matmul_is_few_ffma(int form, int epilogue, const matmuls::Args &p);
bool matmul_is_few_ffma_update(const matmuls::Args &p);
int matmul_few_ffma(uintptr_t stream, int form, int epilogue, const matmuls::Args &p);
int matmul_few_ffma_updates(uintptr_t stream, const matmuls::Args *p, int count);

// matmul_tensor.cu: on the tensor cores. three: in 3xtf32, else tf32.
int matmul_tensor(uintptr_t stream, int form, int epilogue, bool three, const matmuls::Args &p);

// matmul_few.cu: on the tensor cores, for the few rows of a small batch and for
// images; updates of few rows all, in one launch or few.
bool matmul_is_few(int form, int epilogue, const matmuls::Args &p);
int matmul_few(uintptr_t stream, int form, int epilogue, bool three, const matmuls::Args &p);
int matmul_few_updates(uintptr_t stream, bool three, const matmuls::Args *p, int count);

// matmul_sum.cu: on the tensor cores, steps by weight gradients of a large batch, in
// one launch or few.
bool matmul_is_sum(const matmuls::Args &p);
int matmul_sums(uintptr_t stream, bool three, const matmuls::Args *p, int count);

// matmul_step.cu: on the tensor cores, a product NT with MASK of few rows and large weights, and
// the step of these, b += alpha·yᵀ·a.
bool matmul_is_step(bool three, const matmuls::Args &p);
int matmul_step(uintptr_t stream, bool three, const matmuls::Args &p);

#endif
