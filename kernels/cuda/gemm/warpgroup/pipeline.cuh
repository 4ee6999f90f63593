// What GEMMs by warpgroup MMA have in common: tiles, the pipeline that loads them, the kernel, and its
// launch. A Policy is derived from Stages and has
//
//   Consumer        what multiplies and stores: multiply, store, finish
//   FORMAT          how TMA loads them
//   extents, a, b   of a Gemm
//   ROWS            which operand has the rows of a batch, if k is contiguous in it
//   Beside          the Policy for GEMMs with Gemm::beside
//
// A CTA computes tiles of TILE_M×N one after the other, or in TURNS: two groups of consumers have every other
// tile, and one multiplies while the other stores. TMA loads what their epilogues read as well, in slabs of 32
// columns. k-tiles, whose lines are 128 bytes as the swizzle is, pass through a pipeline in shared memory. Each
// stage has three mbarriers:
//
//   threads                                                                   mbarrier whose phase they end
//   producer, one thread       wait empty → TMA: a, b → ...                   full: all bytes are loaded
//   LO_WARPS, for 3xtf32       wait full → write lo of b → ...                lo_full: lo is written
//   consumers, 2 warpgroups    wait full, lo_full → wgmma ...                 empty: all warps have read it
#pragma once

#include "gemm/epilogue.cuh"
#include "gemm/grouped.cuh"
#include "gemm/warpgroup/output.cuh"
#include "gemm/warpgroup/wgmma.cuh"

