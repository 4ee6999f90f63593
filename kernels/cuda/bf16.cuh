// bf16, the upper half of the bits of a float: as an element of an array, and its conversions.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels.h"

struct bf16 {
  uint16_t bits;
};

// to_float returns the first of two, and second_to_float the second.
__device__ inline float to_float(uint32_t two) { return __uint_as_float(two << 16); }
__device__ inline float second_to_float(uint32_t two) { return __uint_as_float(two & 0xffff0000u); }
__device__ inline float to_float(bf16 v) { return to_float(uint32_t(v.bits)); }
__device__ inline float to_float(float v) { return v; }

// to_bf16 rounds two floats to the nearest, of two equally near to the even one.
__device__ inline uint32_t to_bf16(float first, float second) {
#if __CUDA_ARCH__ >= 800
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  return two;
#else
  auto round = [](float f) {
    uint32_t bits = __float_as_uint(f);
    return f != f ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return round(second) << 16 | round(first);
#endif
}

// store writes a float, rounded if the array is of bf16.
__device__ inline void store(float *to, float v) { *to = v; }
__device__ inline void store(bf16 *to, float v) { to->bits = uint16_t(to_bf16(v, 0)); }

// with_values calls f with a value of the type that values have in a precision.
template <typename F>
int with_values(int precision, F f) {
  return precision == KERNELS_BF16 ? f(bf16()) : f(float());
}

// two_of returns the floats of two values, and store2 writes two.
__device__ inline float2 two_of(uint32_t v) { return make_float2(to_float(v), second_to_float(v)); }
__device__ inline float2 two_of(float2 v) { return v; }
__device__ inline void store2(float *to, float2 v) { *reinterpret_cast<float2 *>(to) = v; }
__device__ inline void store2(bf16 *to, float2 v) { *reinterpret_cast<uint32_t *>(to) = to_bf16(v.x, v.y); }

// four_of returns the floats of four values. store4 writes the i-th four values, on a boundary of their size.
__device__ inline float4 four_of(float4 v) { return v; }
__device__ inline float4 four_of(uint2 v) { return make_float4(to_float(v.x), second_to_float(v.x), to_float(v.y), second_to_float(v.y)); }
__device__ inline void store4(float *to, float4 v, int i = 0) { reinterpret_cast<float4 *>(to)[i] = v; }
__device__ inline void store4(bf16 *to, float4 v, int i = 0) { reinterpret_cast<uint2 *>(to)[i] = make_uint2(to_bf16(v.x, v.y), to_bf16(v.z, v.w)); }

// ld_l2 reads a value, and ld4_l2 the i-th four values, past L1. raw4_l2 does not convert them to floats.
__device__ inline float ld_l2(const float *from) { return __ldcg(from); }
__device__ inline float ld_l2(const bf16 *from) { return to_float(uint32_t(__ldcg(&from->bits))); }
__device__ inline float4 raw4_l2(const float *from, int i = 0) { return __ldcg(reinterpret_cast<const float4 *>(from) + i); }
__device__ inline uint2 raw4_l2(const bf16 *from, int i = 0) { return __ldcg(reinterpret_cast<const uint2 *>(from) + i); }
// st4_l2 writes four values past L1, by one instruction, which nvcc does not always make of the stores of store4.
__device__ inline void st4_l2(float *to, float4 v) { __stcg(reinterpret_cast<float4 *>(to), v); }
__device__ inline void st4_l2(bf16 *to, float4 v) { __stcg(reinterpret_cast<uint2 *>(to), make_uint2(to_bf16(v.x, v.y), to_bf16(v.z, v.w))); }
template <typename Value>
__device__ float4 ld4_l2(const Value *from, int i = 0) {
  return four_of(raw4_l2(from, i));
}
