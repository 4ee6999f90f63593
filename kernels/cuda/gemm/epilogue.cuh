// What a GEMM does with its sums: Epilogue, one functor that every GEMM applies. What it computes is chosen
// by a branch at run time, which all threads take alike. That costs less than a second kernel.
//
//   Gemm::epilogue               layout        c                               reads
//   KERNELS_NONE                 NN, TN        alpha·sum
//                                NT            sum
//   KERNELS_ACTIVATE             NN, forward   Relu::forward(alpha·sum)
//   KERNELS_ACTIVATE_BACKWARD    NT, dgrad     Relu::backward(sum, y)          y
//   KERNELS_SGD                  TN, wgrad     Sgd::update(w, alpha, sum)      w, the old c
//
// Where it is applied:
//
//   simt, tensorop      to a tile in shared memory, after the reduction of split-K (TileEpilogue)
//   skinny              in registers, after the reduction of the warps' sums
//   chain               in registers
//   warpgroup           in registers; wgrad: red_add of delta
//   bf16_warpgroup      in registers
//   wgrad_*             in registers; by TMA: reduce-add of delta
//   dgrad_wgrad         in registers: dgrad with the activation's derivative, wgrad with Sgd
//
// The gradient through another activation than ReLU must be a function of y, which is in memory anyway.
// Another rule than SGD must add delta to w, since the kernels by TMA and warpgroup MMA never read w.
#pragma once

#include "gemm.cuh"

namespace gemm {

struct Relu {
  // x < 0 rather than fmaxf, which would turn NaN into 0 and hide it.
  static __device__ float forward(float x) { return x < 0 ? 0 : x; }
  // backward takes the gradient of the output, and the output y.
  static __device__ float backward(float gradient, float y) { return y > 0 ? gradient : 0; }
};

// Sgd is w + delta: a kernel may have the memory add delta instead of reading w.
struct Sgd {
  static __device__ float delta(float alpha, float sum) { return alpha * sum; }
  // With FMA there is one rounding. Without it delta is rounded first, as where the memory adds it (TMA,
  // red.add).
  template <bool FMA>
  static __device__ float update(float w, float alpha, float sum) {
    return FMA ? fmaf(alpha, sum, w) : __fadd_rn(w, delta(alpha, sum));
  }
};

// FMA is that of Sgd. Weights depend on it, so every kernel keeps to one value. Kernels in bf16 have no FMA.
template <int LAYOUT, bool FMA = false>
struct Epilogue {
  const Gemm &g;

  __device__ bool fused() const { return g.epilogue != KERNELS_NONE; }

  // source is the tensor, shaped as c, that a fused epilogue reads, or null if it reads none.
  __device__ const float *source() const { return LAYOUT == NT ? g.y : LAYOUT == TN ? g.c : nullptr; }

  // The value of an element of c, of which old is that of source.
  __device__ float operator()(float sum, float old) const {
    if (LAYOUT == NT) return fused() ? Relu::backward(sum, old) : sum;
    if (LAYOUT == TN) return fused() ? Sgd::update<FMA>(old, g.alpha, sum) : g.alpha * sum;
    sum *= g.alpha;
    return fused() ? Relu::forward(sum) : sum;
  }

  // delta is what a wgrad that does not read w adds to it, or stores if nothing is fused.
  __device__ float delta(float sum) const { return Sgd::delta(g.alpha, sum); }

  // The same for several elements.
  __device__ float2 operator()(float2 sum, float2 old) const { return make_float2((*this)(sum.x, old.x), (*this)(sum.y, old.y)); }
  __device__ float4 operator()(float4 sum, float4 old) const {
    return make_float4((*this)(sum.x, old.x), (*this)(sum.y, old.y), (*this)(sum.z, old.z), (*this)(sum.w, old.w));
  }
  __device__ float2 delta(float2 sum) const { return make_float2(delta(sum.x), delta(sum.y)); }
  __device__ float4 delta(float4 sum) const { return make_float4(delta(sum.x), delta(sum.y), delta(sum.z), delta(sum.w)); }
};

}  // namespace gemm