namespace gemm {

constexpr int WARPGROUP = 128;                       // threads
constexpr int CONSUMERS = 2, WARPS = 4 * CONSUMERS;  // warpgroups that multiply a tile, and their warps
constexpr int FIRST_TURN = 4;                        // the first of two named barriers
constexpr int LO_WARPS = 3;                          // warps of the producer's warpgroup that write the lo of b

// Extents are those of out[m,n].
struct Extents {
  int m, n, k;
};

constexpr int TILE_M = 64 * CONSUMERS;

enum class Operand { NEITHER, A, B };  // of a product

// tiles_of returns how many tiles of TILE_M×n cover out.
inline int64_t tiles_of(const Extents &e, int n) { return ceil_div<int64_t>(e.m, TILE_M) * ceil_div(e.n, n); }

// KIB is how many KiB stages take, and KIB_BESIDE those of a forward GEMM beside an exchange. The four stages
// of 160 and of 192 columns take at most KIB_BETWEEN, always beside an exchange.
constexpr int KIB = 192, KIB_BESIDE = 144, KIB_BETWEEN = 160, KIB_IN_TURNS = 160;
constexpr int kib_of(int n) { return n == 160 || n == 192 ? KIB_BETWEEN : KIB; }

// Stages has the sizes of a tile, of N columns, and of its pipeline. SPLIT_K CTAs share the k of a tile.
// ELEMENT is the bytes of an element of a and b. X3 is 3xtf32. SLICES: TMA stores c, from buffers behind the
// stages. In turns there is the source of an epilogue.
template <int ELEMENT, bool X3_, bool A_K_, bool B_K_, int N_, int SPLIT_K_, bool SLICES, int KIB_ = kib_of(N_), int TURNS_ = 1>
struct Stages {
  using Maps = typename std::conditional<SLICES, OutputMaps, NoOutputMaps>::type;
  static constexpr bool X3 = X3_, A_K = A_K_, B_K = B_K_;
  static constexpr int LINE = 128, M = TILE_M, N = N_, K = LINE / ELEMENT, SPLIT_K = SPLIT_K_, TURNS = TURNS_;
  static constexpr int THREADS = WARPGROUP * (1 + TURNS * CONSUMERS);
  // Registers of a thread that loads, and of one that multiplies: 128·40 + 256·216, or 128·32 + 512·112, of
  // the CTA's 384·160, or 640·96.
  static constexpr int LOADER_REGISTERS = TURNS > 1 ? 32 : 40, CONSUMER_REGISTERS = TURNS > 1 ? 112 : 216;
  // Where k is not contiguous, TMA loads slabs of a line of rows or columns and all k of the k-tile.
  static constexpr int SLAB = LINE * K, SLABS_B = ceil_div(N, K);
  // Bytes of a k-tile's a and b, of both, of a stage, which has the lo of b as well, and of the CTA, with
  // 1024 to align the first stage.
  static constexpr int A = LINE * M, B = B_K ? LINE * N : SLABS_B * SLAB, LOADED = A + B, STAGE = LOADED + (X3 ? B : 0),
                       STAGES = (KIB_ << 10) / STAGE;
  static constexpr int SOURCE_SLAB = LINE * M, SOURCE_SLABS = TURNS > 1 ? N *int(sizeof(float)) / LINE : 0;
  static constexpr int OUTPUT = STAGES * STAGE, BARRIERS = OUTPUT + (SLICES ? CONSUMERS * SLICE_BUFFERS * SLICE : SOURCE_SLABS * SOURCE_SLAB);
  static constexpr int BYTES = 1024 + BARRIERS + (3 * STAGES + (TURNS + 1) * SOURCE_SLABS) * int(sizeof(Mbarrier));
  // Tiles are walked in strips 16 tiles high, whose a and b stay in L2 (threadblock rasterization).
  static constexpr int RASTER_M = 16;
  static_assert(TURNS == 1 || (SPLIT_K == 1 && !X3), "consumers that take turns meet nobody else");
  static_assert(SPLIT_K == 1 || 4 * M * N <= OUTPUT, "the sums fit in the stages, which they overwrite");
};

// encode_operand makes the tensor map of an operand of rows×k, for tiles of tile_rows. If k is contiguous, only a
// transposed gradient may have a stride beyond k. Else the stride is that of k, and 0 means rows.
template <typename P>
int encode_operand(TensorMap &map, const void *array, bool k_contiguous, int rows, int k, int tile_rows, int stride = 0) {
  if (k_contiguous) return encode<2>(map, array, {{k, 1, P::K}, {rows, KERNELS_TRANSPOSED_STRIDE(k), tile_rows}}, P::FORMAT);
  return encode<2>(map, array, {{rows, 1, P::K}, {k, stride ? stride : rows, P::K}}, P::FORMAT);
}

template <typename P>
int prepare(TmaGemm &out, const Gemm &g) {
  static_cast<Gemm &>(out) = g;
  Extents e = P::extents(g);
  int code = encode_operand<P>(out.map[0], P::a(g), P::A_K, e.m, e.k, P::M, g.stride);
  if (!code) code = encode_operand<P>(out.map[1], P::b(g), P::B_K, e.n, e.k, P::N);
  if (code) return code;
  // A last tile of few rows has a map of its own: TMA takes longer to write zeros than to load.
  int tile = P::ROWS == Operand::A ? P::M : P::N, rows = P::ROWS == Operand::A ? e.m : e.n;
  if (P::ROWS != Operand::NEITHER && rows % tile)
    return encode_operand<P>(out.map[2], P::ROWS == Operand::A ? P::a(g) : P::b(g), true, rows, e.k, rows % tile);
  if (P::TURNS == 1) return cudaSuccess;
  return encode<2>(out.map[2], g.c, {{g.n, 1, P::LINE / int(sizeof(float))}, {g.m, g.n, P::M}}, TileFormat::SWIZZLE_128B);
}

// Tile is the index-th tile of a group: its GEMM, its first row and column, and this CTA's k-tiles of it.
template <typename P>
struct Tile {
  int gemm = 0, m0, n0, k_first, k_end;

