// Weight gradients of a large batch, on the tensor cores, with tiles copied in bulk.
//
// A sum this long waits for nothing but its operands: what they cost is bytes, from L2
// and again from shared memory. So a warp has 32×56 of the gradient, which reads one
// float for twenty products; a pair of blocks shares the tile of one operand; and
// tiles of 64×112 are 392 for four layers of 784×784, three on each multiprocessor at once.
#include "few.cuh"
#include "few_tensor.cuh"

using namespace matmuls;

namespace {

// Sum adds the weight gradient, times alpha, to the weights in memory: one addition
// an element leaves nothing to the order of things. Blocks of a pair have the same columns.
template <bool THREE>
struct Sum {
  static constexpr int THREADS = 128, BLOCKS = 3, AT_MOST = 0, CLUSTER = bulk::PAIR;
  static constexpr int M = 64, N = 112, K = 32, STAGES = 3;
  static constexpr int WM = 32, WN = 56, EIGHTS = WN / 8;  // a warp's
  // Lines in shared memory, with room for the sake of the banks.
  static constexpr int A = M + 8, B = N + 8, STAGE = K * (A + B);
  static constexpr int ARRIVALS = STAGES * STAGE, FLOATS = ARRIVALS + 2 * STAGES;
  static_assert(M * N <= ARRIVALS, "the sums fit where the factors were");
  using Params = BulkArgs;

  static int64_t tiles(const Args &p) { return int64_t((p.n + N - 1) / N) * pairs((p.m + M - 1) / M); }

  static int prepare(BulkArgs &out, const Args &p) {
    static_cast<Args &>(out) = p;
    int code = bulk::describe<2>(out.map[0], p.a, {{p.m, 1, A}, {p.k, p.m, K}});
    if (!code) code = bulk::describe<2>(out.map[1], p.b, {{p.n, 1, B}, {p.k, p.n, K / 2}});
    return code ? code : bulk::describe<2>(out.map[2], p.c, {{p.n, 1, WN}, {p.m, p.n, WM}});
  }

  static __device__ void run(const BulkArgs &p, int block, float *shared) {
    auto arrivals = (bulk::Arrivals *)(shared + ARRIVALS);
    int tiles_m = (p.m + M * bulk::PAIR - 1) / (M * bulk::PAIR) * bulk::PAIR, m0 = block % tiles_m * M, n0 = block / tiles_m * N;
    int rounds = (p.k + K - 1) / K;
    auto send = [&](int round) {
      if (threadIdx.x || round >= rounds) return;
      int stage = round % STAGES, half = K / 2 * bulk::rank();
      float *to = shared + stage * STAGE;
      bulk::expect(arrivals + stage, 4 * STAGE);
      bulk::send(to, p.map[0], m0, round * K, arrivals + stage);
      bulk::send_both(to + K * A + half * B, p.map[1], n0, round * K + half, arrivals + stage);
    };
    bulk::start(arrivals, STAGES);
    follow();
    for (int i = 0; i < STAGES; i++) send(i);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int wm = warp % 2 * WM, wn = warp / 2 * WN;
    few::Sums<THREE, EIGHTS> sums[2], whole[2];
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
      int stage = round % STAGES;
      bulk::wait(arrivals + stage, round / STAGES);
      const float *a = shared + stage * STAGE + t * A + wm + 4 * g, *b = shared + stage * STAGE + K * A + t * B + wn;
      if (m0 < p.m) {  // or it is one more, for the sake of pairs
#pragma unroll
        for (int k = 0; k < K; k += 8) {
          // A lane's rows are 4g to 4g+3; its columns 4g to 4g+3 of the first 32, two
          // neighbours of the next 16, and one of the last eight.
          float fa[2][2][2], fb[EIGHTS][2];
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float *line = b + (k + 4 * e) * B;
            float4 rows = *(const float4 *)(a + (k + 4 * e) * A), four = *(const float4 *)(line + 4 * g);
            float2 two = *(const float2 *)(line + 32 + 2 * g);
            fa[0][0][e] = rows.x, fa[0][1][e] = rows.y, fa[1][0][e] = rows.z, fa[1][1][e] = rows.w;
            fb[0][e] = four.x, fb[1][e] = four.y, fb[2][e] = four.z, fb[3][e] = four.w;
            fb[4][e] = two.x, fb[5][e] = two.y, fb[6][e] = line[48 + g];
          }
#pragma unroll
          for (int i = 0; i < 2; i++) sums[i].template add<false>(fa[i], fb);
        }
        if (THREE) {
          // The tensor cores round sums toward zero: no longer ones than these.
#pragma unroll
          for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < EIGHTS; j++)
#pragma unroll
              for (int e = 0; e < 4; e++) whole[i].c[j][e] += sums[i].c[j][e];
            sums[i] = {};
          }
        }
      }
      // The stage of the round before is free when both blocks have read it.
      if (round > 0) {
        bulk::meet_end();
        send(round - 1 + STAGES);
      }
      __syncwarp();
      bulk::meet_begin();
    }
    bulk::meet_end();
    if (m0 >= p.m) return;

    float *mine = shared + warp * (WM * WN);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const auto &c = THREE ? whole[i].c : sums[i].c;
        float *row = mine + (4 * g + 2 * i + h) * WN, s = p.alpha;
#pragma unroll
        for (int x = 0; x < 2; x++)
          *(float4 *)(row + 8 * t + 4 * x) =
              make_float4(s * c[0][2 * h + x], s * c[1][2 * h + x], s * c[2][2 * h + x], s * c[3][2 * h + x]);
        *(float4 *)(row + 32 + 4 * t) = make_float4(s * c[4][2 * h], s * c[5][2 * h], s * c[4][2 * h + 1], s * c[5][2 * h + 1]);
        *(float2 *)(row + 48 + 2 * t) = make_float2(s * c[6][2 * h], s * c[6][2 * h + 1]);
      }
    bulk::publish();
    __syncwarp();
    bulk::add(p.map[2], n0 + wn, m0 + wm, mine);
  }
};

}  // namespace

bool matmul_is_sum(const Args &p) {
  return bulk::possible() && !p.order && p.vector_a && p.vector_b && p.vector_c && p.k > 128 && p.n > 16;
}

int matmul_sums(uintptr_t stream, bool three, const Args *p, int count) {
  int64_t tiles = 0;
  for (int i = 0; i < count; i++) tiles += Sum<true>::tiles(p[i]);
  if (tiles < 2 * device().sms) {  // too few to be side by side: the k of a tile is shared
    for (int i = 0; i < count; i++)
      if (int code = matmul_tensor(stream, KERNELS_TN, KERNELS_ADD, three, p[i])) return code;
    return cudaSuccess;
  }
  auto kind = [](const Args &) { return 0; };
  return three ? launch<Sum<true>>(stream, p, count, kind) : launch<Sum<false>>(stream, p, count, kind);
}
