// Split-K: several groups of threads (intra-CTA) or several CTAs (cluster split-K) each sum a part of k of
// the same tile. TileEpilogue adds their sums in a fixed order and applies the epilogue.
#pragma once

#include <type_traits>

#include "cluster.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"

namespace gemm {

// TileEpilogue reduces split-K and applies the epilogue to a CTA's tile, BM×BN. Each of SLICES groups of
// threads has left its sums in shared memory, in rows LD floats apart; slices are PART floats apart. In
// cluster split-K a CTA finishes 1/ranks of the tile: it receives all CTAs' sums of that share in its inbox,
// by DSMEM. BF16: the GEMM is in bf16. COPIES_OLD: the epilogue's source, of floats, is copied to shared
// memory, where registers are few.
template <int LAYOUT, int BM, int BN, int LD, int PART, int SLICES, int THREADS, bool BF16 = false, bool COPIES_OLD = false>
struct TileEpilogue {
  static constexpr int ROW = BN / 4, ALL = BM * ROW;  // float4s
  static constexpr int PER_THREAD = ceil_div(ALL, THREADS);
  static constexpr bool OLD = LAYOUT != NN;

  const Gemm &g;
  Epilogue<LAYOUT> epilogue;
  int m0, n0, rank, ranks, share, first, end;
  float4 old[OLD && !COPIES_OLD ? PER_THREAD : 1], *copied = nullptr;  // of COPIES_OLD, PER_THREAD·THREADS

  // A thread finishes every THREADS-th float4 of the tile from first to end, the CTA's share. Unsigned
  // division takes fewer registers.
  __device__ TileEpilogue(const Gemm &gemm, int m, int n, int r, int rs)
      : g(gemm), epilogue{gemm}, m0(m), n0(n), rank(r), ranks(rs), share(ceil_div(unsigned(ALL), unsigned(rs))), first(share * r + threadIdx.x),
        end(min(ALL, share * (r + 1))) {}

  // read_old starts to read the epilogue's source. Its copies must have landed before write, for which their
  // own thread waits.
  __device__ void read_old() {
    if (!OLD || !epilogue.fused()) return;
    using Source = typename std::conditional<BF16 && LAYOUT == NT, bf16, float>::type;
    auto olds = (const Source *)epilogue.source();
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      int e = first + i * THREADS, y = m0 + e / ROW, x = n0 + e % ROW * 4;
      if (e >= end || y >= g.m || x >= g.n) continue;
      auto from = olds + int64_t(y) * g.n + x;
      if constexpr (COPIES_OLD) {
        cp_async_float4(g.aligned_c, unsigned(__cvta_generic_to_shared(copied + i * THREADS + threadIdx.x)), from, g.n - x);
      } else {
        old[i] = ld_float4(g.aligned_c, from, g.n - x);
      }
    }
  }

  // store stores the results of four elements.
  __device__ void store(int64_t at, float4 v, int left) {
    if (BF16 && LAYOUT != TN && epilogue.fused()) st_float4(g.aligned_c, (bf16 *)g.c + at, v, left);
    else st_float4(g.aligned_c, g.c + at, v, left);
    if (BF16 && LAYOUT == TN && g.rounded) st_float4(g.aligned_c, g.rounded + at, v, left);
  }

  // reduce_slices adds the slices' sums of the e-th float4, in the order of slices.
  __device__ static float4 reduce_slices(const float *parts, int e) {
    const float *from = parts + e / ROW * LD + e % ROW * 4;
    float4 v = *(const float4 *)from;
#pragma unroll
    for (int s = 1; s < SLICES; s++) v = v + *(const float4 *)(from + s * PART);
    return v;
  }

  // exchange writes this CTA's sums to the inboxes of the CTAs that finish them.
  __device__ void exchange(const float *parts, float4 *inbox) {
    barrier_cluster_wait();  // for SplitK's arrival of the others
#pragma unroll 1
    for (int e = threadIdx.x; e < ALL; e += THREADS) {
      int owner = e / share;
      st_shared_cluster(mapa(inbox + (rank - owner) * share + e, owner), reduce_slices(parts, e));
    }
    barrier_cluster();
  }