  __device__ Tile(const Group<TmaGemm> &group, int index) {
    while (index >= group.ends[gemm]) gemm++;
    if (gemm > 0) index -= group.ends[gemm - 1];
    Extents e = P::extents(group.gemms[gemm]);
    int tiles_m = ceil_div(e.m, P::M), tiles_n = ceil_div(e.n, P::N), k_tiles = ceil_div(e.k, P::K);
    int strip = index / (P::RASTER_M * tiles_n) * P::RASTER_M, rows = min(tiles_m - strip, P::RASTER_M), i = index % (P::RASTER_M * tiles_n);
    m0 = (strip + i % rows) * P::M, n0 = i / rows * P::N;
    int rank = P::SPLIT_K > 1 ? cluster_ctarank() : 0;
    k_first = k_tiles * rank / P::SPLIT_K, k_end = k_tiles * (rank + 1) / P::SPLIT_K;
  }

  __device__ int k_tiles() const { return k_end - k_first; }
};

// Pipeline has the stages, their mbarriers, and the stage that this thread has come to.
template <typename P>
struct Pipeline {
  char *stages;
  Mbarrier *full, *lo_full, *empty;
  Mbarrier *source_full, *source_empty;  // of each slab, and source_full of each turn
  int stage = 0, phase = 0;
  int sources = 0;    // tiles whose source this thread has loaded or read
  bool more = false;  // in turns: another group of consumers has the next tile

  __device__ explicit Pipeline(char *shared)
      : stages(shared), full((Mbarrier *)(shared + P::BARRIERS)), lo_full(full + P::STAGES), empty(lo_full + P::STAGES),
        source_full(empty + P::STAGES), source_empty(source_full + P::TURNS * P::SOURCE_SLABS) {}

  __device__ void start() {
    if (threadIdx.x == 0) {
      for (int i = 0; i < P::STAGES; i++) mbarrier_init(full + i, 1), mbarrier_init(lo_full + i, LO_WARPS), mbarrier_init(empty + i, WARPS);
      for (int i = 0; i < P::TURNS * P::SOURCE_SLABS; i++) mbarrier_init(source_full + i, 1);
      for (int i = 0; i < P::SOURCE_SLABS; i++) mbarrier_init(source_empty + i, WARPS);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  __device__ void next() {
    if (++stage == P::STAGES) stage = 0, phase ^= 1;
  }

  // skip goes on by the k-tiles of another's tile.
  __device__ void skip(int k_tiles) {
    phase ^= (stage + k_tiles) / P::STAGES & 1;
    stage = (stage + k_tiles) % P::STAGES;
  }

  // A group of consumers multiplies once those of the tile before have waited for all of its k-tiles: an
  // mbarrier does not tell apart a phase and the next but one.
  __device__ static int turn() { return P::TURNS > 1 ? (threadIdx.x - WARPGROUP) / (CONSUMERS * WARPGROUP) : 0; }
  __device__ static void wait_turn() { bar_sync(FIRST_TURN + turn(), P::TURNS * WARPS * 32); }
  __device__ void pass_turn() const {
    if (P::TURNS > 1 && more) bar_arrive(FIRST_TURN + 1 - turn(), P::TURNS * WARPS * 32);
  }

  __device__ char *stage_base() const { return stages + stage * P::STAGE; }
  __device__ void wait_full() {
    mbarrier_wait(full + stage, phase);
    if (P::X3) mbarrier_wait(lo_full + stage, phase);
  }
  // wait_empty waits for the phase before; the first time that is phase -1, which counts as ended.
  __device__ void wait_empty() { mbarrier_wait(empty + stage, phase ^ 1); }
  __device__ void release(int stage) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + stage);
  }

  // load_operand loads the k-tile of ROWS rows of an operand.
  template <bool K_CONTIGUOUS, int ROWS>
  __device__ static void load_operand(char *to, const TensorMap &map, int row, int k, Mbarrier *barrier) {
    if constexpr (K_CONTIGUOUS) {
      tma_load(to, map, k, row, barrier);
    } else {
#pragma unroll
      for (int i = 0; i < ROWS; i += P::K) tma_load(to + i / P::K * P::SLAB, map, row + i, k, barrier);
    }
  }

