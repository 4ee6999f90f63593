// What the products of few rows share, on the tensor cores and on the CUDA cores, and sums over
// many: how a struct P of one becomes a kernel; several of them side by side too. It has THREADS a
// block, registers for BLOCKS on a multiprocessor, CLUSTER of them in a cluster, FLOATS of
// shared memory, the number of tiles, Params and how to prepare them, and run.
//
// AT_MOST, if not 0, are on a multiprocessor at once, for equal shares, where that is
// about enough for all of them.
#ifndef FEW_CUH
#define FEW_CUH

#include <algorithm>
#include <tuple>

#include "bulk.cuh"
#include "matmul.cuh"

namespace matmuls {

// BulkArgs are for tiles copied in bulk, of a, b and c.
struct BulkArgs : Args {
  bulk::Map map[3];
};

inline int pairs(int n) { return (n + bulk::PAIR - 1) / bulk::PAIR * bulk::PAIR; }

// A narrow update is that of a head, of whose columns nothing needs to be known.
inline bool narrow(const Args &p) { return p.n <= 16 && !p.order; }

inline int64_t tiles_of(const Args &p, int bm, int bn) { return int64_t((p.m + bm - 1) / bm) * ((p.n + bn - 1) / bn); }

// tiles_of_pairs is that of pairs in a line.
inline int64_t tiles_of_pairs(const Args &p, int bm, int bn) { return tiles_of(p, bm, bn * bulk::PAIR) * bulk::PAIR; }

// CONSTANT parameters stay where the launch put them, as maps must. CUDA 12 knows none
// before compute capability 7.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define CONSTANT
#else
#define CONSTANT __grid_constant__
#endif

template <typename P>
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) product(const CONSTANT typename P::Params p) {
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
__global__ void __launch_bounds__(P::THREADS, P::BLOCKS) several(const CONSTANT List<typename P::Params> list) {
  extern __shared__ __align__(128) float shared[];
  int i = 0, block = blockIdx.x;
  while (block >= list.ends[i]) i++;
  if (i > 0) block -= list.ends[i - 1];
  one_of<typename P::Params, P, Others...>(list.products[i], list.kinds[i], block, shared);
}

// room is how many bytes of shared memory a block takes: of more than half of what there
// is only one can be on a multiprocessor, and so on; 1 KiB a block is the system's.
template <typename P>
int room(int bytes, int64_t blocks) {
  int64_t all = int64_t(P::AT_MOST) * device().sms;
  if (!P::AT_MOST || blocks > all + all / 16) return bytes;
  return std::max(bytes, (device().shared + 1024) / (P::AT_MOST + 1) - 1024 + 16);
}

template <typename P>
int launch(uintptr_t stream, const Args &args) {
  constexpr int BYTES = 4 * P::FLOATS;
  static const int allowed = allow(product<P>, room<P>(BYTES, 0));
  if (allowed != cudaSuccess) return allowed;
  int64_t tiles = P::tiles(args);
  if (tiles > INT32_MAX) return cudaErrorInvalidValue;
  typename P::Params p;
  if (int code = P::prepare(p, args)) return code;
  return ::launch(stream, {unsigned(tiles), P::THREADS, size_t(room<P>(BYTES, tiles)), P::CLUSTER}, product<P>, p);
}

// add adds a product to a list of count, of a kind: which of P.
template <typename... P, typename Params>
int add(List<Params> &list, int count, int kind, const Args &args) {
  int64_t start = count ? list.ends[count - 1] : 0, end = -1;
  int place = 0, code = cudaSuccess;
  ((place++ == kind ? void((end = start + P::tiles(args), code = P::prepare(list.products[count], args))) : void()), ...);
  if (end > INT32_MAX) return cudaErrorInvalidValue;
  list.kinds[count] = kind, list.ends[count] = int(end);
  return code;
}

// launch makes products side by side, in as few launches as they take. kind says
// which of P one is.
template <typename... P, typename Kind>
int launch(uintptr_t stream, const Args *products, int count, Kind kind) {
  using First = typename std::tuple_element<0, std::tuple<P...>>::type;
  constexpr int BYTES = 4 * std::max({P::FLOATS...});
  static const int allowed = allow(several<P...>, room<First>(BYTES, 0));
  if (allowed != cudaSuccess) return allowed;
  constexpr int MOST = List<typename First::Params>::MOST;
  int launches = (count + MOST - 1) / MOST;
  for (int i = 0, n; i < count; i += n, launches--) {
    List<typename First::Params> list;
    n = (count - i + launches - 1) / launches;
    for (int j = 0; j < n; j++)
      if (int code = add<P...>(list, j, kind(products[i + j]), products[i + j])) return code;
    size_t bytes = room<First>(BYTES, list.ends[n - 1]);
    if (int code = ::launch(stream, {unsigned(list.ends[n - 1]), First::THREADS, bytes, First::CLUSTER}, several<P...>, list)) return code;
  }
  return cudaSuccess;
}

}  // namespace matmuls

#endif
