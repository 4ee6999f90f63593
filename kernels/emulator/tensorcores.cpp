// The operations of tensor cores and the loads of their operands, each by a warp.
#include "fibers.h"

namespace emulator {

// truncated returns an element of an operand as the tensor cores read it.
static float truncated(uint32_t v) { return bits<float>(v & ~0u << 13); }

void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                                        uint32_t a3, uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
  Words mine = {{a0, a1, a2, a3, b0, b1, bits<uint32_t>(c0), bits<uint32_t>(c1), bits<uint32_t>(c2), bits<uint32_t>(c3)}};
  Words got = exchange(mine, [](const Words(&given)[32], Words(&got)[32]) {
    // Lane 4g + t has rows g and g+8 of columns t and t+4 of a, rows t and t+4 of
    // column g of b, and rows g and g+8 of columns 2t and 2t+1 of c.
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
      int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = truncated(given[lane].word[i]);
      for (int i = 0; i < 2; i++) b[t + 4 * i][g] = truncated(given[lane].word[4 + i]);
    }
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = bits<float>(given[lane].word[6 + i]);
        for (int k = 0; k < 8; k++) sum += double(a[row][k]) * b[k][column];
        got[lane].word[i] = bits<uint32_t>(float(sum));
      }
  });
  d0 = bits<float>(got.word[0]), d1 = bits<float>(got.word[1]), d2 = bits<float>(got.word[2]), d3 = bits<float>(got.word[3]);
}

void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  Words mine = {{a0, a1, a2, a3, b0, b1, bits<uint32_t>(d0), bits<uint32_t>(d1), bits<uint32_t>(d2), bits<uint32_t>(d3)}};
  Words got = exchange(mine, [](const Words(&given)[32], Words(&got)[32]) {
    // Lane 4g + t has, of the k 2t and 2t+1, and then of 2t+8 and 2t+9, rows g and g+8 of a, and column g of b;
    // and rows g and g+8 of columns 2t and 2t+1 of c.
    float a[16][16], b[16][8];
    auto half = [](uint32_t two, int i) { return bits<float>(two >> 16 * i << 16); };
    for (int lane = 0; lane < 32; lane++) {
      int g = lane / 4, k = lane % 4 * 2;
      for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 4; i++) a[g + i % 2 * 8][k + i / 2 * 8 + e] = half(given[lane].word[i], e);
        for (int i = 0; i < 2; i++) b[k + 8 * i + e][g] = half(given[lane].word[4 + i], e);
      }
    }
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        double sum = bits<float>(given[lane].word[6 + i]);
        for (int k = 0; k < 16; k++) sum += double(a[row][k]) * b[k][column];
        got[lane].word[i] = bits<uint32_t>(float(sum));
      }
  });
  d0 = bits<float>(got.word[0]), d1 = bits<float>(got.word[1]), d2 = bits<float>(got.word[2]), d3 = bits<float>(got.word[3]);
}

// ldmatrix loads COUNT matrices.
template <int COUNT, bool TRANSPOSED>
static Words ldmatrix(uint32_t row) {
  return exchange({{row}}, [](const Words(&given)[32], Words(&got)[32]) {
    for (int i = 0; i < COUNT; i++) {
      uint16_t m[8][8];
      for (int r = 0; r < 8; r++) memcpy(m[r], at_shared<char[16]>(given[8 * i + r].word[0], 16), sizeof m[r]);
      for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4 * 2;
        got[lane].word[i] = TRANSPOSED ? m[t][g] | uint32_t(m[t + 1][g]) << 16 : m[g][t] | uint32_t(m[g][t + 1]) << 16;
      }
    }
  });
}

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row) {
  Words got = ldmatrix<4, false>(row);
  r0 = got.word[0], r1 = got.word[1], r2 = got.word[2], r3 = got.word[3];
}

void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row) {
  Words got = ldmatrix<4, true>(row);
  r0 = got.word[0], r1 = got.word[1], r2 = got.word[2], r3 = got.word[3];
}

void ldmatrix_sync_aligned_m8n8_x2_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t row) {
  Words got = ldmatrix<2, false>(row);
  r0 = got.word[0], r1 = got.word[1];
}

void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t row) {
  Words got = ldmatrix<2, true>(row);
  r0 = got.word[0], r1 = got.word[1];
}

// An Operand is a matrix [n,8] in shared memory, described by the descriptor of a wgmma. Only one layout is
// emulated: rows of 128 bytes, swizzled, in groups of eight.
struct Operand {
  uint32_t start;

  explicit Operand(uint64_t descriptor) : start(descriptor << 4 & 0x3ffff) {
    constexpr uint64_t SWIZZLE_128B = uint64_t(1) << 62, EIGHT_ROWS = uint64_t(1024 >> 4) << 32, ADDRESS = 0x3fff, LEADING = uint64_t(0x3fff) << 16;
    if ((descriptor & ~ADDRESS & ~LEADING) != (SWIZZLE_128B | EIGHT_ROWS)) fail("describes an operand in a way that is not emulated");
  }
  float at(int n, int k) const {
    uint32_t address = swizzled(start + 128 * n + 4 * k);
    at_shared<float>(address, 4);
    return *reinterpret_cast<const float *>(async_memory(*self->cta) + address);
  }
};

// multiply executes a warp's part of a wgmma.
void multiply(const Wgmma &mine) {
  Words words = {{mine.a[0], mine.a[1], mine.a[2], mine.a[3], uint32_t(mine.n)}};
  memcpy(words.word + 5, &mine.b, sizeof mine.b);
  memcpy(words.word + 7, &mine.d, sizeof mine.d);
  exchange(words, [](const Words(&given)[32], Words(&)[32]) {
    // Lane 4g + t has rows g and g+8 of columns t and t+4 of a, and of columns 8j + 2t and the next
    // of d; all lanes share b.
    constexpr int M = 16, K = 8, AT_ONCE = 64;
    int n = int(given[0].word[4]);
    double a[M][K], b[K][AT_ONCE], sums[M][AT_ONCE];
    uint64_t descriptor;
    memcpy(&descriptor, given[0].word + 5, sizeof descriptor);
    Operand operand(descriptor);
    for (int lane = 0; lane < 32; lane++) {
      if (memcmp(given[lane].word + 4, given[0].word + 4, 12)) fail("has another operand than its warp");
      for (int i = 0; i < 4; i++) a[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = truncated(given[lane].word[i]);
    }
    for (int first = 0; first < n; first += AT_ONCE) {
      for (int i = 0; i < AT_ONCE; i++)
        for (int k = 0; k < K; k++) b[k][i] = truncated(bits<uint32_t>(operand.at(first + i, k)));
      memset(sums, 0, sizeof sums);
      for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++)
          for (int i = 0; i < AT_ONCE; i++) sums[m][i] += a[m][k] * b[k][i];
      for (int lane = 0; lane < 32; lane++) {
        float *d;
        memcpy(&d, given[lane].word + 7, sizeof d);
        d += first / 2;
        for (int i = 0; i < AT_ONCE / 2; i++) d[i] = float(d[i] + sums[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2]);
      }
    }
  });
}

}  // namespace emulator