  // load loads the k-tiles of a tile. The producer calls it, one thread.
  __device__ void load(const Group<TmaGemm> &group, int index) {
    Tile<P> tile(group, index);
    const TmaGemm &g = group.gemms[tile.gemm];
    Extents e = P::extents(g);
    const int none_a = P::ROWS == Operand::A ? max(tile.m0 + P::M - e.m, 0) : 0, none_b = P::ROWS == Operand::B ? max(tile.n0 + P::N - e.n, 0) : 0;
    const TensorMap &a = g.map[none_a ? 2 : 0], &b = g.map[none_b ? 2 : 1];
    for (int k = tile.k_first * P::K; k < tile.k_end * P::K; k += P::K, next()) {
      wait_empty();
      Mbarrier *barrier = full + stage;
      mbarrier_arrive_expect_tx(barrier, P::LOADED - (none_a + none_b) * P::LINE);
      load_operand<P::A_K, P::M>(stage_base(), a, tile.m0, k, barrier);
      load_operand<P::B_K, P::N>(stage_base() + P::A, b, tile.n0, k, barrier);
    }
  }

  // load_source loads the slabs of a tile's source, each once all warps have read that of the tile before. One
  // thread calls it.
  __device__ void load_source(const Group<TmaGemm> &group, int index, int turn) {
    Tile<P> tile(group, index);
    const TmaGemm &g = group.gemms[tile.gemm];
    if (g.epilogue == KERNELS_NONE) return;
    for (int i = 0; i < P::SOURCE_SLABS; i++) {
      Mbarrier *barrier = source_full + turn * P::SOURCE_SLABS + i;
      mbarrier_wait(source_empty + i, sources + 1);  // phase sources - 1
      mbarrier_arrive_expect_tx(barrier, P::SOURCE_SLAB);
      tma_load(source(i), g.map[2], tile.n0 + i * (P::LINE / int(sizeof(float))), tile.m0, barrier);
    }
    sources++;
  }

