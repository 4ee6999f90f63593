// The table of the kernels of GEMM. The first row that fits a GEMM computes it. Each row in turn takes all GEMMs of a group
// that it fits. Every GEMM fits one of the last rows of its precision.
#include <algorithm>

#include "gemm.cuh"
#include "tma.cuh"

namespace gemm {

namespace {

enum { ON_NN = 1 << NN, ON_NT = 1 << NT, ON_TN = 1 << TN, FORWARD_DGRAD = ON_NN | ON_NT, ANY_LAYOUT = FORWARD_DGRAD | ON_TN };
enum { FP32 = 1 << KERNELS_FP32, TENSOR = 1 << KERNELS_TF32 | 1 << KERNELS_TF32X3, ANY_FLOAT = FP32 | TENSOR, BF16 = 1 << KERNELS_BF16 };
// What a GPU must have: nothing, cp.async and tensor cores for tf32 (compute capability 8.0 and later), TMA
// (9.x), or warpgroup MMA (9.0).
enum Needs { NOTHING, CP_ASYNC, TMA, WARPGROUP };

bool has(Needs needs) {
  static const bool available[] = {true, device().major >= 8 && device().shared >= CP_ASYNC_SHARED,
                                   device().shared >= DATA_CENTER_SHARED && tma_possible(), warpgroup_possible()};
  return available[needs];
}

struct Row {
  const char *name;  // in documents
  int layouts, precisions;
  Needs needs;
  bool (*fits)(const Gemm &);
  int (*single)(uintptr_t stream, const Gemm &);              // launches one GEMM. A row has either this
  int (*grouped)(uintptr_t stream, const Gemm *, int count);  // or this, which launches several at once
  bool (*enough)(const Gemm *, int count);                    // if not null, whether the row takes this group
  bool stores_t;                                              // it also stores cᵀ if g.t is set
};

bool always(const Gemm &) { return true; }

bool aligned_operands(const Gemm &g) { return g.aligned_a && g.aligned_b; }

bool aligned_values(const Gemm &g) { return aligned_operands(g) && !g.indices; }

double work(const Gemm &g) { return double(g.m) * g.n * g.k; }

// chain_fits says whether the multiplications take less time than a launch. For more multiplications other kernels are
// faster, but not in float32 if n and k are at most 32.
bool chain_fits(const Gemm &g) {
  const bool half = g.precision == KERNELS_BF16;
  const int side = std::max(g.n, g.k);
  return g.aligned() && !g.indices && !g.t && g.k > 0 && side <= CHAIN_SIDE && (work(g) <= (half ? 1 << 21 : 1 << 22) || (!half && side <= 32));
}

bool skinny_fits(const Gemm &g, int ctas_per_sm) { return g.aligned() && g.k > 0 && skinny_tiles(g) <= ctas_per_sm * device().sms; }

// low_tiles returns how many tiles of 64×32, those of low-tensorop, cover c.
int64_t low_tiles(const Gemm &g) { return tiles(g, 64, 32); }

// third_row_tile says whether other kernels would compute a third row of tiles, of 64 rows each. Only GPUs with TMA
// were measured.
bool third_row_tile(const Gemm &g) { return device().major >= 9 && g.m > 128 && g.m <= 192; }

bool skinny_tensorop_fits(const Gemm &g) {
  // No other kernel is fast with uint8 input. The bounds for float input were measured.
  if (g.indices) return g.aligned() && g.k > 0;
  // low-tensorop divides the k of a tile between two CTAs. It waits if they are more than a wave.
  bool low_waits = g.precision == KERNELS_TF32X3 && third_row_tile(g) && g.k <= 896 && 2 * low_tiles(g) > device().sms;
  return g.k <= 1024 && skinny_fits(g, low_waits ? 3 : 2);
}

bool skinny_simt_fits(const Gemm &g) { return (g.layout == NT || !g.narrow()) && skinny_fits(g, g.indices || third_row_tile(g) ? 3 : 2); }

// low_in_one_wave says whether the tiles of low are at most one for each SM. Only GPUs with TMA were measured.
bool low_in_one_wave(const Gemm &g) { return device().major >= 9 && low_tiles(g) <= device().sms; }

bool low_tensorop_fits(const Gemm &g) {
  const bool tf32 = g.precision == KERNELS_TF32, column_of_tiles = device().major >= 9 && g.n <= 32;
  return aligned_values(g) && (g.m <= 128 || low_in_one_wave(g) || (tf32 && (g.m <= 256 || column_of_tiles)));
}

// thin says whether tiles of 80 or 128 columns would be mostly zeros, and k is so short that the CUDA cores keep up.
bool thin(const Gemm &g) { return device().major >= 9 && g.n > 32 && g.n <= 96 && g.k <= 128; }

// wgrad_small says whether a wgrad joins the group of the others, which have up to most rows. That of a classifier does.
bool wgrad_small(const Gemm &g, int most) {
  return g.k > 0 && g.k <= most && (g.narrow() ? g.aligned_a || g.precision == KERNELS_FP32 : g.aligned());
}

bool wgrad_simt_fits(const Gemm &g) { return wgrad_small(g, SMALL_BATCH); }

bool wgrad_simt_tma_fits(const Gemm &g) { return wgrad_small(g, 2 * SMALL_BATCH); }

bool wgrad_tensorop_fits(const Gemm &g) {
  if (g.indices) return g.aligned() && g.k > 0;
  return wgrad_small(g, SMALL_BATCH) && wgrad_tensorop_tiles(g) <= 2 * device().sms;
}

// By TMA sums in 3xtf32 are not promoted, so that a larger batch would be less exact.
bool wgrad_tensorop_tma_fits(const Gemm &g) { return wgrad_small(g, g.precision == KERNELS_TF32 ? 2 * SMALL_BATCH : SMALL_BATCH); }

// bf16_fills says whether the GEMM has large tiles for two thirds of the SMs.
bool bf16_fills(const Gemm &g) { return 3 * bf16_square_tiles(g) >= 2 * device().sms; }

// With k up to 2·SMALL_BATCH, operands have as many bytes as those of SMALL_BATCH in float32.
// A larger k is divided among CTAs. That is for weights that warpgroup MMA does not take, if they have a large tile for at
// most a quarter of the SMs.
bool bf16_wgrad_fits(const Gemm &g) {
  if (g.indices) return aligned_operands(g) && g.k > 0;
  const bool any_k = device().major >= 9 && 4 * bf16_square_tiles(g) <= device().sms && (g.m < 128 || (g.n < 128 && !g.narrow()));
  return g.k > 0 && (any_k || g.k <= (bf16_fills(g) ? 1 : 2) * SMALL_BATCH) && g.aligned_a && (g.narrow() || g.aligned_b);
}

bool bf16_skinny_fits(const Gemm &g) {
  const int most = device().major >= 9 ? 1024 : 2048;  // clusters can divide a larger k
  return g.aligned() && g.k > 0 && g.k <= most && bf16_skinny_tiles(g) <= (g.n <= 32 ? 1 : 2) * device().sms;
}

bool bf16_low_fits(const Gemm &g) {
  const bool any_rows = device().major >= 9 && g.n <= 32;
  return aligned_operands(g) && g.k > 0 && (g.m <= 256 || g.indices || any_rows || (g.m <= 320 && low_in_one_wave(g)));
}

// The least multiplications of warpgroup MMA, of which bf16 needs fewer by large weights, and the smallest side of float32
// weights. 784 × 256 × 784 is 1.6e8, where other kernels are as fast.
constexpr double WARPGROUP_MIN_WORK = 2e8;
constexpr int WARPGROUP_MIN_SIDE = 132;

// warpgroup_rows says whether forward or dgrad has enough rows for warpgroup MMA. Up to 64 rows other kernels read the
// weights once as well, so the weights must be large. In 3xtf32 low-tensorop is as fast up to 127 rows, if its tiles
// are one wave.
bool warpgroup_rows(const Gemm &g) {
  if (g.precision == KERNELS_TF32X3) return g.m >= 128 || (g.m > 32 && low_tiles(g) > device().sms);
  return g.m > 64 || (g.m > 32 && double(g.n) * g.k >= (g.precision == KERNELS_BF16 ? 4e6 : 5e6));
}

bool warpgroup_large(const Gemm &g) {
  const int side = std::min(g.n, g.layout == TN ? g.m : g.k);
  // wgrads of a small batch are in one launch with the classifier's, which needs no transposed dy.
  const bool rows = g.layout == TN ? g.k > SMALL_BATCH : warpgroup_rows(g);
  return g.aligned() && !g.indices && rows && side >= WARPGROUP_MIN_SIDE && work(g) >= WARPGROUP_MIN_WORK;
}

// warpgroup_wgrad_fits does not depend on the group of a wgrad, since kernels_wants_transposed promises that
// t is read. For smaller weights, here less than 256×256 with 132 SMs, other kernels, whose tiles are smaller, are faster.
bool warpgroup_wgrad_fits(const Gemm &g) { return g.t && g.aligned_t && warpgroup_large(g) && double(g.m) * g.n >= 480. * device().sms; }

bool bf16_warpgroup_fits(const Gemm &g) {
  if (!g.aligned() || g.indices || g.n < 128) return false;
  // Up to 2·SMALL_BATCH rows small wgrads are in one launch with the classifier's.
  if (g.layout == TN) return g.m >= 128 && (g.k > 2 * SMALL_BATCH || (g.k == 2 * SMALL_BATCH && work(g) >= WARPGROUP_MIN_WORK));
  return g.k >= 128 && warpgroup_rows(g) && work(g) >= (std::min(g.n, g.k) < 896 ? 1 : 0.7) * WARPGROUP_MIN_WORK;
}

int64_t sum(const Gemm *g, int count, int64_t (*tiles)(const Gemm &)) {
  int64_t all = 0;
  for (int i = 0; i < count; i++) all += tiles(g[i]);
  return all;
}

// bf16_warpgroup_enough says whether the narrowest tiles in split-K have CTAs for half of the SMs, or for a quarter in
// forward and dgrad. These tiles are half as wide as the tiles that warpgroup_tiles counts, and two CTAs share each. Two
// wgrads or more are always faster in one launch.
bool bf16_warpgroup_enough(const Gemm *g, int count) { return count > 1 || (g->layout == TN ? 8 : 16) * warpgroup_tiles(*g) >= device().sms; }

// wgrad_long_waves says whether wgrad-long has more tiles than that many waves.
bool wgrad_long_waves(const Gemm *g, int count, int waves) { return sum(g, count, wgrad_long_tiles) > waves * device().sms; }

// small_wgrads_enough says whether one launch for count wgrads, the classifier's among them, is faster than other
// kernels. It takes longer with k, since it does not divide k among CTAs: wgrad-long does, so in tf32 it is faster for
// more than 192 rows if its tiles are at most a wave. All wgrads have the same k.
bool small_wgrads_enough(const Gemm *g, int count) {
  const bool tf32 = g->precision == KERNELS_TF32;
  if (tf32 && g->k > 192 && !wgrad_long_waves(g, count, 1)) return false;
  return g->k <= SMALL_BATCH || (count > 1 && g->k <= std::max(64 * count, tf32 ? 192 : 0));
}

// wgrad_large_enough says whether wgrad-large is faster than the rows below. It does not divide k among CTAs, so
// wgrad-long must have more tiles than a wave, or than two from k = 512 on. Up to 256 rows there must also be many wgrads,
// or three waves: otherwise a launch for each is faster.
bool wgrad_large_enough(const Gemm *g, int count) {
  const int each = g->precision == KERNELS_TF32X3 ? 104 : 130;
  return wgrad_long_waves(g, count, g->k < 512 ? 1 : 2) && (g->k > 2 * SMALL_BATCH || g->k <= each * count - 64 || wgrad_long_waves(g, count, 3));
}

// one_by_one says whether a launch for each wgrad is faster than wgrad-long. Only GPUs with clusters were measured.
bool one_by_one(const Gemm *g, int count) { return count == 1 || device().major < 9 || wgrad_long_waves(g, count, 1); }

// bf16_wgrads_enough says whether bf16-wgrads takes this group. Of a large k it takes two wgrads or more, and three if all
// are narrow: fewer are faster in launches of other kernels. It takes uint8 input whatever k is.
bool bf16_wgrads_enough(const Gemm *g, int count) {
  const bool narrow = std::all_of(g, g + count, [](const Gemm &one) { return one.narrow(); });
  return g->k <= 2 * SMALL_BATCH || g->indices || count > (narrow ? 2 : 1);
}

// Every row has its reason; TUNING.md has the gains.
const Row rows[] = {
    // Hidden layers of a narrow network, of all in one launch.
    {"chain", FORWARD_DGRAD, ANY_FLOAT | BF16, CP_ASYNC, chain_fits, nullptr, chain},

    // --- float32 on the CUDA cores ---

    // wgrads of a small batch, of all layers in one launch, which gives every SM an equal share.
    {"wgrad-simt-tma", ON_TN, FP32, TMA, wgrad_simt_tma_fits, nullptr, wgrad_simt_tma, small_wgrads_enough},
    {"wgrad-simt", ON_TN, FP32, CP_ASYNC, wgrad_simt_fits, nullptr, wgrad_simt},
    // Few rows: latency counts. With more tiles, the larger ones of simt are faster.
    {"skinny-simt-tma", FORWARD_DGRAD, FP32, TMA, skinny_simt_fits, skinny_simt_tma},
    {"skinny-simt", FORWARD_DGRAD, FP32, CP_ASYNC, skinny_simt_fits, skinny_simt},
    // Ten classes: a tile of 64 columns would be mostly zeros.
    {"narrow-simt", ON_NN | ON_TN, FP32, NOTHING, [](const Gemm &g) { return g.narrow(); }, simt_narrow},

    // --- tf32 and 3xtf32 on the tensor cores ---

    // Large GEMMs, by warpgroup MMA. wgrads need dyᵀ.
    {"warpgroup-wgrad", ON_TN, TENSOR, WARPGROUP, warpgroup_wgrad_fits, nullptr, warpgroup_wgrad},
    {"warpgroup", FORWARD_DGRAD, TENSOR, WARPGROUP, [](const Gemm &g) { return (!g.t || g.aligned_t) && warpgroup_large(g); }, warpgroup, nullptr,
     nullptr, true},
    // wgrads of a small batch, as above.
    {"wgrad-tensorop-tma", ON_TN, TENSOR, TMA, wgrad_tensorop_tma_fits, nullptr, wgrad_tensorop_tma, small_wgrads_enough},
    {"wgrad-tensorop", ON_TN, TENSOR, CP_ASYNC, wgrad_tensorop_fits, nullptr, wgrad_tensorop},
    // Few columns, as of ten classes: k is split among warps, and of wgrads of a large batch among CTAs.
    {"narrow-tensorop", ON_NN, TENSOR, CP_ASYNC, [](const Gemm &g) { return g.narrow(); }, tensorop_narrow},
    {"narrow-wgrad", ON_TN, TENSOR, CP_ASYNC, [](const Gemm &g) { return g.narrow(); }, nullptr, tensorop_narrow_wgrads},
    // wgrads of a large batch and of many tiles, of all layers in one launch.
    {"wgrad-large", ON_TN, TENSOR, TMA, [](const Gemm &g) { return !g.indices && g.aligned() && g.k > 128; }, nullptr, wgrad_large,
     wgrad_large_enough},
    // Few rows: latency counts. These are the only fast kernels with uint8 input.
    {"skinny-tensorop-tma", FORWARD_DGRAD, TENSOR, TMA, skinny_tensorop_fits, skinny_tensorop_tma},
    {"skinny-tensorop", FORWARD_DGRAD, TENSOR, CP_ASYNC, skinny_tensorop_fits, skinny_tensorop},
    // Unaligned uint8 input: float32 on the CUDA cores, correct but not fast.
    {"pixels-simt", ANY_LAYOUT, TENSOR, NOTHING, [](const Gemm &g) { return g.indices != nullptr; }, simt},
    // Few rows by large weights, few tiles, and few columns.
    {"low-tensorop", FORWARD_DGRAD, TENSOR, CP_ASYNC, low_tensorop_fits, tensorop_low},
    {"thin-simt", FORWARD_DGRAD, TENSOR, NOTHING, [](const Gemm &g) { return aligned_values(g) && thin(g); }, simt},
    // Shapes that fill the GPU.
    {"square-tensorop", FORWARD_DGRAD, TENSOR, CP_ASYNC, aligned_values, tensorop_square},
    // wgrads of a small batch in a launch each, if there is one or they are more than a wave: tiles for about one wave, and
    // for more.
    {"wgrad-wave", ON_TN, TENSOR, CP_ASYNC, [](const Gemm &g) { return aligned_values(g) && g.k <= 256 && tensorop_wgrad_wave_fits(g); },
     tensorop_wgrad_wave, nullptr, one_by_one},
    {"wgrad-short", ON_TN, TENSOR, CP_ASYNC, [](const Gemm &g) { return aligned_values(g) && g.k <= 256; }, tensorop_wgrad_short, nullptr,
     one_by_one},
    // Other wgrads, in one launch that divides k among CTAs.
    {"wgrad-long", ON_TN, TENSOR, CP_ASYNC, aligned_values, nullptr, tensorop_wgrads_long},
    // Rows that are not whole float4. In training only the classifier has them.
    {"unaligned-tensorop", ANY_LAYOUT, TENSOR, CP_ASYNC, [](const Gemm &g) { return !g.indices; }, tensorop_unaligned},

    // --- bf16 on the tensor cores ---

    // Large GEMMs, by warpgroup MMA, which reads operands as they are in memory.
    {"bf16-warpgroup-wgrad", ON_TN, BF16, WARPGROUP, bf16_warpgroup_fits, nullptr, bf16_warpgroup_wgrad, bf16_warpgroup_enough},
    {"bf16-warpgroup", FORWARD_DGRAD, BF16, WARPGROUP, bf16_warpgroup_fits, bf16_warpgroup, nullptr, bf16_warpgroup_enough},
    // wgrads of a small batch, as above, or of small weights, and those of uint8 input.
    {"bf16-wgrads", ON_TN, BF16, NOTHING, bf16_wgrad_fits, nullptr, bf16_wgrads, bf16_wgrads_enough},
    // Ten classes, and a large batch.
    {"bf16-narrow-wgrad", ON_TN, BF16, NOTHING, [](const Gemm &g) { return g.narrow() && g.aligned_a; }, bf16_narrow_wgrad},
    // Few rows: latency counts.
    {"bf16-skinny-tma", FORWARD_DGRAD, BF16, TMA, bf16_skinny_fits, bf16_skinny_tma},
    {"bf16-skinny", FORWARD_DGRAD, BF16, NOTHING, bf16_skinny_fits, bf16_skinny},
    // Few rows by large weights, few columns, and all other uint8 input.
    {"bf16-low", FORWARD_DGRAD, BF16, NOTHING, bf16_low_fits, bf16_low},
    // Rows that are not whole chunks of eight.
    {"bf16-unaligned", ANY_LAYOUT, BF16, NOTHING, [](const Gemm &g) { return !aligned_values(g); }, bf16_unaligned},
    // Shapes that fill the GPU, and others.
    {"bf16-square", ANY_LAYOUT, BF16, NOTHING, [](const Gemm &g) { return aligned_values(g) && bf16_fills(g); }, bf16_square},
    {"bf16-medium", ANY_LAYOUT, BF16, NOTHING, aligned_values, bf16_medium},

    // --- everything else of float32 ---
    {"simt", ANY_LAYOUT, ANY_FLOAT, NOTHING, always, simt},
};

bool fits(const Row &row, const Gemm &g) {
  return has(row.needs) && (row.layouts >> g.layout & 1) && (row.precisions >> g.precision & 1) && (!g.stride || row.needs == WARPGROUP) &&
         row.fits(g);
}

int launch_single(uintptr_t stream, const Row &row, const Gemm &g) {
  int code = row.single(stream, g);
  if (code || g.layout != NT || !g.t || row.stores_t) return code;
  return kernels_transpose(stream, uintptr_t(g.t), uintptr_t(g.c), g.m, g.n);
}

// run launches up to KERNELS_MAX_GROUP GEMMs. No GEMM may read or write what another one writes.
int run(uintptr_t stream, Gemm *g, int count) {
  for (const Row &row : rows) {
    if (count == 0) break;
    Gemm taken[KERNELS_MAX_GROUP];
    int n = 0;
    for (int i = 0; i < count; i++)
      if (fits(row, g[i])) taken[n++] = g[i];
    if (n == 0 || (row.enough && !row.enough(taken, n))) continue;
    if (row.grouped) {
      if (int code = row.grouped(stream, taken, n)) return code;
    } else {
      for (int i = 0; i < n; i++)
        if (int code = launch_single(stream, row, taken[i])) return code;
    }
    count = int(std::remove_if(g, g + count, [&](const Gemm &one) { return fits(row, one); }) - g);
  }
  return count ? cudaErrorNotSupported : cudaSuccess;
}

bool dgrad_wgrad_fits(const Gemm &g) {
  // It is for weights that do not fit L2. In 3xtf32 more than 32 rows are bound by multiplication, so it gains only if
  // nearly every SM has a CTA.
  if (!has(TMA) || g.precision == KERNELS_FP32 || !g.aligned() || g.m > DGRAD_WGRAD_ROWS || g.n < 1024 || g.k < 1024) return false;
  int64_t ctas = dgrad_wgrad_ctas(g), sms = device().sms;
  return g.precision != KERNELS_TF32X3 || g.m <= 32 || (ctas <= sms && 10 * ctas >= 9 * sms);
}

int check(int precision, const kernels_gemm_args &p) {
  const int64_t limit = 1 << 30;  // coordinates are int, and tiles extend past the end
  if (precision < KERNELS_FP32 || precision > KERNELS_BF16) return cudaErrorInvalidValue;
  if (precision == KERNELS_BF16 ? p.t != 0 : p.rounded != 0) return cudaErrorInvalidValue;
  if (p.m < 0 || p.n < 0 || p.k < 0 || p.m > limit || p.n > limit || p.k > limit) return cudaErrorInvalidValue;
  if (p.layout == NT && (p.indices || p.pixels)) return cudaErrorInvalidValue;
  if (p.stride && (p.layout != TN || p.indices || p.stride < p.m || p.stride > limit)) return cudaErrorInvalidValue;
  if (p.epilogue == KERNELS_NONE) return p.layout == NN || p.layout == NT || p.layout == TN ? cudaSuccess : cudaErrorInvalidValue;
  bool fits = (p.layout == NN && p.epilogue == KERNELS_ACTIVATE) || (p.layout == NT && p.epilogue == KERNELS_ACTIVATE_BACKWARD) ||
              (p.layout == TN && p.epilogue == KERNELS_SGD);
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}

Gemm gemm_of(int precision, const kernels_gemm_args &p) {
  const bool half = precision == KERNELS_BF16, half_c = half && (p.epilogue == KERNELS_ACTIVATE || p.epilogue == KERNELS_ACTIVATE_BACKWARD);
  // aligned reports whether an operand begins on a boundary of bytes, and its rows are whole multiples of 16
  // bytes.
  auto aligned = [](uintptr_t operand, int64_t row, int bytes, bool half) { return operand % bytes == 0 && row % (half ? 8 : 4) == 0; };
  uintptr_t y = p.epilogue == KERNELS_ACTIVATE_BACKWARD ? p.y : 0;
  Gemm g = {};
  g.c = ptr<float>(p.c), g.a = ptr<float>(p.a), g.b = ptr<float>(p.b), g.y = ptr<float>(y), g.indices = ptr<int32_t>(p.indices);
  g.alpha = (p.layout == NN ? 1 : p.alpha) * (p.indices || p.pixels ? 1 / 255.f : 1);
  g.t = ptr<float>(p.t), g.m = int(p.m), g.n = int(p.n), g.k = int(p.k);
  g.prefetch_a = p.prefetch & KERNELS_PREFETCH_A, g.prefetch_b = p.prefetch & KERNELS_PREFETCH_B, g.prefetch_c = p.prefetch & KERNELS_PREFETCH_C;
  g.beside = p.beside;
  g.rounded = p.epilogue == KERNELS_SGD ? ptr<bf16>(p.rounded) : nullptr;
  g.aligned_a = aligned(p.a, p.stride ? p.stride : p.layout == TN ? p.m : p.k, p.indices && !half ? 4 : 16, half);
  g.aligned_b = aligned(p.b, p.layout == NT ? p.k : p.n, 16, half);
  g.aligned_c = aligned(p.c | y | p.rounded, p.n, 16, half_c || p.rounded);
  g.aligned_t = aligned(p.t, 0, 16, false);
  g.layout = uint8_t(p.layout), g.precision = uint8_t(precision), g.epilogue = p.epilogue, g.stride = int(p.stride);
  return g;
}

bool empty(const kernels_gemm_args &p) { return p.m == 0 || p.n == 0; }

// run_all checks GEMMs and launches those that are not empty.
int run_all(uintptr_t stream, int precision, const kernels_gemm_args *p, int count) {
  Gemm g[KERNELS_MAX_GROUP];
  int n = 0;
  for (int i = 0; i < count; i++) {
    if (int code = check(precision, p[i])) return code;
    if (!empty(p[i])) g[n++] = gemm_of(precision, p[i]);
  }
  return n && !kernels_has(precision) ? int(cudaErrorNotSupported) : run(stream, g, n);
}

}  // namespace

}  // namespace gemm

