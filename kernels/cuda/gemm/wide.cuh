// Products that fill the GPU, or stream large weights, of operands in whole quads
// (vector_a and vector_b). Part of matmul_tensor.cu, whose Tile, Rows, Config,
// split and mma it uses.
//
// A warp's tile is as large as its registers, for the reads of shared memory that
// this saves; slices of k keep several warps on a tile. Unlike in Deep all threads
// copy for all slices. Fragments are read and split a step ahead of their products,
// and nothing branches on the way, so that the two overlap within a warp: there are
// only two on a quarter of a multiprocessor.
#ifndef WIDE_CUH
#define WIDE_CUH

namespace {

// load reads W floats, 1, 2 or 4. 32-bit addresses: nvcc 11.8 would make generic
// ones again at every use.
template <int W>
__device__ void load(float (&v)[4], unsigned at) {
  if (W == 4) asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(at) : "memory");
  else if (W == 2) asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(at) : "memory");
  else asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v[0]) : "r"(at) : "memory");
}

// WideRows is Rows with as many lanes' reads at once as possible, four, two or one,
// for each eight: five eights are four and one.
template <bool K, int EIGHTS>
struct WideRows {
  static __device__ constexpr int v(int o) { return K || o == EIGHTS / 2 * 2 ? 1 : o / 4 * 4 + 4 > EIGHTS ? 2 : 4; }
  static __device__ constexpr int row(int o, int i) { return o / v(o) * 8 * v(o) + i * v(o) + o % v(o); }
};

// Lane is a lane's place in an operand's tile: its k of the warp's slice, and, where
// k is contiguous, its row.
template <typename T, int EIGHTS>
struct Lane {
  using R = WideRows<T::K, EIGHTS>;
  unsigned at;
  int g;

  __device__ Lane(unsigned tile, int row, int k) : g(threadIdx.x % 32 / 4) {
    k += threadIdx.x % 4 * 2;
    at = tile + 4 * (T::K ? (row + g) * T::STRIDE + k : k * T::STRIDE + row);
  }

  // fragment reads two k of EIGHTS rows, of the given step of eight k.
  __device__ void fragment(float (&f)[EIGHTS][2], unsigned stage, int step) const {
    float v[4];
#pragma unroll
    for (int o = 0; o < EIGHTS; o += R::v(o)) {
      if constexpr (T::K) {
        load<2>(v, at + stage + 4 * (8 * step + o * 8 * T::STRIDE));
        f[o][0] = v[0], f[o][1] = v[1];
      } else {
#pragma unroll
        for (int k = 0; k < 2; k++) {
          unsigned from = at + stage + 4 * ((8 * step + k) * T::STRIDE + o * 8 + g * R::v(o));
          if (R::v(o) == 4) load<4>(v, from);
          else if (R::v(o) == 2) load<2>(v, from);
          else load<1>(v, from);
#pragma unroll
          for (int i = 0; i < R::v(o); i++) f[o + i][k] = v[i];
        }
      }
    }
  }
};

// Quads copies an operand's tiles, one after the other along k, by THREADS threads:
// each EACH quads, STEP lines apart.
template <typename T, int THREADS>
struct Quads {
  static constexpr int LINES = T::K ? T::X : T::BK, LINE = (T::K ? T::BK : T::X) / 4;
  static constexpr int STEP = THREADS / LINE, EACH = (LINES + STEP - 1) / STEP;

  const float *from;
  unsigned to;
  int width, line, column, x_left;  // width: of a line in global memory; x_left: rows from this thread's first on

  __device__ Quads(const float *operand, int width_, int x0, int x_end, int k0, unsigned tile)
      : width(width_), line(threadIdx.x / LINE), column(threadIdx.x % LINE * 4) {
    from = operand + (T::K ? int64_t(x0 + line) * width + k0 + column : int64_t(k0 + line) * width + x0 + column);
    x_left = x_end - x0 - (T::K ? line : column);
    to = tile + 4 * (line * T::STRIDE + column);
  }