  __device__ char *source(int slab) const { return stages + P::OUTPUT + slab * P::SOURCE_SLAB; }
  __device__ void wait_source(int slab) const { mbarrier_wait(source_full + turn() * P::SOURCE_SLABS + slab, sources); }
  // release_source lets TMA write to a slab that this warp has read. The fence orders its reads before TMA's writes.
  __device__ void release_source(int slab) const {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(source_empty + slab);
  }
};

// write_lo_b writes this thread's share of the lo of b, what truncation drops, behind each k-tile's b.
template <typename P>
__device__ void write_lo_b(Pipeline<P> &pipeline, int k_tiles) {
  for (int i = 0; i < k_tiles; i++, pipeline.next()) {
    mbarrier_wait(pipeline.full + pipeline.stage, pipeline.phase);
    float4 *b = (float4 *)(pipeline.stage_base() + P::A), *lo = b + P::B / 16;
#pragma unroll 4
    for (int e = threadIdx.x - 32; e < P::B / 16; e += 32 * LO_WARPS) {
      float4 v = b[e];
      lo[e] = make_float4(v.x - truncated(v.x), v.y - truncated(v.y), v.z - truncated(v.z), v.w - truncated(v.w));
    }
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(pipeline.lo_full + pipeline.stage);
  }
}

// reduce_split_k adds the sums d of the cluster's CTAs in the order of k, and leaves this CTA's 1/SPLIT_K of
// the columns in d[0], d[1], ... The sums overwrite the stages.
template <typename P>
__device__ void reduce_split_k(float (&d)[P::N / 2], float *sums) {
  constexpr int OWN = P::N / 2 / P::SPLIT_K;
  const int thread = threadIdx.x - WARPGROUP;
  bar_sync(1, WARPS * 32);  // all consumers have read the stages
#pragma unroll
  for (int i = 0; i < P::N / 2; i += 4) *(float4 *)(sums + (i / 4 * WARPS * 32 + thread) * 4) = make_float4(d[i], d[i + 1], d[i + 2], d[i + 3]);
  barrier_cluster();
#pragma unroll
  for (int r = 0; r < P::SPLIT_K; r++) {
    unsigned from = mapa(sums + ((OWN / 4 * cluster_ctarank()) * WARPS * 32 + thread) * 4, r);
#pragma unroll
    for (int i = 0; i < OWN; i += 4) {
      float4 v = ld_shared_cluster(from + i / 4 * (WARPS * 32 * 16));
      d[i] = r ? d[i] + v.x : v.x, d[i + 1] = r ? d[i + 1] + v.y : v.y, d[i + 2] = r ? d[i + 2] + v.z : v.z, d[i + 3] = r ? d[i + 3] + v.w : v.w;
    }
  }
  barrier_cluster_arrive();
}

// compute_tiles computes the group's tiles from begin to end.
template <typename P>
__device__ void compute_tiles(const Group<TmaGemm> &group, int begin, int end, const typename P::Maps &maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  Pipeline<P> pipeline(shared + (-address(shared) & 1023));
  pipeline.start();
  pdl_wait();
  int first = begin + blockIdx.x / P::SPLIT_K, step = gridDim.x / P::SPLIT_K;
  if (threadIdx.x < WARPGROUP) {
    setmaxnreg_dec<P::LOADER_REGISTERS>();
    for (int i = first, n = 0; i < end; i += step, n++) {
      if (threadIdx.x == 0) pipeline.load(group, i);
      if (P::X3 && threadIdx.x >= 32) write_lo_b(pipeline, Tile<P>(group, i).k_tiles());
      if (P::TURNS > 1 && threadIdx.x == 32) pipeline.load_source(group, i, n % P::TURNS);
    }
    if (P::SPLIT_K > 1) {
      __syncwarp();
      barrier_cluster();
      barrier_cluster_arrive();
    }
  } else {
    setmaxnreg_inc<P::CONSUMER_REGISTERS>();
    typename P::Consumer consumer(maps, pipeline.stages + P::OUTPUT);
    for (int i = first, n = 0; i < end; i += step, n++) {
      Tile<P> tile(group, i);
      const Gemm &g = group.gemms[tile.gemm];
      if (P::TURNS > 1) {
        if (n % P::TURNS != pipeline.turn()) {
          pipeline.skip(tile.k_tiles());
          continue;
        }
        pipeline.more = i + step < end;
        if (n > 0) pipeline.wait_turn();
      }
      consumer.multiply(pipeline, tile, g);
      if constexpr (P::SPLIT_K > 1) reduce_split_k<P>(consumer.d, (float *)pipeline.stages);
      if constexpr (P::TURNS > 1) consumer.store_in_turn(pipeline, g, tile.m0, tile.n0);
      else consumer.store(g, tile.m0, tile.n0);
      __syncwarp();  // lanes past the last row may return from store early
    }
    consumer.finish();
  }
  if (P::SPLIT_K > 1) barrier_cluster_wait();  // the other CTAs may still read this one's sums
#else
  __trap();  // never runs: compute capability 9.0 loads the sm_90a code
#endif
}

template <typename P>
__global__ void warpgroup_gemm(const CONSTANT Group<TmaGemm> group, int begin, int end, const CONSTANT typename P::Maps maps) {
  compute_tiles<P>(group, begin, end, maps);
}

// The same in turns, whose CTAs have more threads of fewer registers than kernels.mk gives.
template <typename P>
__global__ void __launch_bounds__(P::THREADS, 1)
    warpgroup_gemm_in_turns(const CONSTANT Group<TmaGemm> group, int begin, int end, const CONSTANT typename P::Maps maps) {
  compute_tiles<P>(group, begin, end, maps);
}

template <typename P>
constexpr auto kernel() {
  if constexpr (P::TURNS > 1) return warpgroup_gemm_in_turns<P>;
  else return warpgroup_gemm<P>;
}

template <typename P>
int64_t group_tiles(const Gemm *g, int count) {
  int64_t all = 0;
  for (int i = 0; i < count; i++) all += tiles_of(P::extents(g[i]), P::N);
  return all;
}

// launch_tiles launches tiles begin to end of GEMMs of one layout, at most Group::MAX.
template <typename P>
int launch_tiles(uintptr_t stream, const Gemm *g, int count, int64_t begin, int64_t end) {
  if constexpr (!std::is_same<P, typename P::Beside>::value) {
    // Each CTA takes 1 KiB more, and an exchange's up to 1 KiB beside its stages.
    static_assert(P::Beside::BYTES + EXCHANGE_SHARED + 3 * 1024 <= 228 << 10);
    if (g[0].beside) return launch_tiles<typename P::Beside>(stream, g, count, begin, end);
  }
  constexpr auto KERNEL = kernel<P>();
  if (int code = opt_in_shared<KERNEL>(P::BYTES)) return code;
  if (group_tiles<P>(g, count) > INT32_MAX) return cudaErrorInvalidValue;
  Group<TmaGemm> group = {};
  for (int i = 0; i < count; i++) {
    if (int code = prepare<P>(group.gemms[i], g[i])) return code;
    group.ends[i] = int(group_tiles<P>(g, i + 1));
  }
  typename P::Maps maps = {};  // only groups of one GEMM have them
  if (int code = maps.encode(g[0])) return code;
  unsigned sms = device().sms, ctas = P::SPLIT_K > 1 ? unsigned(end - begin) * P::SPLIT_K : unsigned(std::min(end - begin, int64_t(sms)));
  // With SMs to spare PDL is slower, perhaps because early CTAs take the SMs that the kernel before leaves
  // idle, so that some GPCs have more work than others.
  bool pdl = P::SPLIT_K > 1 || 16 * ctas >= 15 * sms;
  return launch(stream, {ctas, P::THREADS, size_t(P::BYTES), P::SPLIT_K, pdl}, KERNEL, group, int(begin), int(end), maps);
}

template <typename P>
int launch_policy(uintptr_t stream, const Gemm *g, int count) {
  return launch_tiles<P>(stream, g, count, 0, group_tiles<P>(g, count));
}

// Times estimates how long tiles of a Family take: waves × (k-tiles × ns of a k-tile + ns of a tile's start
// and end), by figures of an H200 in tf32, whose k-tiles have as many bytes and take as long as those of
// bf16. A k-tile of 3xtf32 takes three times as long, and registers limit its N to 128. In split-K a CTA
// computes one tile only, so all must be one wave, and each CTA must have a k-tile.
//
// MEMORY_NS is how long memory takes for what all SMs read and write of a tile of 128 columns when they end
// it. Where that is longer than they multiply, they wait for it. STORE_NS is how much longer than others they take
// to end it. In turns they multiply meanwhile.
template <typename Family>
struct Times {
  template <int N, int SPLIT_K>
  using Policy = typename Family::template Policy<N, SPLIT_K>;
  using P = Policy<128, 1>;
  static constexpr int64_t NEVER = INT64_MAX / 100, SECOND_LAUNCH = 5000;
  static constexpr int K_TILE_NS = 370, START_NS = 4000;  // of 128 columns
  static constexpr int K_TILE_IN_TURNS_NS = 390, TURNS_NS = 9000;

