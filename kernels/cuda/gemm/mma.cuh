// What the products on the tensor cores share.
#ifndef TENSOR_CUH
#define TENSOR_CUH

#include "matmul.cuh"

namespace matmuls {

// pixels reads four bytes, or as many as left says and zeros.
__device__ inline unsigned pixels(const uint8_t *from, int left, bool vector) {
  if (vector) return left > 0 ? *(const unsigned *)from : 0;
  unsigned v = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (i < left) v |= unsigned(from[i]) << (8 * i);
  return v;
}

// pixel is the i-th of four as a float: put behind the exponent of 2^23, it counts ones.
__device__ inline float pixel(unsigned four, int i) {
  return __uint_as_float(__byte_perm(four, 0x4b000000, 0x7440 + i)) - 8388608.f;
}

// store_pixels converts four bytes, exactly.
__device__ inline void store_pixels(float *to, unsigned four) {
  *(float4 *)to = make_float4(pixel(four, 0), pixel(four, 1), pixel(four, 2), pixel(four, 3));
}

// scaled turns a sum over bytes into one over pixels.
template <bool IMAGES>
__device__ float scaled(float sum) {
  return IMAGES ? sum * (1 / 255.f) : sum;
}

// split makes tf32 of a fragment, and of the rest for 3xtf32. The tensor cores
// ignore the last 13 bits: adding half of what they stand for rounds to nearest, as
// cvt.rna does in more time. Added as an integer it would carry a NaN into its sign.
// For 3xtf32 the rest of one is NaN, which is enough; tf32 alone adds a float, 2^-11 of
// the power of two that is left without the mantissa. A rest needs no rounding.
template <bool THREE, int EIGHTS>
__device__ void split(unsigned (&big)[EIGHTS][2], unsigned (&rest)[EIGHTS][2], const float (&f)[EIGHTS][2]) {
#pragma unroll
  for (int o = 0; o < EIGHTS; o++)
#pragma unroll
    for (int k = 0; k < 2; k++) {
      unsigned bits = __float_as_uint(f[o][k]);
      if (THREE) big[o][k] = bits + (1u << 12);
      else big[o][k] = __float_as_uint(fmaf(__uint_as_float(bits & 0xff800000), 1.f / 2048, f[o][k]));
      if (THREE) rest[o][k] = __float_as_uint(f[o][k] - __uint_as_float(big[o][k] & ~0u << 13));
    }
}

// mma: c[16,8] += a[16,8]·b[8,8].
__device__ inline void mma(float (&c)[4], const unsigned (&a0)[2], const unsigned (&a8)[2], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0[0]), "r"(a8[0]), "r"(a0[1]), "r"(a8[1]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace matmuls

#endif
