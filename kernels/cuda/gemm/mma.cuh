// The tensor cores: mma.sync, by a warp (compute capability 8). m16n8k8 in tf32 is c[16,8] += a[16,8]·b[8,8].
// Lane 4g + t (g = 0..7, t = 0..3) owns
//
//             k=t   k=t+4                 n=g                 n=2t  n=2t+1
//   a  m=g    a0[0] a0[1]      b  k=t     b[0]      c  m=g    c[0]  c[1]
//      m=g+8  a8[0] a8[1]         k=t+4   b[1]         m=g+8  c[2]  c[3]
//
// Any k of a tile may be k=t or k=t+4 if a and b agree, and any row or column may be g. The kernels permute
// them to read shared memory by float4 and without bank conflicts; their diagrams say how.
#pragma once

#include <cuda_runtime.h>

namespace gemm {

__device__ inline void mma_sync(float (&c)[4], const unsigned (&a0)[2], const unsigned (&a8)[2], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0[0]), "r"(a8[0]), "r"(a0[1]), "r"(a8[1]), "r"(b[0]), "r"(b[1]));
}

// m16n8k16 in bf16 is c[16,8] += a[16,16]·b[16,8]. Lane 4g + t owns, where a register holds two neighbouring
// k,
//
//             k=2t  k=2t+8                 n=g                 n=2t  n=2t+1
//   a  m=g    a[0]  a[2]      b  k=2t      b[0]      c  m=g    c[0]  c[1]
//      m=g+8  a[1]  a[3]         k=2t+8    b[1]         m=g+8  c[2]  c[3]
__device__ inline void mma_sync(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// split_tf32 rounds a fragment f to tf32, 11 bits of mantissa: hi. In 3xtf32 it returns lo = f - hi as well,
// and three multiplications
//
//   (a + a')·(b + b') ≈ a'·b + a·b' + a·b        a, b: hi; a', b': lo
//
// are as exact as float32. The tensor cores ignore the last 13 bits of an operand. Adding half a unit of the
// last bit that they keep rounds to nearest, and is faster than cvt.rna. 3xtf32 adds it to the bits as an
// integer. That can carry a NaN into its sign, but then lo is NaN. tf32 adds a float, 2^-11 of f's power of
// two. lo needs no rounding. If f is infinite, or so large that hi is, then lo is NaN or the opposite
// infinity. So 3xtf32 gives NaN where float32 gives an infinity.
template <bool X3, int N>
__device__ void split_tf32(unsigned (&hi)[N][2], unsigned (&lo)[N][2], const float (&f)[N][2]) {
#pragma unroll
  for (int i = 0; i < N; i++)
#pragma unroll
    for (int k = 0; k < 2; k++) {
      unsigned bits = __float_as_uint(f[i][k]);
      if (X3) hi[i][k] = bits + (1u << 12);
      else hi[i][k] = __float_as_uint(fmaf(__uint_as_float(bits & 0xff800000), 1.f / 2048, f[i][k]));
      if (X3) lo[i][k] = __float_as_uint(f[i][k] - __uint_as_float(hi[i][k] & ~0u << 13));
    }
}

// Accumulators are a warp's: 16 rows by NI n8 fragments.
template <bool X3, int NI>
struct Accumulators {
  float c[NI][4] = {};

  // mma multiplies and adds eight k. uint8 input, in a, is exact in tf32: its lo is zero.
  template <bool U8>
  __device__ void mma(const float (&fa)[2][2], const float (&fb)[NI][2]) {
    unsigned a[2][2], a_lo[2][2];
    if (U8) {
#pragma unroll
      for (int r = 0; r < 2; r++) a[r][0] = __float_as_uint(fa[r][0]), a[r][1] = __float_as_uint(fa[r][1]);
    } else {
      split_tf32<X3>(a, a_lo, fa);
    }
    mma<U8>(a, a_lo, fb);
  }

  // The same, for an a that is already split.
  template <bool U8>
  __device__ void mma(const unsigned (&a)[2][2], const unsigned (&a_lo)[2][2], const float (&fb)[NI][2]) {
    unsigned b[NI][2], b_lo[NI][2];
    split_tf32<X3>(b, b_lo, fb);
    if (X3) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma_sync(c[j], a[0], a[1], b_lo[j]);
    }
    if (X3 && !U8) {
#pragma unroll
      for (int j = 0; j < NI; j++) mma_sync(c[j], a_lo[0], a_lo[1], b[j]);
    }
#pragma unroll
    for (int j = 0; j < NI; j++) mma_sync(c[j], a[0], a[1], b[j]);
  }

  // promote adds partial sums in float32 and sets them to zero. The tensor cores truncate sums where float32
  // rounds, so their sums must be short.
  __device__ void promote(Accumulators &partial) {
#pragma unroll
    for (int j = 0; j < NI; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[j][i] += partial.c[j][i];
    partial = {};
  }
};

}  // namespace gemm
