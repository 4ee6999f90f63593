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
#include "few_update.cuh"

using namespace few;

namespace {

// What the operands of a product allow.
Lines lines(const Args &p, bool batch) {
  if (!(p.vector_a && p.vector_b && p.vector_c) || !p.k) return SINGLE;
  if (!batch) return bulk::possible() && p.k <= 128 ? BULK : QUADS;
  return p.k % CHUNK ? QUADS : bulk::possible() ? BULK : WHOLE;
}

// with calls f with lines as a type.
template <typename F>
int with(Lines lines, F f) {
  switch (lines) {
    case SINGLE: return f(std::integral_constant<Lines, SINGLE>());
    case QUADS: return f(std::integral_constant<Lines, QUADS>());
    case WHOLE: return f(std::integral_constant<Lines, WHOLE>());
#if HAVE_BULK
    case BULK: return f(std::integral_constant<Lines, BULK>());
#endif
  }
  return cudaErrorInvalidValue;
}

template <bool THREE>
int layer(uintptr_t stream, int form, int epilogue, const Args &p) {
  return with(lines(p, true), [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value;
    switch (form * 4 + epilogue) {
#define LAYER(FORM, EPILOGUE, IMAGES) launch<Layer<KERNELS_##FORM, KERNELS_##EPILOGUE, THREE, IMAGES, L>>(stream, p)
      case KERNELS_NN * 4 + KERNELS_STORE: return p.order ? LAYER(NN, STORE, true) : LAYER(NN, STORE, false);
      case KERNELS_NN * 4 + KERNELS_RELU: return p.order ? LAYER(NN, RELU, true) : LAYER(NN, RELU, false);
      case KERNELS_NT * 4 + KERNELS_STORE: return LAYER(NT, STORE, false);
      case KERNELS_NT * 4 + KERNELS_MASK: return LAYER(NT, MASK, false);
#undef LAYER
    }
    return cudaErrorInvalidValue;
  });
}

template <bool THREE, bool ADD, bool IMAGES>
int update(uintptr_t stream, const Args &p) {
  return with(lines(p, false), [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value == WHOLE || !ADD && decltype(l)::value == BULK ? QUADS : decltype(l)::value;
    return launch<Update<THREE, ADD, IMAGES, L, L>>(stream, p);
  });
}

// A narrow update is that of a head, of whose columns nothing needs to be known.
bool narrow(const Args &p) { return p.n <= 16 && !p.order; }

template <bool THREE>
int updates(uintptr_t stream, const Args *p, int count) {
  Lines least = BULK;
  for (int i = 0; i < count; i++)
    least = std::min(least, !narrow(p[i]) ? lines(p[i], false) : !p[i].vector_a ? SINGLE : bulk::possible() ? BULK : QUADS);
  return with(least, [&](auto l) -> int {
    constexpr Lines L = decltype(l)::value == WHOLE ? QUADS : decltype(l)::value;
    using Inner = Update<THREE, true, false, L, L>;
    using First = Update<THREE, true, true, L, L>;
    using Head = Narrow<THREE, L>;
    using Params = typename Inner::Params;
    constexpr int MOST = List<Params>::MOST;
    List<Params> list;
    for (int i = 0, n; i < count; i += n) {
      n = std::min(MOST, count - i);
      for (int j = 0; j < n; j++) {
        const Args &a = p[i + j];
        if (int code = narrow(a) ? add<Head>(list, j, 2, a) : a.order ? add<First>(list, j, 1, a) : add<Inner>(list, j, 0, a))
          return code;
      }
      if (int code = launch<Inner, First, Head>(stream, list, n)) return code;
    }
    return cudaSuccess;
  });
}

}  // namespace

bool matmul_is_few(int form, int epilogue, const Args &p) {
  // Of images these are the only products; how many rows are few was measured.
  if (p.order) return true;
  int64_t room = 2 * device().sms;
  if (form == KERNELS_TN) return epilogue == KERNELS_ADD && p.k <= 128 && (bulk::possible() || tiles_of(p, 112, 48) <= room);
  return p.n > 16 && p.k > 32 && p.k <= 1024 && tiles_of(p, 16, 24) <= room;
}

int matmul_few(uintptr_t stream, int form, int epilogue, bool three, const Args &p) {
  if (form != KERNELS_TN) return three ? layer<true>(stream, form, epilogue, p) : layer<false>(stream, form, epilogue, p);
  if (epilogue == KERNELS_ADD) {
    if (p.order) return three ? update<true, true, true>(stream, p) : update<false, true, true>(stream, p);
    return three ? update<true, true, false>(stream, p) : update<false, true, false>(stream, p);
  }
  if (p.order) return three ? update<true, false, true>(stream, p) : update<false, false, true>(stream, p);
  return three ? update<true, false, false>(stream, p) : update<false, false, false>(stream, p);
}

int matmul_few_updates(uintptr_t stream, bool three, const Args *p, int count) {
  return three ? updates<true>(stream, p, count) : updates<false>(stream, p, count);
}