  // next copies a tile, of which k_left of k are valid, to a stage.
  __device__ void next(unsigned stage, int k_left) {
    k_left -= T::K ? column : line;
    int lines_left = T::K ? x_left : k_left;
    bool valid = (T::K ? k_left : x_left) > 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      bool mine = (STEP * LINE == THREADS || line < STEP) && (LINES % STEP == 0 || line < LINES - i * STEP);
      copy_if(mine, to + stage + 4 * i * STEP * T::STRIDE, from + int64_t(i * STEP) * width, valid && i * STEP < lines_left);
    }
    from += T::K ? T::BK : int64_t(T::BK) * width;
  }

  // copy_if copies a quad, or zeros if !valid. For a branch the compiler would not
  // move products across it.
  __device__ static void copy_if(bool mine, unsigned at, const float *quad, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %2;}" ::"r"(at), "l"(quad),
                 "r"(valid ? 16 : 0), "r"(int(mine)) : "memory");
#endif
  }
};

template <int FORM, int EPILOGUE, bool THREE, typename C_>
struct Wide {
  using C = C_;
  static constexpr int THREADS = C::THREADS, MIN_BLOCKS = C::MIN_BLOCKS;
  static constexpr int TURN = C::BK * C::SLICES, STEPS = C::BK / 8;  // TURN: k of a stage
  using A = Tile<FORM != KERNELS_TN, C::BM, TURN>;
  using B = Tile<FORM == KERNELS_NT, C::BN, TURN>;
  static constexpr int STAGE = 4 * (A::SIZE + B::SIZE), STAGES = C::STAGES * STAGE, PARTS = 4 * C::SLICES * C::PART;
  static constexpr int BYTES = STAGES > PARTS ? STAGES : PARTS, INBOX = 4 * C::BM * C::BN;
  static_assert(STEPS % 2 == 0, "a stage begins with the same fragments");
  static __device__ void run(const Args &p, int block, float *shared);
};

