// The operations of tensor cores and the loads of their operands, each by a warp.
#include "fibers.h"

namespace emulator {

// truncated returns an element of an operand as the tensor cores read it.
static float truncated(uint32_t v) { return bits<float>(v & ~0u << 13); }

using Four = double __attribute__((vector_size(32)));
using Eight = double __attribute__((vector_size(64)));
using FourFloats = float __attribute__((vector_size(16)));

// add_products gives the lanes a·b + d, of the d that they have given after a and b. The products are exact,
// so that the sums are the same with fused multiply-add.
template <int K>
static void add_products(Words (&got)[32], const Words (&given)[32], const double (&a)[16][K], const Eight (&b)[K]) {
  // Lane 4g + t has rows g and g+8 of columns 2t and 2t+1 of d.
  for (int row = 0; row < 16; row++) {
    int lane = row % 8 * 4, i = row / 8 * 2;
    Eight sum;
    for (int t = 0; t < 4; t++)
      for (int e = 0; e < 2; e++) sum[2 * t + e] = bits<float>(given[lane + t].word[6 + i + e]);
    for (int k = 0; k < K; k++) sum += a[row][k] * b[k];
    for (int t = 0; t < 4; t++)
      for (int e = 0; e < 2; e++) got[lane + t].word[i + e] = bits<uint32_t>(float(sum[2 * t + e]));
  }
}

void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                                        uint32_t a3, uint32_t b0, uint32_t b1) {
  given() = {{a0, a1, a2, a3, b0, b1, bits<uint32_t>(d0), bits<uint32_t>(d1), bits<uint32_t>(d2), bits<uint32_t>(d3)}};
  const Words &got = exchange([](const Words(&given)[32], Words(&got)[32]) {
    // Lane 4g + t has rows g and g+8 of columns t and t+4 of a, and rows t and t+4 of column g of b.
    double a[16][8];
    Eight b[8];
    for (int lane = 0; lane < 32; lane++) {
      int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = truncated(given[lane].word[i]);
      for (int i = 0; i < 2; i++) b[t + 4 * i][g] = truncated(given[lane].word[4 + i]);
    }
    add_products(got, given, a, b);
  });
  d0 = bits<float>(got.word[0]), d1 = bits<float>(got.word[1]), d2 = bits<float>(got.word[2]), d3 = bits<float>(got.word[3]);
}

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  given() = {{a0, a1, a2, a3, b0, b1, bits<uint32_t>(d0), bits<uint32_t>(d1), bits<uint32_t>(d2), bits<uint32_t>(d3)}};
  const Words &got = exchange([](const Words(&given)[32], Words(&got)[32]) {
    // Lane 4g + t has, of the k 2t and 2t+1, and then of 2t+8 and 2t+9, rows g and g+8 of a, and column g of
    // b.
    double a[16][16];
    Eight b[16];
    auto half = [](uint32_t two, int i) { return bits<float>(two >> 16 * i << 16); };
    for (int lane = 0; lane < 32; lane++) {
      int g = lane / 4, k = lane % 4 * 2;
      for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 4; i++) a[g + i % 2 * 8][k + i / 2 * 8 + e] = half(given[lane].word[i], e);
        for (int i = 0; i < 2; i++) b[k + 8 * i + e][g] = half(given[lane].word[4 + i], e);
      }
    }
    add_products(got, given, a, b);
  });
  d0 = bits<float>(got.word[0]), d1 = bits<float>(got.word[1]), d2 = bits<float>(got.word[2]), d3 = bits<float>(got.word[3]);
}

// ldmatrix loads a matrix for each register.
template <bool TRANSPOSED, typename... Registers>
static void ldmatrix(uint32_t row, Registers &...registers) {
  given().word[0] = row;
  const Words &got = exchange([](const Words(&given)[32], Words(&got)[32]) {
    for (size_t i = 0; i < sizeof...(Registers); i++) {
      uint16_t m[8][8];
      for (int r = 0; r < 8; r++) memcpy(m[r], at_shared<char[16]>(given[8 * i + r].word[0], 16), sizeof m[r]);
      for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4 * 2;
        got[lane].word[i] = TRANSPOSED ? m[t][g] | uint32_t(m[t + 1][g]) << 16 : m[g][t] | uint32_t(m[g][t + 1]) << 16;
      }
    }
  });
  const uint32_t *word = got.word;
  ((registers = *word++), ...);
}

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row) {
  ldmatrix<false>(row, r0, r1, r2, r3);
}

