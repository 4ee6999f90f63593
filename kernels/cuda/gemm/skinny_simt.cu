// Products with the few rows of a small batch on the CUDA cores, where latency is all
// (matmul_few.cu: on the tensor cores).
#include "few_ffma_update.cuh"
#include "few_ffma.cuh"
#include "few_layer.cuh"

using namespace few_ffma;

namespace {

int gradient(uintptr_t stream, bool vector, const Args &p) {
  if (p.order) return vector ? launch<Update<false, true, true>>(stream, p) : launch<Update<false, true, false>>(stream, p);
  return vector ? launch<Update<false, false, true>>(stream, p) : launch<Update<false, false, false>>(stream, p);
}

bool whole_quads(const Args &p) { return p.vector_a && p.vector_b && p.vector_c; }

}  // namespace

bool matmul_is_few_ffma(int form, int epilogue, const Args &p) {
  using L = few::Layer<KERNELS_NN, KERNELS_STORE, few::Ffma, false, few::QUADS>;
  // Layers of ten classes have a tile of their own.
  if (!p.order && form != KERNELS_NT && p.n <= 16) return false;
  if (form == KERNELS_TN) return matmul_is_few_ffma_update(p);
  // Measured: more tiles, or single floats, are done sooner by matmul.
  return tiles_of(p, few::BM, few::BN) <= (whole_quads(p) ? 3 * device().sms : device().sms / 2) && 4 * L::FLOATS <= device().shared;
}

int matmul_few_ffma(uintptr_t stream, int form, int epilogue, const Args &p) {
  if (form != KERNELS_TN) return few::layer<few::Ffma>(stream, form, epilogue, p);
  return epilogue == KERNELS_ADD ? matmul_few_ffma_updates(stream, &p, 1) : gradient(stream, whole_quads(p), p);
}

bool matmul_is_few_ffma_update(const Args &p) {
  using U = Update<true, false, true>;
  return p.k <= MOST && 4 * U::FLOATS <= device().shared && U::tiles(p) <= INT32_MAX;
}

int matmul_few_ffma_updates(uintptr_t stream, const Args *p, int count) {
#if HAVE_BULK
  if (bulk::possible() && std::all_of(p, p + count, [](const Args &a) { return narrow(a) || whole_quads(a); })) {
    using Inner = BulkUpdate<false>;
    return launch<Narrow<Inner>, BulkUpdate<true>, Inner>(stream, p, count, [](const Args &a) { return narrow(a) ? 0 : a.order ? 1 : 2; });
  }
#endif
  using Inner = Update<true, false, true>;
  return launch<Narrow<Inner>, Update<true, true, true>, Inner, Update<true, true, false>, Update<true, false, false>>(
      stream, p, count, [](const Args &a) { return narrow(a) ? 0 : (a.order ? 1 : 2) + (whole_quads(a) ? 0 : 2); });
}