using namespace gemm;

int kernels_has(int precision) { return precision == KERNELS_FP32 || device().major >= 8; }

int kernels_gemm(uintptr_t stream, int precision, kernels_gemm_args p) { return run_all(stream, precision, &p, 1); }

int kernels_fuses_wgrad(int precision, kernels_gemm_args p) {
  return !check(precision, p) && p.layout == NT && p.epilogue == KERNELS_ACTIVATE_BACKWARD && dgrad_wgrad_fits(gemm_of(precision, p));
}

int kernels_wants_transposed(int precision, kernels_gemm_args p) {
  if (check(precision, p) || p.layout != TN || !has(WARPGROUP) || !(TENSOR >> precision & 1)) return false;
  p.t = 1 << 20;  // as if at an aligned address
  return warpgroup_wgrad_fits(gemm_of(precision, p));
}

int kernels_takes_stride(int precision, kernels_gemm_args p) {
  if (check(precision, p) || !p.stride) return false;
  Gemm g = gemm_of(precision, p);
  return std::any_of(std::begin(rows), std::end(rows), [&](const Row &row) { return fits(row, g) && (!row.enough || row.enough(&g, 1)); });
}

int kernels_chains(int precision, kernels_gemm_args p) {
  return !check(precision, p) && p.layout != TN && has(CP_ASYNC) && p.epilogue != KERNELS_NONE && chain_fits(gemm_of(precision, p));
}