template <int FORM, int EPILOGUE, bool THREE, typename C_>
__device__ void Wide<FORM, EPILOGUE, THREE, C_>::run(const Args &p, int block, float *shared) {
#if __CUDA_ARCH__ >= 800
  using RowsA = WideRows<A::K, 2 * C::MI>;
  using RowsB = WideRows<B::K, C::NI>;
  int rank, ranks;
  cluster_arrive(rank, ranks);
  int tiles_n = (p.n + C::BN - 1) / C::BN, tile = block / ranks;
  int m0 = tile / tiles_n * C::BM, n0 = tile % tiles_n * C::BN;
  int k0 = min(p.k, rank * p.k_part), k1 = min(p.k, k0 + p.k_part), rounds = (k1 - k0 + TURN - 1) / TURN;

  unsigned stages = shared_address(shared);
  Quads<A, THREADS> from_a(p.a, A::K ? p.k : p.m, m0, p.m, k0, stages);
  Quads<B, THREADS> from_b(p.b, B::K ? p.k : p.n, n0, p.n, k0, stages + 4 * A::SIZE);
  // Past the end it copies zeros that nobody reads.
  auto next = [&](int round, unsigned stage, bool a, bool b) {
    if (a) from_a.next(stage, k1 - k0 - round * TURN);
    if (b) from_b.next(stage, k1 - k0 - round * TURN);
  };
  // What a small epilogue needs comes with the first stages.
  Finish<EPILOGUE, C::BM, C::BN, C::LD, C::PART, C::SLICES, THREADS> finish(p, m0, n0, rank, ranks);
  constexpr bool EARLY = decltype(finish)::PER_THREAD <= 6;
  for (int i = 0; i < C::STAGES - 1; i++) next(i, i * STAGE, p.early_a, p.early_b);
  if (EARLY && p.early_c) finish.read_old();
  follow();
  for (int i = 0; i < C::STAGES - 1; i++) {
    next(i, i * STAGE, !p.early_a, !p.early_b);
    copies_commit();
  }
  if (EARLY && !p.early_c) finish.read_old();

  int slice = threadIdx.x / C::SLICE, warp = threadIdx.x % C::SLICE / 32;
  int wm = warp / C::WN * (C::MI * 16), wn = warp % C::WN * (C::NI * 8);
  Lane<A, 2 * C::MI> lane_a(stages, wm, slice * C::BK);
  Lane<B, C::NI> lane_b(stages + 4 * A::SIZE, wn, slice * C::BK);
  float fa[2 * C::MI][2], fb[C::NI][2];
  unsigned a[2][2 * C::MI][2], b[2][C::NI][2], a_rest[2][2 * C::MI][2], b_rest[2][C::NI][2];
  auto fragments = [&](unsigned stage, int step) {
    lane_a.fragment(fa, stage, step);
    lane_b.fragment(fb, stage, step);
  };
  auto splits = [&](int into) {
    split<THREE>(a[into], a_rest[into], fa);
    split<THREE>(b[into], b_rest[into], fb);
  };
  auto arrived = [&] {
    copies_wait<C::STAGES - 2>();
    __syncthreads();  // this round has landed for all, and the stage before it is free
  };
  auto turn = [](unsigned &stage) { stage = stage == STAGES - STAGE ? 0 : stage + STAGE; };
  unsigned reads = 0, writes = STAGES - STAGE;
  arrived();
  fragments(reads, 0);
  splits(0);

  float sum[C::MI][C::NI][4] = {};
#pragma unroll 1
  for (int round = 0; round < rounds; round++) {
    // The tensor cores cut sums off where float32 rounds. For 3xtf32 they add only
    // the BK products of a round.
    float part[C::MI][C::NI][4] = {};
    auto &to = THREE ? part : sum;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      if (step == STEPS - 1) {
        turn(reads);
        arrived();
      }
      fragments(reads, (step + 1) % STEPS);
      auto &as = a[step % 2], &as_rest = a_rest[step % 2];
      auto &bs = b[step % 2], &bs_rest = b_rest[step % 2];
      auto products = [&](int i) {
        if (THREE) {
#pragma unroll
          for (int j = 0; j < C::NI; j++) mma(to[i][j], as_rest[2 * i], as_rest[2 * i + 1], bs[j]);
#pragma unroll
          for (int j = 0; j < C::NI; j++) mma(to[i][j], as[2 * i], as[2 * i + 1], bs_rest[j]);
        }
#pragma unroll
        for (int j = 0; j < C::NI; j++) mma(to[i][j], as[2 * i], as[2 * i + 1], bs[j]);
      };
#pragma unroll
      for (int i = 0; i < (C::MI + 1) / 2; i++) products(i);
      if (step == 0) {  // this late fragments do not queue behind the copies
        next(round + C::STAGES - 1, writes, true, true);
        copies_commit();
        turn(writes);
      }
      splits((step + 1) % 2);
#pragma unroll
      for (int i = (C::MI + 1) / 2; i < C::MI; i++) products(i);
    }
    if (THREE) {
#pragma unroll
      for (int i = 0; i < C::MI; i++)
#pragma unroll
        for (int j = 0; j < C::NI; j++)
#pragma unroll
          for (int e = 0; e < 4; e++) sum[i][j][e] += part[i][j][e];
    }
  }
  if (!EARLY) finish.read_old();

  // A lane holds columns 2t and 2t+1 of the eights, of rows g of two eights.
  int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2 * C::MI; i++)
#pragma unroll
    for (int j = 0; j < C::NI; j += RowsB::v(j)) {
      float *to = shared + slice * C::PART + (wm + RowsA::row(i, g)) * C::LD + wn + RowsB::row(j, 2 * t);
      auto at = [&](int o, int e) { return sum[i / 2][min(j + o, C::NI - 1)][i % 2 * 2 + e]; };
      if (RowsB::v(j) == 4) {
        *(float4 *)to = make_float4(at(0, 0), at(1, 0), at(2, 0), at(3, 0));
        *(float4 *)(to + 4) = make_float4(at(0, 1), at(1, 1), at(2, 1), at(3, 1));
      } else if (RowsB::v(j) == 2) {
        *(float4 *)to = make_float4(at(0, 0), at(1, 0), at(0, 1), at(1, 1));
      } else {
        *(float2 *)to = make_float2(at(0, 0), at(0, 1));
      }
    }
  __syncthreads();
  finish.write(shared, (float4 *)((char *)shared + BYTES));
#endif
}

}  // namespace

#endif
