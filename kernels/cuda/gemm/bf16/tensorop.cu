// GEMM in bf16 on the tensor cores by mma.sync: every layout, shape and alignment, on compute capability 8
// and later. tensorop.cuh has the mainloop, this file the policies: the tile of a CTA, how many warps share
// it, and how many stages their pipelines have.
#include "gemm/bf16/tensorop.cuh"

namespace gemm {

namespace {

using namespace bfloat;

// Skinny is for few rows, where latency counts: 64×784 is 132 tiles, one for each SM of an H200, and the CTAs
// of the next kernel fit on the SM as well, to prefetch their weights. Seven warps share k, as 784 is 7×112,
// and all of it is copied at once.
struct Skinny : Config<16, 24, 64, 1, 1, 7, 2, 2> {};
// Low is for few rows by large weights. Lower is for up to 64 rows, where the bytes of weights count: 32×2048 is 32 tiles
// of four CTAs each, two of which run on an SM.
struct Low : Config<64, 32, 32, 2, 1, 4, 3, 1> {};
struct Lower : Config<32, 64, 32, 1, 2, 4, 3, 2> {};
// Wide is for 33 to 64 rows where g is wide.
struct Wide : Config<64, 64, 32, 2, 2, 2, 4, 2> {};
// Medium is for shapes that do not fill the GPU, Square for those that do: two CTAs on an SM.
struct Medium : Config<64, 64, 32, 2, 2, 2, 3, 2> {};
struct Square : Config<128, 128, 32, 2, 4, 1, 4, 2> {};
// Unaligned is for rows that are not whole chunks: correct, and not fast. It stores to shared memory without
// cp.async. It has one slice, since compute-sanitizer's racecheck reports such stores as races where named
// barriers divide them.
struct Unaligned : Config<64, 64, 32, 2, 2, 1, 2, 3> {};
// Wgrad is for wgrads of a small batch: four layers of 784×784 are 392 tiles, and NarrowWgrad takes four more
// for their classifier: three on each SM. A batch of 128 is copied at once. Both are also for a large batch by small
// weights, whose k clusters divide.
struct Wgrad : Config<112, 56, 64, 7, 1, 1, 2, 3> {};
struct NarrowWgrad : Config<224, 16, 64, 7, 1, 1, 2, 3> {};
// LongNarrowWgrad is for that of a classifier and a large batch.
struct LongNarrowWgrad : Config<64, 16, 32, 2, 1, 4, 3, 1> {};

template <typename P>
int launch_tensorop(uintptr_t stream, const Gemm &g, Share share) {
  return launch_split_k<single_gemm<P>, P, P, 16>(stream, g, share);
}

// launch_layout is launch_tensorop of g's layout, with both operands copied in the same way.
template <typename C, int ACCESS>
int launch_layout(uintptr_t stream, const Gemm &g, Share share) {
  if (g.layout == NN) return launch_tensorop<Tensorop<NN, C, ACCESS, ACCESS>>(stream, g, share);
  if (g.layout == NT) return launch_tensorop<Tensorop<NT, C, ACCESS, ACCESS>>(stream, g, share);
  return launch_tensorop<Tensorop<TN, C, ACCESS, ACCESS>>(stream, g, share);
}

template <typename C>
int launch_forward_dgrad(uintptr_t stream, const Gemm &g, Share share) {
  return g.layout == NN ? launch_tensorop<Tensorop<NN, C>>(stream, g, share) : launch_tensorop<Tensorop<NT, C>>(stream, g, share);
}

}  // namespace

int64_t bf16_skinny_tiles(const Gemm &g) { return tiles(g, Skinny::BM, Skinny::BN); }

int bf16_skinny(uintptr_t stream, const Gemm &g) {
  // OCCUPANCY: see skinny.cuh.
  if (g.layout == NT) return launch_single<Tensorop<NT, Skinny, CP_ASYNC, CP_ASYNC, 2>>(stream, g);
  if (g.indices) return launch_single<Tensorop<NN, Skinny, PIXELS, CP_ASYNC, 1>>(stream, g);
  return launch_single<Tensorop<NN, Skinny, CP_ASYNC, CP_ASYNC, 2>>(stream, g);
}

int bf16_low(uintptr_t stream, const Gemm &g) {
  if (g.indices) return launch_tensorop<Tensorop<NN, Low, PIXELS>>(stream, g, {4});
  if (g.m > 32 && wide(g)) return launch_forward_dgrad<Wide>(stream, g, {4});
  // Without clusters the wider tiles of Lower would be too few.
  const bool lower = g.m <= 64 && device().major >= 9;
  return lower ? launch_forward_dgrad<Lower>(stream, g, {MAX_CLUSTER, false, 2}) : launch_forward_dgrad<Low>(stream, g, {4});
}

int bf16_medium(uintptr_t stream, const Gemm &g) { return launch_layout<Medium, CP_ASYNC>(stream, g, {4}); }

int64_t bf16_square_tiles(const Gemm &g) { return tiles(g, Square::BM, Square::BN); }

int bf16_square(uintptr_t stream, const Gemm &g) { return launch_layout<Square, CP_ASYNC>(stream, g, {1}); }

int bf16_unaligned(uintptr_t stream, const Gemm &g) { return launch_layout<Unaligned, ANY>(stream, g, {MAX_CLUSTER}); }

int bf16_narrow_wgrad(uintptr_t stream, const Gemm &g) {
  return launch_tensorop<Tensorop<TN, LongNarrowWgrad, CP_ASYNC, ANY>>(stream, g, {MAX_CLUSTER});
}

int bf16_wgrads(uintptr_t stream, const Gemm *g, int count) {
  constexpr int OCCUPANCY = 3;
  constexpr bool COPIES_OLD = true;
  const Share share{g->k > 2 * SMALL_BATCH ? MAX_CLUSTER : 1, false, 2};
  auto kind = [](const Gemm &one) { return one.narrow() ? 0 : one.indices ? 1 : 2; };
  return launch_grouped<Tensorop<TN, NarrowWgrad, CP_ASYNC, ANY, OCCUPANCY>, Tensorop<TN, Wgrad, PIXELS, CP_ASYNC, OCCUPANCY, COPIES_OLD>,
                        Tensorop<TN, Wgrad, CP_ASYNC, CP_ASYNC, OCCUPANCY, COPIES_OLD>>(stream, g, count, kind, share);
}

}  // namespace gemm
