// Copies from global to shared memory by the threads of a CTA (cp.async), other loads and stores of float4,
// matrices and pixels, the addition of float4s, and named barriers.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "bf16.cuh"

__device__ inline float4 operator+(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

namespace gemm {

// bar_sync is a named barrier, 1 to 15, for some of the warps of a CTA. bar_arrive does not wait for the others.
__device__ inline void bar_sync(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
__device__ inline void bar_arrive(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// shared_address returns a 32-bit address in shared memory. It is volatile, or the compiler would compute it
// again at every use.
__device__ inline unsigned shared_address(const float *p) {
  unsigned a;
  asm volatile("mov.u32 %0, %1;" : "=r"(a) : "r"(unsigned(__cvta_generic_to_shared(p))));
  return a;
}

// cp_async copies W floats, 1 or 4, or stores zeros if !valid. From compute capability 8 on it is
// asynchronous. Copies of 16 bytes bypass L1 (.cg). Copies of 4 bytes use it (.ca), since others of the same
// line follow. L1 has no stale data, even before pdl_wait: it is invalidated between dependent grids (PTX,
// cache operators), data that the grid before this one writes is not prefetched, and no two tensors share a
// line.
template <int W>
__device__ void cp_async(unsigned to, const float *from, bool valid) {
#if __CUDA_ARCH__ >= 800
  int bytes = valid ? 4 * W : 0;
  if (W == 4) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(4 * W), "r"(bytes) : "memory");
#else
#pragma unroll
  for (int i = 0; i < W; i++) asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 4 * i), "f"(valid ? from[i] : 0.f) : "memory");
#endif
}

template <int W>
__device__ void cp_async(float *to, const float *from, bool valid) {
  cp_async<W>(unsigned(__cvta_generic_to_shared(to)), from, valid);
}

// cp_async_float4 copies four floats. If fewer are left it copies those, and zeros for the others.
__device__ inline void cp_async_float4(bool aligned, unsigned to, const float *from, int left) {
  if (aligned) {
    cp_async<4>(to, from, left > 0);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) cp_async<1>(to + 4 * i, from + i, i < left);
  }
}

// cp_async_float4_if copies if mine, and zeros if !valid. It is predicated, since the compiler would not move
// multiplications across a branch.
__device__ inline void cp_async_float4_if(bool mine, unsigned to, const float *from, bool valid) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(to), "l"(from), "r"(valid ? 16 : 0),
               "r"(int(mine))
               : "memory");
}

__device__ inline void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int LEFT>
__device__ void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// The same, for left below N; left is a constant once loops are unrolled.
template <int N>
__device__ void cp_async_wait_group(int left) {
  if constexpr (N > 0) {
    if (left == N - 1) cp_async_wait_group<N - 1>();
    else cp_async_wait_group<N - 1>(left);
  }
}

// ld_shared reads W floats, 1, 2 or 4, at a 32-bit address: nvcc 11.8 computes generic addresses at every
// use.
template <int W>
__device__ void ld_shared(float (&v)[4], unsigned at) {
  if (W == 4) asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(at) : "memory");
  else if (W == 2) asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(at) : "memory");
  else asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v[0]) : "r"(at) : "memory");
}

// ldmatrix reads four matrices of 8×8 halves: lane 8i + r has the address of row r of the i-th, 16 bytes.
// Lane 4g + t gets elements 2t and 2t+1 of row g of each, or if TRANSPOSED of column g. Of two matrices only
// lanes 0 to 15 give addresses.
template <bool TRANSPOSED>
__device__ void ldmatrix(unsigned (&r)[4], unsigned at) {
  if (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
  }
}

template <bool TRANSPOSED>
__device__ void ldmatrix(unsigned (&r)[2], unsigned at) {
  if (TRANSPOSED) asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
  else asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}

// ld_float4 reads four values as floats, past L1, for what a CTA reads once. If fewer are left
// it reads those, and returns zeros for the others.
template <typename Value>
__device__ float4 ld_float4(bool aligned, const Value *from, int left) {
  float v[4] = {};
  if (aligned) {
    if (left > 0) return ld4_l2(from);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < left) v[i] = ld_l2(from + i);
  }
  return make_float4(v[0], v[1], v[2], v[3]);
}

// st_float4 stores four floats, or the first left of them, at least one; rounded if the array is of bf16.
template <typename T>
__device__ void st_float4(bool aligned, T *to, float4 v, int left) {
  float values[4] = {v.x, v.y, v.z, v.w};
  if (aligned) {
    store4(to, v);
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < left) store(to + i, values[i]);
  }
}

// st_global_float2_if stores if valid; it is predicated, as cp_async_float4_if.
__device__ inline void st_global_float2_if(bool valid, float *to, float2 v) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to), "f"(v.x), "f"(v.y), "r"(int(valid)) : "memory");
}

// pixels reads four bytes of uint8 input, on a 4-byte boundary.
__device__ inline unsigned pixels(const uint8_t *from) { return *(const unsigned *)from; }

// pixel returns the i-th of four bytes as a float: it puts the byte in the last bits of 2^23, and subtracts
// 2^23.
__device__ inline float pixel(unsigned four, int i) { return __uint_as_float(__byte_perm(four, 0x4b000000, 0x7440 + i)) - 8388608.f; }

// bf16_pixels returns the i-th of four bytes and the next, which are exact.
__device__ inline unsigned bf16_pixels(unsigned four, int i) {
  return __byte_perm(__float_as_uint(pixel(four, i)), __float_as_uint(pixel(four, i + 1)), 0x7632);
}

__device__ inline uint4 bf16_pixels(uint2 eight) {
  return make_uint4(bf16_pixels(eight.x, 0), bf16_pixels(eight.x, 2), bf16_pixels(eight.y, 0), bf16_pixels(eight.y, 2));
}

// pixels_to converts four bytes, to floats or to bf16.
__device__ inline void pixels_to(float (&to)[4], unsigned four) {
#pragma unroll
  for (int i = 0; i < 4; i++) to[i] = pixel(four, i);
}
__device__ inline void pixels_to(unsigned (&to)[2], unsigned four) { to[0] = bf16_pixels(four, 0), to[1] = bf16_pixels(four, 2); }

__device__ inline void store_pixels(float *to, unsigned four) {
  *(float4 *)to = make_float4(pixel(four, 0), pixel(four, 1), pixel(four, 2), pixel(four, 3));
}

}  // namespace gemm