  // A Plan is a way to launch all, and its estimated time.
  struct Plan {
    int64_t ns;
    int (*launch)(uintptr_t, const Gemm *, int);
  };

  const Gemm *g;
  int count;
  int64_t k_tiles = 0, fewest = INT64_MAX, sms = device().sms;  // k_tiles: the most that a tile has

  Times(const Gemm *first, int n) : g(first), count(n) {
    for (int i = 0; i < n; i++) {
      int64_t own = ceil_div(g[i].k, P::K);
      k_tiles = std::max(k_tiles, own), fewest = std::min(fewest, own);
    }
  }

  // ns returns the time of tiles of N columns. 64, 128 and 256 columns were measured, others are between.
  int64_t ns(int64_t tiles, int n, int split_k) const {
    if (split_k > 1 && (tiles * split_k > ctas_at_once(split_k) || fewest < split_k)) return NEVER;
    int k_tile = std::max(250, K_TILE_NS + (n - 128) * 35 / 16);
    int start_and_end = START_NS + (n - 128) * 125 / 8 + Family::STORE_NS * n / 128 + (split_k > 1 ? 1000 + 500 * split_k : 0);
    int64_t multiplies = ceil_div(k_tiles, split_k) * k_tile * (P::X3 ? 3 : 1), memory = Family::MEMORY_NS * n * std::min(tiles, sms) / (128 * sms);
    return ceil_div(tiles * split_k, sms) * (std::max(multiplies, memory) + start_and_end);
  }