int kernels_dgrad_wgrad(uintptr_t stream, int precision, kernels_gemm_args p) {
  if (int code = check(precision, p)) return code;
  if (p.layout != NT || p.epilogue != KERNELS_ACTIVATE_BACKWARD || p.t || (precision == KERNELS_BF16) != (p.rounded != 0))
    return cudaErrorInvalidValue;
  Gemm g = gemm_of(precision, p);
  g.rounded = ptr<bf16>(p.rounded);
  if (dgrad_wgrad_fits(g)) return empty(p) ? cudaSuccess : dgrad_wgrad(stream, g);
  kernels_gemm_args dgrad = p, wgrad = {};
  if (p.rounded) dgrad.b = p.rounded, dgrad.rounded = 0, dgrad.prefetch &= ~KERNELS_PREFETCH_B;
  if (int code = kernels_gemm(stream, precision, dgrad)) return code;
  wgrad.c = p.b, wgrad.rounded = p.rounded, wgrad.a = p.y, wgrad.b = p.a, wgrad.m = p.n, wgrad.n = p.k, wgrad.k = p.m;
  wgrad.alpha = p.alpha, wgrad.layout = TN, wgrad.epilogue = KERNELS_SGD;
  return kernels_gemm(stream, precision, wgrad);
}

int kernels_grouped_gemm(uintptr_t stream, int precision, kernels_group group) {
  if (group.count > KERNELS_MAX_GROUP) return cudaErrorInvalidValue;
  for (int i = 0; i < group.count; i++) {
    const kernels_gemm_args &p = group.gemms[i], &before = group.gemms[std::max(i - 1, 0)];
    const bool linked = i == 0 || (p.a == before.c && p.k == before.n && p.m == before.m);
    if (p.layout != group.gemms[0].layout || (p.layout != TN && !(linked && kernels_chains(precision, p)))) return cudaErrorInvalidValue;
  }
  return run_all(stream, precision, group.gemms, group.count);
}