void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row) {
  ldmatrix<true>(row, r0, r1, r2, r3);
}

void ldmatrix_sync_aligned_m8n8_x2_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t row) { ldmatrix<false>(row, r0, r1); }

void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t row) { ldmatrix<true>(row, r0, r1); }

// An Operand is a matrix in shared memory, described by the descriptor of a wgmma, with the swizzle of 128
// bytes: element (mn, k), in row mn of a or column mn of b. PTX ISA, canonical layouts, in chunks of 16
// bytes, T elements:
//
//   K-major   ((8,m),(T,2k)):((8T,SBO),(1,T))           SBO, the stride byte offset, is between groups of 8 mn
//   MN-major  ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))      between groups of 8 k; LBO, the leading one, between groups of 8T mn
//
// A group begins on a boundary of 1024 bytes, so that its base offset is 0.
class Operand {
  uint32_t start, leading, stride, bytes;
  bool mn_major;
  const char *memory = async_memory(*self->cta);
  size_t end = shared_bytes();

 public:
  Operand(uint64_t descriptor, uint32_t bytes, bool mn_major)
      : start(field(descriptor, 0)), leading(field(descriptor, 16)), stride(field(descriptor, 32)), bytes(bytes), mn_major(mn_major) {
    constexpr uint64_t SWIZZLE_128B = uint64_t(1) << 62, FIELDS = 0x3fff | uint64_t(0x3fff) << 16 | uint64_t(0x3fff) << 32;
    if ((descriptor & ~FIELDS) != SWIZZLE_128B) fail("describes an operand in a way that is not emulated");
    if (start % 1024 >= (mn_major ? 1u : 128u)) fail("describes an operand whose groups are not on boundaries of 1024 bytes");
    if (stride % 1024 || (mn_major && leading % 1024)) fail("describes an operand whose groups are not whole KiB apart");
  }
  // load gives f the elements (mn, k) of mn from first on and k from 0 on, in chunks of 16 bytes: f(mn -
  // first, k, bits).
  template <typename T, typename F>
  void load(uint32_t first, uint32_t mn_count, uint32_t k_count, F f) const {
    constexpr uint32_t CHUNK = 16 / sizeof(T);
    uint32_t mn_step = mn_major ? CHUNK : 1, k_step = mn_major ? 1 : CHUNK;
    for (uint32_t mn = 0; mn < mn_count; mn += mn_step)
      for (uint32_t k = 0; k < k_count; k += k_step) {
        T chunk[CHUNK];
        memcpy(chunk, memory + place(first + mn, k), sizeof chunk);
        for (uint32_t i = 0; i < CHUNK; i++) f(mn_major ? mn + i : mn, mn_major ? k : k + i, chunk[i]);
      }
  }

 private:
  // place returns the offset of the chunk that begins with an element.
  uint32_t place(uint32_t mn, uint32_t k) const {
    uint32_t t = 16 / bytes, offset;
    if (mn_major) {
      offset = mn / t % 8 * 16 + mn / (8 * t) * leading + k % 8 * 128 + k / 8 * stride;
    } else {
      if (start % 128 + k * bytes >= 128) fail("describes an operand of more than 128 bytes of k");
      offset = mn % 8 * 128 + mn / 8 * stride + k / t * 16;
    }
    uint32_t address = swizzled(start + offset);
    if (address + 16 > end) fail("describes an operand past its shared memory");
    return address;
  }
  static uint32_t field(uint64_t descriptor, int bit) { return (descriptor >> bit & 0x3fff) << 4; }
};

// A Part is what a lane gives to its warp of a wgmma.
struct Part {
  float *d;
  uint64_t b;
  uint32_t a[4];
  uint16_t n;
  bool bf16, overwrites, transposed_a, transposed_b;
};
static_assert(sizeof(Part) <= sizeof(Words));