  __device__ void write(const float *parts, float4 *inbox) {
    if constexpr (CLUSTERS)
      if (ranks > 1) exchange(parts, inbox);
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
      int e = first + i * THREADS, y = m0 + e / ROW, x = n0 + e % ROW * 4;
      if (e >= end || y >= g.m || x >= g.n) continue;
      float4 v;
      if (ranks == 1) {
        v = reduce_slices(parts, e);
      } else {
        v = inbox[e - share * rank];
#pragma unroll 1
        for (int r = 1; r < ranks; r++) v = v + inbox[e + share * (r - rank)];
      }
      store(int64_t(y) * g.n + x, epilogue(v, COPIES_OLD ? copied[i * THREADS + threadIdx.x] : old[OLD && !COPIES_OLD ? i : 0]), g.n - x);
    }
  }
};

// SplitK is this CTA's part of the work: its tile of c, BM×BN, from row m0 and column n0 on, and the tile's k
// from k0 to k1. Its constructor arrives at the cluster barrier: other CTAs may write to this one's shared
// memory only once it runs.
template <int BM, int BN>
struct SplitK {
  int rank = cluster_ctarank(), ranks = cluster_nctarank(), m0, n0, k0, k1;
  __device__ explicit SplitK(const Gemm &g, int cta) {
    if constexpr (CLUSTERS)
      if (ranks > 1) barrier_cluster_arrive();
    int tiles_n = ceil_div(g.n, BN), tile = cta / ranks;
    m0 = tile / tiles_n * BM, n0 = tile % tiles_n * BN;
    k0 = min(g.k, rank * g.k_cta), k1 = min(g.k, k0 + g.k_cta);
  }
};

// Share says how CTAs share tiles: at most ranks of them each, a power of two or with thirds also 3 or 6, and on_sm CTAs on
// an SM.
struct Share {
  int ranks;
  bool thirds = false;
  int on_sm = 1;
};

// inbox_bytes returns how much shared memory the inbox of a tile's CTA takes. It is of float4s, and each CTA's share of
// them is rounded up.
constexpr int inbox_bytes(int bm, int bn) { return 4 * bm * bn + 16 * (MAX_CLUSTER - 1); }

// split_k returns how many CTAs of a cluster share each of the tiles: the most for which all CTAs run at once, and each
// has at least 64 of k, and bytes of shared memory.
inline int split_k(int k, int64_t tiles, Share share, int bytes) {
  int most = 1;
  if (device().major >= 9 && bytes <= device().shared)
    for (int ranks : {2, 3, 4, 6, 8})
      if (ranks <= share.ranks && tiles * ranks <= share.on_sm * ctas_at_once(ranks) && k >= 64 * ranks && (share.thirds || ranks % 3)) most = ranks;
  return most;
}

// wide says whether tiles of 64 columns are faster than tiles of 32. Each tile reads all rows, so wider tiles read less. There
// must be enough of them: one for each SM or, where clusters share a tile, for a third of the SMs.
inline bool wide(const Gemm &g) { return g.m <= 64 && (device().major >= 9 ? 3 : 1) * ceil_div(g.n, 64) >= device().sms; }

// k_of_cta returns the k of each of a tile's CTAs, rounded up to a multiple. The last CTA has the rest.
inline int k_of_cta(int k, int ranks, int multiple) { return ceil_div(ceil_div(k, ranks), multiple) * multiple; }

// shared_for_one_wave returns how much shared memory a CTA asks for. With PDL, CTAs start while the kernel before still
// runs: two or three would share a free SM, and other SMs would be idle later. So if all CTAs are one wave, each asks
// for more than half of an SM's shared memory.
inline size_t shared_for_one_wave(size_t bytes, int64_t ctas) {
  return ctas <= device().sms && 2 * ctas > device().sms ? std::max(bytes, size_t(device().shared) / 2 + 1024) : bytes;
}

// launch_split_k launches KERNEL, whose tiles are C::BM×C::BN. S::BYTES is the shared memory of a CTA, to which cluster
// split-K adds S::INBOX.
template <auto KERNEL, typename C, typename S, int K_MULTIPLE>
int launch_split_k(uintptr_t stream, Gemm g, Share share) {
  if (int code = opt_in_shared<KERNEL>(device().shared)) return code;
  int64_t all = tiles(g, C::BM, C::BN);
  if (all > INT32_MAX) return cudaErrorInvalidValue;
  int ranks = split_k(g.k, all, share, S::BYTES + S::INBOX);
  g.k_cta = k_of_cta(g.k, ranks, K_MULTIPLE);
  size_t bytes = shared_for_one_wave(S::BYTES + (ranks > 1 ? S::INBOX : 0), all * ranks);
  return launch(stream, {unsigned(all * ranks), C::THREADS, bytes, unsigned(ranks)}, KERNEL, g);
}

}  // namespace gemm
