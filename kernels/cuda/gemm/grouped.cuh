// Kernels for one GEMM or for a grouped GEMM, several in one launch, from a struct P:
//
//   ARCH           what it is compiled for, see compiled
//   THREADS, CTAS  threads of a CTA, and CTAs on an SM, by its registers
//   CLUSTER        CTAs of a cluster, unless a launch divides k
//   FLOATS         floats of shared memory
//   OCCUPANCY      if not 0, shared memory is padded so that exactly this many CTAs fit on an SM, and every SM gets
//                  an equal share; not if the grid exceeds OCCUPANCY CTAs for each SM by more than 1/16
//   Params         Gemm or TmaGemm; prepare fills it in
//   ctas, run      how many CTAs a GEMM takes, and what one of them does
//   INBOX          of a P that can divide k among the CTAs of a cluster, the bytes that this adds to shared memory
//   K_MULTIPLE     of such a P: the k of a CTA is a multiple of it
#pragma once

#include <algorithm>
#include <tuple>

#include "split_k.cuh"
#include "tma.cuh"

namespace gemm {

// whole_pairs returns how many tiles of SIZE cover n, rounded up to CTA pairs.
template <int SIZE, typename N>
__host__ __device__ constexpr N whole_pairs(N n) {
  return ceil_div(n, SIZE * CTA_PAIR) * CTA_PAIR;
}

template <typename P>
__global__ void __launch_bounds__(P::THREADS, P::CTAS) single_gemm(const CONSTANT typename P::Params p) {
  extern __shared__ __align__(128) float shared[];
  if constexpr (compiled(P::ARCH)) P::run(p, blockIdx.x, shared);
}

// A Group is the GEMMs of one launch, as kernel parameters: in their 4 KiB, seven TmaGemm of 512 bytes.
template <typename Params>
struct Group {
  static constexpr int MAX = 7;
  Params gemms[MAX];
  // of each: which P computes it, and the CTA (in warpgroup_gemm the tile) after its last.
  int kinds[MAX], ends[MAX];
};
static_assert(sizeof(Group<TmaGemm>) + 3 * sizeof(TensorMap) <= 4 << 10, "warpgroup_gemm takes two int and two maps as well");

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

// shared_for_occupancy returns how much shared memory a CTA asks for: bytes, padded for OCCUPANCY to more
// than 1/(OCCUPANCY + 1) of an SM's, of which the system takes 1 KiB for each CTA.
template <typename P>
int shared_for_occupancy(int bytes, int64_t ctas) {
  int64_t all = int64_t(P::OCCUPANCY) * device().sms;
  if (!P::OCCUPANCY || ctas > all + all / 16) return bytes;
  return std::max(bytes, (device().shared + 1024) / (P::OCCUPANCY + 1) - 1024 + 16);
}

template <typename P>
constexpr bool has_toolkit = P::ARCH < 90 || HAVE_TMA;

template <typename P>
int launch_single(uintptr_t stream, const Gemm &g) {
  if constexpr (has_toolkit<P>) {
    constexpr int BYTES = 4 * P::FLOATS;
    static_assert(P::ARCH >= 90 || BYTES <= CP_ASYNC_SHARED, "every GPU of this ARCH has that much");
    if (int code = opt_in_shared<single_gemm<P>>(shared_for_occupancy<P>(BYTES, 0))) return code;
    int64_t ctas = P::ctas(g);
    if (ctas > INT32_MAX) return cudaErrorInvalidValue;
    typename P::Params p;
    if (int code = P::prepare(p, g)) return code;
    return launch(stream, {unsigned(ctas), P::THREADS, size_t(shared_for_occupancy<P>(BYTES, ctas)), P::CLUSTER}, single_gemm<P>, p);
  }
  return cudaErrorNotSupported;
}

// add_to_group appends g, computed by the kind-th of P, to a group of count GEMMs.
template <typename... P, typename Params>
int add_to_group(Group<Params> &group, int count, int kind, const Gemm &g) {
  int64_t start = count ? group.ends[count - 1] : 0, end = -1;
  int i = 0, code = cudaSuccess;
  ((i++ == kind ? void((end = start + P::ctas(g), code = P::prepare(group.gemms[count], g))) : void()), ...);
  if (end > INT32_MAX) return cudaErrorInvalidValue;
  group.kinds[count] = kind, group.ends[count] = int(end);
  return code;
}

template <typename P, typename = void>
constexpr int inbox_of = 0;
template <typename P>
constexpr int inbox_of<P, std::void_t<decltype(P::INBOX)>> = P::INBOX;

// launch_grouped launches GEMMs, at most Group::MAX at once. kind(g) says which of P computes g. CTAs start
// in the order of P: first the kind with the most to do before pdl_wait. As many CTAs share each tile, whichever GEMM it
// is of: see Share.
template <typename... P, typename Kind>
int launch_grouped(uintptr_t stream, const Gemm *g, int count, Kind kind, Share share = {1}) {
  using First = typename std::tuple_element<0, std::tuple<P...>>::type;
  using Params = typename First::Params;
  if constexpr (has_toolkit<First>) {
    constexpr int BYTES = 4 * std::max({P::FLOATS...}), CLUSTER_BYTES = std::max({4 * P::FLOATS + inbox_of<P>...}), MAX = Group<Params>::MAX;
    static_assert(First::ARCH >= 90 || inbox_of<First> || BYTES <= CP_ASYNC_SHARED,
                  "every GPU of this ARCH has that much, or the caller has checked");
    if (int code = opt_in_shared<grouped_gemm<P...>>(inbox_of<First> ? device().shared : shared_for_occupancy<First>(BYTES, 0))) return code;
    Gemm sorted[KERNELS_MAX_GROUP];
    std::copy(g, g + count, sorted);
    std::stable_sort(sorted, sorted + count, [&](const Gemm &a, const Gemm &b) { return kind(a) < kind(b); });
    int launches = ceil_div(count, MAX);
    for (int i = 0, n; i < count; i += n, launches--) {
      Group<Params> group;
      n = ceil_div(count - i, launches);
      for (int j = 0; j < n; j++)
        if (int code = add_to_group<P...>(group, j, kind(sorted[i + j]), sorted[i + j])) return code;
      int ctas = group.ends[n - 1], cluster = First::CLUSTER;
      size_t bytes = shared_for_occupancy<First>(BYTES, ctas);
      if constexpr (inbox_of<First> > 0) {
        const int k = std::min_element(sorted + i, sorted + i + n, [](const Gemm &a, const Gemm &b) { return a.k < b.k; })->k;
        static_assert(First::CLUSTER == 1 && ((inbox_of<P> > 0 && P::K_MULTIPLE == First::K_MULTIPLE) && ...), "clusters and inboxes of one kind");
        cluster = split_k(k, ctas, share, CLUSTER_BYTES);
        ctas *= cluster;
        for (int j = 0; j < n; j++) group.ends[j] *= cluster, group.gemms[j].k_cta = k_of_cta(group.gemms[j].k, cluster, First::K_MULTIPLE);
        if (cluster > 1 || !First::OCCUPANCY) bytes = shared_for_one_wave(cluster > 1 ? CLUSTER_BYTES : BYTES, ctas);
      }
      Launch l = {unsigned(ctas), First::THREADS, bytes, unsigned(cluster)};
      if (int code = launch(stream, l, grouped_gemm<P...>, group)) return code;
    }
    return cudaSuccess;
  }
  return cudaErrorNotSupported;
}

}  // namespace gemm
