// The parameters of a GEMM, and the launchers among which dispatch.cu chooses.
//
//   layout  c = op(a)·op(b)               in training             fused epilogue
//   NN      y[m,n]  = x[m,k]·w[k,n]       forward                 ReLU   y = max(0, sum)
//   NT      dx[m,n] = dy[m,k]·w[n,k]ᵀ     dgrad, input gradient   dReLU  dx = sum where y > 0, else 0
//   TN      dw[m,n] = x[k,m]ᵀ·dy[k,n]     wgrad, weight gradient  SGD    w += alpha·sum
//
// epilogue.cuh says what an epilogue computes. In NN and TN, x may be pixels/255. The pixels are float32, or
// they are uint8 input: row i is row indices[i] of a table of bytes. Kernels multiply the pixels, which are
// exact in every precision, and alpha has the factor 1/255. So NN multiplies its sums by alpha as well.
//
// All matrices are row-major. In precision bf16, a, b and y are bf16, and c is bf16 with an activation or its
// gradient. All other matrices are float32. The order of additions depends only on the call (the shapes and
// alignments of its GEMMs, and the precision), the GPU and the compiler. So equal calls give equal bits.
#pragma once

#include "bf16.cuh"
#include "launch.cuh"

// HAVE_TMA says whether the toolkit can compile the kernels by TMA.
#if defined(__CUDACC_VER_MAJOR__) && 100 * __CUDACC_VER_MAJOR__ + __CUDACC_VER_MINOR__ >= 1201
#define HAVE_TMA 1
#else
#define HAVE_TMA 0
#endif

// HAVE_WARPGROUP says whether kernels.mk compiles this file for warpgroup MMA.
#ifndef HAVE_WARPGROUP
#define HAVE_WARPGROUP 0
#endif

// Without those kernels nvcc would warn about their unused constants.
#if defined(__CUDACC__) && (!HAVE_TMA || (__CUDA_ARCH__ && (__CUDA_ARCH__ / 100 != 9 || (HAVE_WARPGROUP && !defined(__CUDA_ARCH_FEAT_SM90_ALL)))))
#pragma nv_diag_suppress 177
#endif

namespace gemm {

// EXCHANGE_SHARED is how much shared memory the stages of an exchange's CTA take: see exchange.cu.
constexpr int EXCHANGE_SHARED = 30 << 10;

enum Layout { NN = KERNELS_NN, NT = KERNELS_NT, TN = KERNELS_TN };

struct Gemm {
  float *c;  // in precision bf16 some of c, a, b and y point to bf16, as above
  const float *a, *b, *y;
  bf16 *rounded;           // if not null, in bf16, SGD also stores c here, and dgrad_wgrad b
  float *t;                // if not null, a transposed gradient: NT also stores cᵀ here, TN may read bᵀ here
  const int32_t *indices;  // if not null, a is a table of bytes, of which these are the rows
  float alpha;             // of NN and TN; of dgrad_wgrad
  int m, n, k;
  int k_cta;   // in cluster split-K, the k of one CTA of a cluster
  // Whether an operand may be read before pdl_wait. prefetch_c is about the epilogue's source.
  bool prefetch_a, prefetch_b, prefetch_c;
  // Whether all rows begin on 16-byte boundaries and are whole multiples of 16 bytes, but those of a with a stride, which
  // may end anywhere. aligned_c is about c, y and rounded. The lines of t are padded: aligned_t is about where they begin.
  bool aligned_a, aligned_b, aligned_c, aligned_t;
  uint8_t layout, precision;
  bool beside;   // the kernel should leave EXCHANGE_SHARED of an SM's shared memory free, if it can
  int epilogue;  // see epilogue.cuh
  int stride;    // of TN, if not 0, the elements from a row of a to the next