// load_a reads the warp's 16 rows of a.
static void load_a(double (&a)[16][16], const Part (&parts)[32]) {
  if (parts[0].bf16) {
    Operand operand(parts[0].a[0] | uint64_t(parts[0].a[1]) << 32, 2, parts[0].transposed_a);
    uint32_t first = self->index / 32 % 4 * 16;
    operand.load<uint16_t>(first, 16, 16, [&](uint32_t m, uint32_t k, uint16_t v) { a[m][k] = bits<float>(uint32_t(v) << 16); });
    return;
  }
  // Lane 4g + t has rows g and g+8 of columns t and t+4.
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) a[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = truncated(parts[lane].a[i]);
}

constexpr int AT_ONCE = 32;  // columns of b

// A Row is of b, or of a·b.
union Row {
  double column[AT_ONCE];
  Eight eight[AT_ONCE / 8];
};

// multiply_row is a·b. The products are exact, so that the sums are the same with fused multiply-add.
static Row multiply_row(const double (&a)[16], const Row (&b)[16], int k_end) {
  Row sums = {};
  for (int k = 0; k < k_end; k++)
    for (int i = 0; i < AT_ONCE / 8; i++) sums.eight[i] += a[k] * b[k].eight[i];
  return sums;
}

// add_to adds a lane's part of a row, and of the eighth after it, to its d.
static void add_to(float *d, int lane, const Row (&sums)[16], bool overwrites) {
  // Lane 4g + t has rows g and g+8 of columns 8j + 2t and the next of d.
  const double *upper = sums[lane / 4].column + lane % 4 * 2, *lower = sums[lane / 4 + 8].column + lane % 4 * 2;
  for (int j = 0; j < AT_ONCE / 8; j++, d += 4, upper += 8, lower += 8) {
    Four sum = {upper[0], upper[1], lower[0], lower[1]};
    FourFloats f;
    memcpy(&f, d, sizeof f);
    f = __builtin_convertvector(overwrites ? sum : __builtin_convertvector(f, Four) + sum, FourFloats);
    memcpy(d, &f, sizeof f);
  }
}

// multiply executes a warp's part of a wgmma.
void multiply(const Wgmma &mine) {
  Part part = {
      mine.d,           mine.b, {mine.a[0], mine.a[1], mine.a[2], mine.a[3]}, uint16_t(mine.n), mine.bf16, mine.overwrites, mine.transposed_a,
      mine.transposed_b};
  memcpy(given().word, &part, sizeof part);
  exchange([](const Words(&given)[32], Words(&)[32]) {
    constexpr int M = 16;
    Part parts[32];
    for (int lane = 0; lane < 32; lane++) memcpy(&parts[lane], given[lane].word, sizeof(Part));
    const Part &all = parts[0];
    for (const Part &p : parts) {
      bool same = p.b == all.b && p.n == all.n && p.bf16 == all.bf16 && p.overwrites == all.overwrites;
      if (!same || (p.bf16 && (p.a[0] != all.a[0] || p.a[1] != all.a[1]))) fail("has another operand than its warp");
    }
    double a[M][16];
    Row b[16], sums[M];
    int k_end = all.bf16 ? 16 : 8;
    Operand operand(all.b, all.bf16 ? 2 : 4, all.transposed_b);
    load_a(a, parts);
    for (int first = 0; first < all.n; first += AT_ONCE) {
      auto at = [&](uint32_t i, uint32_t k) -> double & { return b[k].column[i]; };
      if (all.bf16)
        operand.load<uint16_t>(first, AT_ONCE, 16, [&](uint32_t i, uint32_t k, uint16_t v) { at(i, k) = bits<float>(uint32_t(v) << 16); });
      else operand.load<uint32_t>(first, AT_ONCE, 8, [&](uint32_t i, uint32_t k, uint32_t v) { at(i, k) = truncated(v); });
      for (int m = 0; m < M; m++) sums[m] = multiply_row(a[m], b, k_end);
      for (int lane = 0; lane < 32; lane++) add_to(parts[lane].d + first / 2, lane, sums, all.overwrites);
    }
  });
}

}  // namespace emulator
