// Products with the few rows of a small batch: all latency, no throughput.
//
// What a product waits for is what the kernel before it has just made; all else is
// old, and is read while that kernel still runs (see follow). So the tile of a block
// is low, 16 rows of the batch by 24 columns, 132 tiles for 64×784: little to wait
// for, the same for each multiprocessor, and room for the next kernel's blocks
// beside these. The k of a tile is dealt to seven warps, as 784 is 7×112, whose sums
// are added at the end, in order.
//
// Where the hardware can, tiles are copied in bulk, and blocks come in pairs that
// share what both need: half the bytes, and a few instructions for hundreds.
#include "few_layer.cuh"
#include "few_tensor.cuh"
#include "few_update.cuh"

using namespace few;

namespace {

template <bool THREE, bool IMAGES>
int gradient(uintptr_t stream, const Args &p) {
  if (lines(p, false) == SINGLE) return launch<Update<THREE, false, IMAGES, SINGLE, SINGLE>>(stream, p);
  return launch<Update<THREE, false, IMAGES, QUADS, QUADS>>(stream, p);
}

template <bool THREE>
int updates(uintptr_t stream, const Args *p, int count) {
  Lines least = BULK;
  for (int i = 0; i < count; i++)
    least = std::min(least, !narrow(p[i]) ? lines(p[i], false) : !p[i].vector_a ? SINGLE : bulk::possible() ? BULK : QUADS);
  return with(least, [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value == WHOLE ? QUADS : decltype(l)::value;
    return launch<Update<THREE, true, false, L, L>, Update<THREE, true, true, L, L>, Narrow<THREE, L>>(
        stream, p, count, [](const Args &a) { return narrow(a) ? 2 : a.order ? 1 : 0; });
  });
}

}  // namespace

bool matmul_is_few(int form, int epilogue, const Args &p) {
  // Of images these are the only products; how many rows are few was measured.
  if (p.order) return true;
  int64_t room = 2 * device().sms;
  if (form == KERNELS_TN) return epilogue == KERNELS_ADD && p.k <= 128 && (bulk::possible() || tiles_of(p, 112, 48) <= room);
  return p.n > 16 && p.k > 32 && p.k <= 1024 && tiles_of(p, BM, BN) <= room;
}

int matmul_few(uintptr_t stream, int form, int epilogue, bool three, const Args &p) {
  if (form != KERNELS_TN) return three ? layer<Tensor<true>>(stream, form, epilogue, p) : layer<Tensor<false>>(stream, form, epilogue, p);
  if (epilogue == KERNELS_ADD) return matmul_few_updates(stream, three, &p, 1);
  if (p.order) return three ? gradient<true, true>(stream, p) : gradient<false, true>(stream, p);
  return three ? gradient<true, false>(stream, p) : gradient<false, false>(stream, p);
}

int matmul_few_updates(uintptr_t stream, bool three, const Args *p, int count) {
  return three ? updates<true>(stream, p, count) : updates<false>(stream, p, count);
}