  bool aligned() const { return aligned_a && aligned_b && aligned_c; }
  // narrow reports whether c has few columns, as that of a classifier. With ten columns b and c are never aligned.
  bool narrow() const { return n <= 16 && !indices; }
};

// ceil_div computes in the type of its arguments: int takes fewer instructions in device code.
template <typename N, typename D>
__host__ __device__ constexpr auto ceil_div(N n, D d) {
  return (n + d - 1) / d;
}

// tiles returns how many tiles of bm×bn cover c.
inline int64_t tiles(const Gemm &g, int bm, int bn) { return ceil_div<int64_t>(g.m, bm) * ceil_div(g.n, bn); }

// compiled says whether this pass of nvcc compiles kernels of an arch: those of 80 for compute capability 8
// and later, those of 90 only for 9.x.
__host__ __device__ constexpr bool compiled(int arch) {
#ifdef __CUDA_ARCH__
  return __CUDA_ARCH__ >= 10 * arch && (arch != 90 || __CUDA_ARCH__ < 1000);
#else
  return true;
#endif
}

// Bytes of shared memory that a CTA may have: on every GPU from compute capability 8.0 on (8.6, 8.9 and 12.x
// have no more), and on every data center GPU (8.0 has no more).
constexpr int CP_ASYNC_SHARED = 99 << 10, DATA_CENTER_SHARED = 163 << 10;
constexpr int SMALL_BATCH = 128;      // the largest k of a wgrad of a small batch; some kernels take twice as many
constexpr int DGRAD_WGRAD_ROWS = 64;  // the largest m of dgrad_wgrad
constexpr int CHAIN_SIDE = 64;        // the largest n and k of chain

// Launchers. dispatch.cu says which GEMMs they take. A launcher of several GEMMs needs one launch, or few.
int simt(uintptr_t stream, const Gemm &g);
int simt_narrow(uintptr_t stream, const Gemm &g);
int chain(uintptr_t stream, const Gemm *g, int count);  // of which each reads the c of the one before
int64_t skinny_tiles(const Gemm &g);
int skinny_simt(uintptr_t stream, const Gemm &g);
int skinny_simt_tma(uintptr_t stream, const Gemm &g);
int wgrad_simt(uintptr_t stream, const Gemm *g, int count);
int wgrad_simt_tma(uintptr_t stream, const Gemm *g, int count);

int tensorop_unaligned(uintptr_t stream, const Gemm &g);
int tensorop_narrow(uintptr_t stream, const Gemm &g);
int tensorop_narrow_wgrads(uintptr_t stream, const Gemm *g, int count);
int tensorop_low(uintptr_t stream, const Gemm &g);
int tensorop_square(uintptr_t stream, const Gemm &g);
bool tensorop_wgrad_wave_fits(const Gemm &g);  // c has at most the elements of one tile for each SM
int tensorop_wgrad_wave(uintptr_t stream, const Gemm &g);
int tensorop_wgrad_short(uintptr_t stream, const Gemm &g);
int tensorop_wgrads_long(uintptr_t stream, const Gemm *g, int count);
int64_t wgrad_long_tiles(const Gemm &g);
int skinny_tensorop(uintptr_t stream, const Gemm &g);
int skinny_tensorop_tma(uintptr_t stream, const Gemm &g);
int64_t wgrad_tensorop_tiles(const Gemm &g);
int wgrad_tensorop(uintptr_t stream, const Gemm *g, int count);
int wgrad_tensorop_tma(uintptr_t stream, const Gemm *g, int count);
int wgrad_large(uintptr_t stream, const Gemm *g, int count);

int64_t bf16_skinny_tiles(const Gemm &g);
int bf16_skinny(uintptr_t stream, const Gemm &g);
int bf16_skinny_tma(uintptr_t stream, const Gemm &g);
int bf16_low(uintptr_t stream, const Gemm &g);
int bf16_medium(uintptr_t stream, const Gemm &g);
int64_t bf16_square_tiles(const Gemm &g);
int bf16_square(uintptr_t stream, const Gemm &g);
int bf16_unaligned(uintptr_t stream, const Gemm &g);
int bf16_narrow_wgrad(uintptr_t stream, const Gemm &g);
int bf16_wgrads(uintptr_t stream, const Gemm *g, int count);

// Warpgroup MMA, if the GPU and the compiler have it. wgrads in tf32 need dyᵀ at t.
bool warpgroup_possible();
int warpgroup(uintptr_t stream, const Gemm &g);
int warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count);
int bf16_warpgroup(uintptr_t stream, const Gemm &g);
int bf16_warpgroup_wgrad(uintptr_t stream, const Gemm *g, int count);
int64_t warpgroup_tiles(const Gemm &g);  // tiles of 128×128

// dgrad_wgrad computes NT with dReLU, and then b += alpha·yᵀ·a. In bf16 b is float32, and rounded its copy.
int dgrad_wgrad(uintptr_t stream, const Gemm &g);
int64_t dgrad_wgrad_ctas(const Gemm &g);

}  // namespace gemm