  // ns_in_turns returns that of tiles of 128 columns in turns, of which an SM has two at least.
  int64_t ns_in_turns(int64_t tiles) const {
    return tiles > sms ? ceil_div(tiles, sms) * std::max<int64_t>(k_tiles * K_TILE_IN_TURNS_NS, Family::MEMORY_NS) + TURNS_NS : NEVER;
  }

  template <int N, int SPLIT_K>
  void consider(Plan &best) const {
    int64_t t = ns(group_tiles<Policy<N, SPLIT_K>>(g, count), N, SPLIT_K);
    if (t < best.ns) best = {t, launch_policy<Policy<N, SPLIT_K>>};
  }
};

// launch_fastest chooses the Policies of a Family with the least estimated time: all tiles of one width, or of
// 128 columns with the last wave in split-K. A Family may have tiles BETWEEN 128 and 256 columns, also shared by two
// CTAs, PAIRS of CTAs that share 64, and consumers in TURNS, which leave no shared memory to an exchange of gradients.
// A second launch must save a tenth, since these are estimates.
template <typename Family>
int launch_fastest(uintptr_t stream, const Gemm *g, int count) {
  using T = Times<Family>;
  using P = typename T::P;
  T times(g, count);
  typename T::Plan best = {T::NEVER, nullptr};
  times.template consider<128, 1>(best);
  if constexpr (!P::X3) {
    if constexpr (Family::BETWEEN) times.template consider<160, 1>(best), times.template consider<192, 1>(best);
    times.template consider<256, 1>(best);
  }
  if constexpr (Family::PAIRS) times.template consider<64, 2>(best);
  if constexpr (Family::BETWEEN && !P::X3) times.template consider<192, 2>(best);
  const int64_t tiles = group_tiles<P>(g, count), whole = tiles / times.sms * times.sms, rest = tiles - whole;
  if constexpr (Family::TURNS > 1)
    if (int64_t t = times.ns_in_turns(tiles); t < best.ns && g[0].epilogue != KERNELS_NONE) best = {t, launch_policy<typename Family::InTurns>};
  int64_t pair = times.ns(rest, 128, 2), four = times.ns(rest, 128, 4);
  int64_t split = (whole ? times.ns(whole, 128, 1) + T::SECOND_LAUNCH : 0) + std::min(pair, four);
  if (!rest || 10 * split >= (whole ? 9 : 10) * best.ns) return best.launch(stream, g, count);
  if (whole)
    if (int code = launch_tiles<P>(stream, g, count, 0, whole)) return code;
  return four < pair ? launch_tiles<typename T::template Policy<128, 4>>(stream, g, count, whole, tiles)
                     : launch_tiles<typename T::template Policy<128, 2>>(stream, g, count, whole, tiles);
}

// launch_all launches GEMMs of one layout, Group::MAX at once.
template <typename Family>
int launch_all(uintptr_t stream, const Gemm *g, int count) {
  constexpr int MAX = Group<TmaGemm>::MAX;
  if constexpr (HAVE_WARPGROUP) {
    for (int i = 0; i < count; i += MAX)
      if (int code = launch_fastest<Family>(stream, g + i, std::min(count - i, MAX))) return code;
    return cudaSuccess;
  }
  return cudaErrorNotSupported;
}

}  // namespace gemm
