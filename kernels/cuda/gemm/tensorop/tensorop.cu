// GEMM on the tensor cores by mma.sync, in tf32 and 3xtf32: every layout, of float input, on compute
// capability 8 and later. tensorop.cuh has the mainloop, this file the policies: the tile of a CTA, how many
// warps share it, and how many stages the pipeline has.
#include <type_traits>

#include "gemm/grouped.cuh"
#include "gemm/tensorop/tensorop.cuh"

namespace gemm {

namespace {

using namespace tensorop;

// A policy's Large is for GPUs with DATA_CENTER_SHARED of shared memory for a CTA. Where Large takes more
// than CP_ASYNC_SHARED, its Small is for the others. An SM of those multiplies at most half as fast as one of
// an A100, so that fewer bytes in flight keep it busy.
template <typename Large_, typename Small_ = Large_>
struct Policy {
  using Large = Large_;
  using Small = Small_;
};

// The policies. 3xtf32 needs twice the registers: for hi and lo, and to promote sums.
//
// Square is for shapes that fill the GPU: 1024×784 is 130 tiles of 80×80, or for 3xtf32 112 of 128×56.
template <bool X3>
using Square = Policy<typename std::conditional<X3, Config<128, 56, 16, 4, 1, 2, 4, 1>, Config<80, 80, 16, 1, 2, 4, 3, 1>>::type,
                      Config<128, 56, 16, 4, 1, 2, 3, 1>>;
// Low is for few rows by large weights: 64×2048 is 64 tiles of two CTAs each. Lower is for up to 32 rows, where the
// bytes of weights count: two CTAs on an SM.
using Low = Policy<Config<64, 32, 16, 2, 1, 4, 6, 1>, Config<64, 32, 16, 2, 1, 4, 3, 1>>;
using Lower = Policy<Config<32, 32, 16, 2, 1, 4, 5, 2>>;
// Wide and WideLower are for up to 64 and up to 32 rows where g is wide. An SM has room for two CTAs of WideLower in NN.
using Wide = Policy<Config<64, 64, 16, 2, 2, 2, 8, 1>, Config<64, 64, 16, 2, 2, 2, 4, 1>>;
using WideLower = Policy<Config<32, 64, 16, 1, 2, 4, 4, 2>, Config<32, 64, 16, 1, 2, 4, 3, 2>>;
// Narrow is for a classifier: c is small, so 16 warps share k.
using Narrow = Policy<Config<16, 16, 16, 1, 1, 16, 3, 1>, Config<16, 16, 16, 1, 1, 16, 2, 1>>;
using NarrowWgrad = Policy<Config<16, 16, 32, 1, 1, 4, 4, 1>>;
// WgradWave is for a small batch and tiles for one wave: 784×784 is 130 tiles for 132 SMs. WgradShort is for
// more tiles, WgradLong for a large batch.
using WgradWave = Policy<Config<64, 80, 32, 4, 2, 1, 3, 1>>;
using WgradShort = Policy<Config<64, 128, 32, 2, 4, 1, 2, 2>>;
template <bool X3>
using WgradLong = Policy<typename std::conditional<X3, Config<64, 80, 32, 2, 2, 2, 3, 1>, Config<64, 80, 16, 2, 1, 4, 4, 1>>::type, WgradWave::Large>;
// Unaligned is for rows that are not whole float4: correct, and not fast.
using Unaligned = Policy<Config<128, 56, 16, 4, 1, 2, 4, 1>, Config<128, 56, 16, 4, 1, 2, 3, 1>>;

template <int LAYOUT, bool X3, bool ALIGNED, typename C>
__device__ void run(const Gemm &g, int cta, float *shared) {
  using M = Mainloop<LAYOUT, X3, ALIGNED, C>;
  SplitK<C::BM, C::BN> part(g, cta);
  M mainloop(g, part.m0, part.n0, part.k0, part.k1, shared_address(shared));
  // A small tile leaves registers to read the epilogue's source with the first stages.
  TileEpilogue<LAYOUT, C::BM, C::BN, C::LD, C::PART, C::SLICES, C::THREADS> epilogue(g, part.m0, part.n0, part.rank, part.ranks);
  constexpr bool SMALL = decltype(epilogue)::PER_THREAD <= 6;
  for (int i = 0; i < C::STAGES - 1; i++) mainloop.load(i, i * M::STAGE, g.prefetch_a, g.prefetch_b);
  if (SMALL && g.prefetch_c) epilogue.read_old();
  pdl_wait();
  for (int i = 0; i < C::STAGES - 1; i++) {
    mainloop.load(i, i * M::STAGE, !g.prefetch_a, !g.prefetch_b);
    cp_async_commit_group();
  }
  if (SMALL && !g.prefetch_c) epilogue.read_old();

  mainloop.run();
  if (!SMALL) epilogue.read_old();

  cp_async_wait_group<0>();
  __syncthreads();
  mainloop.store_shared(shared);
  __syncthreads();
  epilogue.write(shared, (float4 *)((char *)shared + Stages<LAYOUT, C>::BYTES));
}

template <int LAYOUT, bool X3, bool ALIGNED, typename C>
__global__ void __launch_bounds__(C::THREADS, C::CTAS) tensorop_gemm(const Gemm g) {
  extern __shared__ __align__(16) float shared[];
  if constexpr (compiled(80)) run<LAYOUT, X3, ALIGNED, C>(g, blockIdx.x, shared);
}

template <int LAYOUT, bool X3, bool ALIGNED, typename C>
int launch_config(uintptr_t stream, const Gemm &g, Share share) {
  return launch_split_k<tensorop_gemm<LAYOUT, X3, ALIGNED, C>, C, Stages<LAYOUT, C>, 8>(stream, g, share);
}

// needs_small says whether there are GPUs that have too little shared memory for a policy's Large.
template <int LAYOUT, typename P>
constexpr bool needs_small() {
  constexpr int BYTES = Stages<LAYOUT, typename P::Large>::BYTES;
  static_assert(BYTES <= DATA_CENTER_SHARED && Stages<LAYOUT, typename P::Small>::BYTES <= CP_ASYNC_SHARED, "a CTA may have that much");
  return BYTES > CP_ASYNC_SHARED;
}

// launch_policy launches a policy's Large or Small.
template <int LAYOUT, bool X3, bool ALIGNED, typename P>
int launch_policy(uintptr_t stream, const Gemm &g, Share share) {
  if constexpr (needs_small<LAYOUT, P>())
    if (device().shared < DATA_CENTER_SHARED) return launch_config<LAYOUT, X3, ALIGNED, typename P::Small>(stream, g, share);
  return launch_config<LAYOUT, X3, ALIGNED, typename P::Large>(stream, g, share);
}

// Wgrads is for grouped.cuh.
template <bool X3, bool ALIGNED, typename C>
struct Wgrads {
  using S = Stages<TN, C>;
  using Params = Gemm;
  static constexpr int ARCH = 80, THREADS = C::THREADS, CTAS = C::CTAS, OCCUPANCY = 0, CLUSTER = 1, FLOATS = S::BYTES / 4, INBOX = S::INBOX,
                       K_MULTIPLE = 8;

