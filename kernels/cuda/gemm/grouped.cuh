// How a struct P becomes a kernel, for one GEMM or as a grouped GEMM: several side by
// side in one launch. P has
//
//   ARCH           what it is compiled for, see compiled
//   THREADS, CTAS  threads of a CTA, and how many CTAs an SM has registers for
//   CLUSTER        CTAs in a cluster
//   FLOATS         of shared memory
//   OCCUPANCY      if not 0, so many CTAs are on an SM at once, for equal shares, where that
//                  is about enough for all of them
//   Params         Gemm, or what begins with one; prepare fills it in
//   ctas           how many it takes; run is one of them
#ifndef GROUPED_CUH
#define GROUPED_CUH

#include <algorithm>
#include <tuple>

#include "tma.cuh"

namespace gemm {

// whole_pairs is n CTAs, and one more for the sake of pairs if need be.
inline int64_t whole_pairs(int64_t n) { return ceil_div(n, CTA_PAIR) * CTA_PAIR; }

// CONSTANT parameters stay where the launch put them, as tensor maps must. CUDA 12 knows
// none before compute capability 7.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define CONSTANT
#else
#define CONSTANT __grid_constant__
#endif

template <typename P>
__global__ void __launch_bounds__(P::THREADS, P::CTAS) single_gemm(const CONSTANT typename P::Params p) {
  extern __shared__ __align__(128) float shared[];
  if constexpr (compiled(P::ARCH)) P::run(p, blockIdx.x, shared);
}

// A Group is GEMMs to be made side by side, as many as kernel parameters can hold.
template <typename Params>
struct Group {
  static constexpr int MOST = 7;
  Params gemms[MOST];
  int kinds[MOST], ends[MOST];  // which of P it is one of, and the CTA after its last
};

template <typename Params, typename P, typename... Others>
__device__ void run_kind(const Params &p, int kind, int cta, float *shared) {
  if (kind == 0) return P::run(p, cta, shared);
  if constexpr (sizeof...(Others) > 0) run_kind<Params, Others...>(p, kind - 1, cta, shared);
}

template <typename P, typename... Others>
__global__ void __launch_bounds__(P::THREADS, P::CTAS) grouped_gemm(const CONSTANT Group<typename P::Params> group) {
  extern __shared__ __align__(128) float shared[];
  if constexpr (compiled(P::ARCH)) {
    int i = 0, cta = blockIdx.x;
    while (cta >= group.ends[i]) i++;
    if (i > 0) cta -= group.ends[i - 1];
    run_kind<typename P::Params, P, Others...>(group.gemms[i], group.kinds[i], cta, shared);
  }
}

// shared_for_occupancy is how many bytes of shared memory a CTA takes: of more than half
// of what there is only one can be on an SM, and so on; 1 KiB a CTA is the system's.
template <typename P>
int shared_for_occupancy(int bytes, int64_t ctas) {
  int64_t all = int64_t(P::OCCUPANCY) * device().sms;
  if (!P::OCCUPANCY || ctas > all + all / 16) return bytes;
  return std::max(bytes, (device().shared + 1024) / (P::OCCUPANCY + 1) - 1024 + 16);
}

template <typename P>
int launch_single(uintptr_t stream, const Gemm &g) {
  constexpr int BYTES = 4 * P::FLOATS;
  static const int allowed = opt_in_shared(single_gemm<P>, shared_for_occupancy<P>(BYTES, 0));
  if (allowed != cudaSuccess) return allowed;
  int64_t ctas = P::ctas(g);
  if (ctas > INT32_MAX) return cudaErrorInvalidValue;
  typename P::Params p;
  if (int code = P::prepare(p, g)) return code;
  return launch(stream, {unsigned(ctas), P::THREADS, size_t(shared_for_occupancy<P>(BYTES, ctas)), P::CLUSTER}, single_gemm<P>, p);
}

// add_to_group makes g the GEMM after count others, of a kind: which of P.
template <typename... P, typename Params>
int add_to_group(Group<Params> &group, int count, int kind, const Gemm &g) {
  int64_t start = count ? group.ends[count - 1] : 0, end = -1;
  int place = 0, code = cudaSuccess;
  ((place++ == kind ? void((end = start + P::ctas(g), code = P::prepare(group.gemms[count], g))) : void()), ...);
  if (end > INT32_MAX) return cudaErrorInvalidValue;
  group.kinds[count] = kind, group.ends[count] = int(end);
  return code;
}

// launch_grouped makes GEMMs in as few launches as they take. kind says which of P one is. The first of
// P come first: those that have the most to do before pdl_wait.
template <typename... P, typename Kind>
int launch_grouped(uintptr_t stream, const Gemm *g, int count, Kind kind) {
  using First = typename std::tuple_element<0, std::tuple<P...>>::type;
  using Params = typename First::Params;
  constexpr int BYTES = 4 * std::max({P::FLOATS...}), MOST = Group<Params>::MOST;
  static const int allowed = opt_in_shared(grouped_gemm<P...>, shared_for_occupancy<First>(BYTES, 0));
  if (allowed != cudaSuccess) return allowed;
  Gemm sorted[KERNELS_MAX_GROUP];
  std::copy(g, g + count, sorted);
  std::stable_sort(sorted, sorted + count, [&](const Gemm &a, const Gemm &b) { return kind(a) < kind(b); });
  int launches = (count + MOST - 1) / MOST;
  for (int i = 0, n; i < count; i += n, launches--) {
    Group<Params> group;
    n = (count - i + launches - 1) / launches;
    for (int j = 0; j < n; j++)
      if (int code = add_to_group<P...>(group, j, kind(sorted[i + j]), sorted[i + j])) return code;
    int ctas = group.ends[n - 1];
    Launch l = {unsigned(ctas), First::THREADS, size_t(shared_for_occupancy<First>(BYTES, ctas)), First::CLUSTER};
    if (int code = launch(stream, l, grouped_gemm<P...>, group)) return code;
  }
  return cudaSuccess;
}

}  // namespace gemm

#endif
