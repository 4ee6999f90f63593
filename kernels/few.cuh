// What the products of few rows share, on the tensor cores and on the CUDA cores: how a
// struct P of one becomes a kernel; several of them side by side too. It has THREADS a
// block, BLOCKS at once on a multiprocessor, or ALONE, CLUSTER of them in a cluster,
// FLOATS of shared memory, the number of tiles, Params and how to prepare them, and run.
#ifndef FEW_CUH
#define FEW_CUH

#include <algorithm>
#include <tuple>

#include "matmul.cuh"

namespace matmuls {

inline int64_t tiles_of(const Args &p, int bm, int bn) { return int64_t((p.m + bm - 1) / bm) * ((p.n + bn - 1) / bn); }

template <typename P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) product(const __grid_constant__ typename P::Params p) {
  extern __shared__ __align__(128) float shared[];
  P::run(p, blockIdx.x, shared);
}

// A List is products to be made side by side, as many as kernel parameters can hold.
template <typename Params>
struct List {
  static constexpr int MOST = 7;
  Params products[MOST];
  int kinds[MOST], ends[MOST];  // the place of its kind among several's P, and of the block after its last
};

// several makes the products of a list, each of one of the kinds P.
template <typename Params, typename P, typename... Others>
__device__ void one_of(const Params &p, int kind, int block, float *shared) {
  if (kind == 0) return P::run(p, block, shared);
  if constexpr (sizeof...(Others) > 0) one_of<Params, Others...>(p, kind - 1, block, shared);
}

template <typename P, typename... Others>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) several(const __grid_constant__ List<typename P::Params> list) {
  extern __shared__ __align__(128) float shared[];
  int i = 0, block = blockIdx.x;
  while (block >= list.ends[i]) i++;
  if (i > 0) block -= list.ends[i - 1];
  one_of<typename P::Params, P, Others...>(list.products[i], list.kinds[i], block, shared);
}

template <typename P>
int launch(uintptr_t stream, const Args &args) {
  // Blocks that would each have a multiprocessor for itself among its kind take more than
  // half of the memory. The least that is too much: 1 KiB a block is the system's.
  constexpr int BYTES = 4 * P::FLOATS;
  int alone = std::max(BYTES, (device().shared + 1024) / 2 - 1024 + 16);
  static const int allowed = allow(product<P>, P::ALONE ? alone : BYTES);
  if (allowed != cudaSuccess) return allowed;
  if (P::tiles(args) > INT32_MAX) return cudaErrorInvalidValue;
  int bytes = P::ALONE && P::tiles(args) <= device().sms ? alone : BYTES;
  typename P::Params p;
  if (int code = P::prepare(p, args)) return code;
  return ::launch(stream, {unsigned(P::tiles(args)), P::THREADS, size_t(bytes), P::CLUSTER}, product<P>, p);
}

// add adds a product of kind P to a list of count, the last of the blocks so far.
template <typename P>
int add(List<typename P::Params> &list, int count, int kind, const Args &args) {
  int64_t end = (count ? list.ends[count - 1] : 0) + P::tiles(args);
  if (end > INT32_MAX) return cudaErrorInvalidValue;
  list.kinds[count] = kind, list.ends[count] = int(end);
  return P::prepare(list.products[count], args);
}

template <typename... P, typename Params>
int launch(uintptr_t stream, const List<Params> &list, int count) {
  using First = typename std::tuple_element<0, std::tuple<P...>>::type;
  constexpr int BYTES = 4 * std::max({P::FLOATS...});
  static const int allowed = allow(several<P...>, BYTES);
  if (allowed != cudaSuccess) return allowed;
  return ::launch(stream, {unsigned(list.ends[count - 1]), First::THREADS, BYTES, First::CLUSTER}, several<P...>, list);
}

}  // namespace matmuls

#endif