  static int64_t ctas(const Gemm &g) { return tiles(g, C::BM, C::BN); }
  static int prepare(Gemm &out, const Gemm &g) { return out = g, cudaSuccess; }
  static __device__ void run(const Gemm &g, int cta, float *shared) { gemm::run<TN, X3, ALIGNED, C>(g, cta, shared); }
};

// launch_wgrads launches wgrads by a policy.
template <bool X3, bool ALIGNED, typename P>
int launch_wgrads(uintptr_t stream, const Gemm *g, int count, Share share) {
  auto kind = [](const Gemm &) { return 0; };
  if constexpr (needs_small<TN, P>())
    if (device().shared < DATA_CENTER_SHARED) return launch_grouped<Wgrads<X3, ALIGNED, typename P::Small>>(stream, g, count, kind, share);
  return launch_grouped<Wgrads<X3, ALIGNED, typename P::Large>>(stream, g, count, kind, share);
}

// launch_precision launches the policy of g's precision.
template <int LAYOUT, bool ALIGNED, typename Tf32, typename Tf32x3 = Tf32>
int launch_precision(uintptr_t stream, const Gemm &g, Share share) {
  if (g.precision == KERNELS_TF32X3) return launch_policy<LAYOUT, true, ALIGNED, Tf32x3>(stream, g, share);
  return launch_policy<LAYOUT, false, ALIGNED, Tf32>(stream, g, share);
}

constexpr bool ALIGNED = true;

template <typename Tf32, typename Tf32x3 = Tf32>
int launch_forward_dgrad(uintptr_t stream, const Gemm &g, Share share) {
  if (g.layout == NN) return launch_precision<NN, ALIGNED, Tf32, Tf32x3>(stream, g, share);
  return launch_precision<NT, ALIGNED, Tf32, Tf32x3>(stream, g, share);
}

}  // namespace

int tensorop_unaligned(uintptr_t stream, const Gemm &g) {
  if (g.layout == NN) return launch_precision<NN, !ALIGNED, Unaligned>(stream, g, {4});
  if (g.layout == NT) return launch_precision<NT, !ALIGNED, Unaligned>(stream, g, {4});
  return launch_precision<TN, !ALIGNED, Unaligned>(stream, g, {MAX_CLUSTER, true});  // 333×333 has 18 tiles, of six CTAs each
}

int tensorop_narrow(uintptr_t stream, const Gemm &g) { return launch_precision<NN, !ALIGNED, Narrow>(stream, g, {MAX_CLUSTER}); }

int tensorop_narrow_wgrads(uintptr_t stream, const Gemm *g, int count) {
  const Share share{g->k <= 256 ? 1 : MAX_CLUSTER};
  return g->precision == KERNELS_TF32 ? launch_wgrads<false, !ALIGNED, NarrowWgrad>(stream, g, count, share)
                                      : launch_wgrads<true, !ALIGNED, NarrowWgrad>(stream, g, count, share);
}

int tensorop_low(uintptr_t stream, const Gemm &g) {
  constexpr Share LOW{4}, LOWER{MAX_CLUSTER, false, 2};
  if (wide(g) && g.m > 32) return launch_forward_dgrad<Wide>(stream, g, LOW);
  if (wide(g)) return launch_forward_dgrad<WideLower>(stream, g, {MAX_CLUSTER, false, g.layout == NN ? 2 : 1});
  return g.m <= 32 ? launch_forward_dgrad<Lower>(stream, g, LOWER) : launch_forward_dgrad<Low>(stream, g, LOW);
}

int tensorop_square(uintptr_t stream, const Gemm &g) { return launch_forward_dgrad<Square<false>, Square<true>>(stream, g, {4}); }

bool tensorop_wgrad_wave_fits(const Gemm &g) { return int64_t(g.m) * g.n <= int64_t(WgradWave::Large::BM * WgradWave::Large::BN) * device().sms; }

int tensorop_wgrad_wave(uintptr_t stream, const Gemm &g) { return launch_precision<TN, ALIGNED, WgradWave>(stream, g, {1}); }

int tensorop_wgrad_short(uintptr_t stream, const Gemm &g) { return launch_precision<TN, ALIGNED, WgradShort>(stream, g, {1}); }

int64_t wgrad_long_tiles(const Gemm &g) { return tiles(g, WgradLong<false>::Large::BM, WgradLong<false>::Large::BN); }

int tensorop_wgrads_long(uintptr_t stream, const Gemm *g, int count) {
  const Share share{MAX_CLUSTER, true};
  return g->precision == KERNELS_TF32 ? launch_wgrads<false, ALIGNED, WgradLong<false>>(stream, g, count, share)
                                      : launch_wgrads<true, ALIGNED, WgradLong<true>>(stream, g, count, share);
}

}  // namespace gemm
