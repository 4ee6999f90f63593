// What a persistent training kernel would stand on: the cost of a launch, of a
// barrier, of a flag, of a reduction, of a push to a neighbour, and the rates of
// the card. One kernel that stays on the card and holds the weights in shared
// memory saves the launches and the reading of the weights; it pays for that
// with barriers or flags, and with sums over blocks. These are the prices.
//
//   nvcc -O3 -std=c++17 -arch=sm_90 tools/ground/ground.cu -o build/ground
//   build/ground > ground.csv
//
// A few seconds. Standard output is CSV, one figure a line: figure, value, unit,
// how. What the card or the toolkit lacks is left out, with a line on standard
// error; what fails is named there, and the exit status is 1.
//
// Every figure is the median of REPEATS measurements after a warm-up. What is
// timed on the device runs n and then 2n steps, and the difference over n is the
// figure, so that launching, resetting and recording events cancel out.
//
// No block waits forever: a grid that spins is launched cooperatively, so that
// the driver refuses it unless all its blocks are resident at once, or spins only
// within a cluster, whose blocks always are; and a spin of more than SPIN_LIMIT
// cycles traps, which ends the kernel with an error. (The barrier of cooperative
// groups has no such limit; the driver's check is all it needs.)
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace cg = cooperative_groups;

namespace {

constexpr int REPEATS = 9;
constexpr long long SPIN_LIMIT = 2'000'000'000;  // about a second
constexpr size_t ALONE = 120 << 10;              // shared memory that leaves no room for another such block on its SM
constexpr int LINE = 64;                         // words between two flags: each has its cache lines for itself

// ---- The host's side: errors, memory, launches, time ----

struct Skip : std::runtime_error {  // the card or the toolkit lacks it
  using std::runtime_error::runtime_error;
};

#define STRING(x) #x
#define LINE_OF(x) STRING(x)
#define CHECK(call) check(call, "line " LINE_OF(__LINE__) ": " #call)

void check(cudaError_t e, const char *call) {
  if (e == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(e));
}

void require(bool ok, const char *what) {
  if (!ok) throw std::runtime_error(std::string("wrong result: ") + what);
}

int sms;              // multiprocessors of the card
cudaStream_t stream;  // all work goes here

template <typename T>
struct Array {  // device memory, zeroed
  T *p = nullptr;
  size_t n;
  explicit Array(size_t n) : n(n) {
    CHECK(cudaMalloc(&p, n * sizeof(T)));
    zero();
  }
  ~Array() {
    if (cudaFree(p) != cudaSuccess) fprintf(stderr, "ground: cudaFree failed\n");
  }
  Array(const Array &) = delete;
  void zero() { CHECK(cudaMemsetAsync(p, 0, n * sizeof(T), stream)); }
  std::vector<T> host() const {
    std::vector<T> h(n);
    CHECK(cudaMemcpyAsync(h.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    return h;
  }
};

struct Shape {
  int blocks, threads;
  size_t shared = 0;
  bool cooperative = false;
  bool early = false;  // programmatic dependent launch
  int cluster = 1;
};

// Config is what cudaLaunchKernelEx takes; it points into itself.
struct Config {
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attributes[3];
  explicit Config(const Shape &s) {
    config.gridDim = dim3(s.blocks);
    config.blockDim = dim3(s.threads);
    config.dynamicSmemBytes = s.shared;
    config.stream = stream;
    config.attrs = attributes;
    if (s.cooperative) {
      cudaLaunchAttribute &a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeCooperative;
      a.val.cooperative = 1;
    }
    if (s.early) {
      cudaLaunchAttribute &a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      a.val.programmaticStreamSerializationAllowed = 1;
    }
    if (s.cluster > 1) {
      cudaLaunchAttribute &a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeClusterDimension;
      a.val.clusterDim.x = s.cluster;
      a.val.clusterDim.y = a.val.clusterDim.z = 1;
    }
  }
  Config(const Config &) = delete;
};

template <typename... P>
void allow_shared(void (*kernel)(P...), size_t bytes) {
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
}

template <typename... P, typename... A>
void launch(const Shape &s, void (*kernel)(P...), A... args) {
  if (s.shared) allow_shared(kernel, s.shared);
  Config c(s);
  CHECK(cudaLaunchKernelEx(&c.config, kernel, P(args)...));
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// device_us is how long the device takes over what work puts into the stream.
template <typename F>
double device_us(F work) {
  static cudaEvent_t from = nullptr, to = nullptr;
  if (!from) {
    CHECK(cudaEventCreate(&from));
    CHECK(cudaEventCreate(&to));
  }
  CHECK(cudaEventRecord(from, stream));
  work();
  CHECK(cudaEventRecord(to, stream));
  CHECK(cudaEventSynchronize(to));
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, from, to));
  return ms * 1e3;
}

template <typename F>
double median_of(F measure) {
  measure();
  std::vector<double> v;
  for (int i = 0; i < REPEATS; i++) v.push_back(measure());
  std::nth_element(v.begin(), v.begin() + REPEATS / 2, v.end());
  return v[REPEATS / 2];
}

// step_us is the time of one of the steps of which work(n) puts n into the stream.
template <typename F>
double step_us(int n, F work) {
  return median_of([&] {
    double once = device_us([&] { work(n); }), twice = device_us([&] { work(2 * n); });
    return (twice - once) / n;
  });
}

void figure(const std::string &name, double value, const char *unit, const std::string &how) {
  printf("%s,%.4g,%s,%s\n", name.c_str(), value, unit, how.c_str());
  fflush(stdout);
}

// ---- Flags and barriers on the device ----

__device__ unsigned load_acquire(const unsigned *p) {
  unsigned v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ void store_release(unsigned *p, unsigned v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ void add_release(unsigned *p, unsigned v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// spin returns when reached() does. Reading the clock costs a few cycles in a
// loop that waits hundreds for its load.
template <typename F>
__device__ void spin(F reached) {
  long long start = clock64();
  while (!reached()) {
    if (clock64() - start > SPIN_LIMIT) __trap();
  }
}

__device__ void wait_for(const unsigned *p, unsigned at_least) {
  spin([&] { return load_acquire(p) >= at_least; });
}

// barrier: every block adds one to a counter in L2 and waits until all have. The
// counter only grows, so target is the blocks times the barriers so far, and no
// block has to reset it.
__device__ void barrier(unsigned *arrived, unsigned target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    add_release(arrived, 1);
    wait_for(arrived, target);
  }
  __syncthreads();
}

// ---- 1. Launches ----

__global__ void nothing() {}

// With programmatic dependent launch the next kernel is set up while this one
// runs, and waits here for its end.
__global__ void nothing_early() {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

void node_figure(const char *name, bool early, const char *how) {
  constexpr int NODES = 200;
  Shape shape = {sms, 256};
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  std::string refused;
  try {
    for (int i = 0; i < NODES; i++) {
      shape.early = early && i > 0;  // the first has none before it
      launch(shape, early ? nothing_early : nothing);
    }
  } catch (const std::exception &e) {
    refused = e.what();
  }
  cudaGraph_t graph = nullptr;  // the capture must be ended, and its memory freed, also when a launch was refused
  cudaGraphExec_t exec = nullptr;
  cudaError_t e = cudaStreamEndCapture(stream, &graph);
  if (e == cudaSuccess && refused.empty()) e = cudaGraphInstantiateWithFlags(&exec, graph, 0);
  if (graph) CHECK(cudaGraphDestroy(graph));
  if (!exec) {
    cudaGetLastError();
    std::string why = refused.empty() ? cudaGetErrorString(e) : refused;
    if (early) throw Skip(std::string(name) + ": the driver does not capture such launches: " + why);
    throw std::runtime_error(why);
  }
  double us = step_us(20, [&](int n) {
    for (int i = 0; i < n; i++) CHECK(cudaGraphLaunch(exec, stream));
  });
  CHECK(cudaGraphExecDestroy(exec));
  figure(name, us / NODES, "us", how);
}

void launches() {
  constexpr int N = 500;  // fewer than the launches that the driver queues, so that none waits for a place
  Shape shape = {sms, 256};
  auto all = [&] {
    for (int i = 0; i < N; i++) launch(shape, nothing);
  };
  double host = median_of([&] {
    double start = now_us();
    all();
    double us = now_us() - start;
    CHECK(cudaStreamSynchronize(stream));
    return us / N;
  });
  figure("launch_host", host, "us", "time the host spends on one of 500 launches of an empty kernel; one block per SM");
  double both = median_of([&] {
    double start = now_us();
    all();
    CHECK(cudaStreamSynchronize(stream));
    return (now_us() - start) / N;
  });
  figure("launch_to_end", both, "us", "the same until the device is done");
  node_figure("graph_node", false, "an empty kernel in a graph after another; one block of 256 threads per SM");
}

void early_launches() {
  node_figure("graph_node_early", true, "the same with programmatic dependent launch: trigger first then wait");
}

// ---- 2. Grid barriers ----

__global__ void cooperative_barriers(int n) {
  cg::grid_group grid = cg::this_grid();
  for (int i = 0; i < n; i++) grid.sync();
}

__global__ void atomic_barriers(unsigned *arrived, int n) {
  for (int i = 1; i <= n; i++) barrier(arrived, i * gridDim.x);
}

void barriers() {
  Array<unsigned> arrived(1);
  for (int threads : {256, 1024}) {
    Shape shape = {sms, threads, ALONE, true};
    std::string of = std::to_string(threads);
    double us = step_us(1000, [&](int n) { launch(shape, cooperative_barriers, n); });
    figure("barrier_cooperative_" + of, us, "us",
           "cooperative groups grid.sync; one block of " + of + " threads per SM");
    us = step_us(1000, [&](int n) {
      arrived.zero();
      launch(shape, atomic_barriers, arrived.p, n);
    });
    require(arrived.host()[0] == 2000u * sms, "arrivals at the barrier");
    figure("barrier_atomic_" + of, us, "us", "one red.release and an acquire spin a block; " + of + " threads");
  }
}

// ---- 3. Flags ----

// relay: blocks 0, stride, 2 stride ... set one flag in turn, each when it has
// seen the one before it do so, while all the others poll the flag too. A step is
// one hop, from a producer's release store to a consumer that acts on it, with as
// many pollers as there are members but one. One thread a block: a real hop adds
// a block barrier on either side.
__global__ void relay(unsigned *flag, int members, int stride, int steps) {
  int me = blockIdx.x / stride;
  if (blockIdx.x % stride || me >= members || threadIdx.x) return;
  for (int s = me; s < steps; s += members) {
    wait_for(flag, s);
    store_release(flag, s + 1);
  }
}

// fan: block 0 sets a flag, each consumer adds to a counter when it sees it, and
// block 0 waits for all of them. A step is the slowest way there and back.
__global__ void fan(unsigned *flag, int members, int stride, int steps) {
  int me = blockIdx.x / stride, consumers = members - 1;
  if (blockIdx.x % stride || me >= members || threadIdx.x) return;
  unsigned *seen = flag + LINE;
  for (int s = 1; s <= steps; s++) {
    if (me == 0) {
      store_release(flag, s);
      wait_for(seen, s * consumers);
    } else {
      wait_for(flag, s);
      add_release(seen, 1);
    }
  }
}

void flags() {
  constexpr int STEPS = 1000;
  Array<unsigned> flag(2 * LINE);
  Shape shape = {sms, 32, ALONE, true};
  auto hop = [&](int members, int stride) {
    double us = step_us(STEPS, [&](int n) {
      flag.zero();
      launch(shape, relay, flag.p, members, stride, n);
    });
    require(flag.host()[0] == 2 * STEPS, "hops");
    return us;
  };
  // How far two SMs are apart, and from the part of L2 that has the flag, differs:
  // block 0 with twelve others.
  std::vector<double> pairs;
  for (int i = 1; i <= 12; i++) pairs.push_back(hop(2, i * (sms - 1) / 12));
  std::sort(pairs.begin(), pairs.end());
  figure("flag_hop_1", pairs[6], "us",
         "release store to acquire spin on another SM; one way; median of 12 pairs of SMs");
  figure("flag_hop_1_nearest", pairs.front(), "us", "the fastest of the 12 pairs");
  figure("flag_hop_1_farthest", pairs.back(), "us", "the slowest of the 12 pairs");
  for (int consumers : {7, sms - 1}) {
    std::string of = std::to_string(consumers);
    int members = consumers + 1, stride = sms / members;
    figure("flag_hop_" + of, hop(members, stride), "us", "one way to one of " + of + " blocks that poll the flag");
    double us = step_us(STEPS, [&](int n) {
      flag.zero();
      launch(shape, fan, flag.p, members, stride, n);
    });
    require(flag.host()[LINE] == 2u * STEPS * consumers, "answers to the flag");
    figure("flag_fan_" + of, us, "us",
           "one flag to " + of + " blocks and the last of their answers back by atomic add");
  }
}

// ---- 4. A sum over blocks ----

// The output of a layer, 64 x 784 floats, as SPLITS partial sums of 200 KB each:
// 2.2 MB. The weights lie in 2-D tiles, so SPLITS blocks have a partial sum of the
// same slice of the output, and there are as many slices as the SMs allow.
constexpr int SPLITS = 11;
constexpr int OUTPUT = 64 * 784 / 4;  // in float4; a multiple of 8

enum Way { IN_ORDER, STAGGERED, VECTOR, WRITTEN };

// The results of the atomics are not used, so they become red.add. Neighbouring
// threads add to neighbouring floats, or float4 where there are such atomics.
__device__ void add(float *p, float v) { atomicAdd(p, v); }

#if CUDART_VERSION >= 12010
__device__ void add(float4 *p, float v) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(p, make_float4(v, v, v, v));
#endif
}
#endif

// add_all adds v to p[0], ..., p[n-1], the block's threads side by side, from
// p[first] on and around.
template <typename T>
__device__ void add_all(T *p, int n, int first, float v) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) add(p + (i + first < n ? i + first : i + first - n), v);
}

// A step leaves the sum in L2 where every block may read it. By atomics: add into
// an output that is zero, and make the next step's zero; one barrier. Of three
// outputs one is added into, one made zero, and one, the last step's, left to its
// readers. Written: store the partial sums, barrier, add each output's up, barrier.
template <Way WAY>
__global__ void __launch_bounds__(256) reduce(float4 *sums, float4 *partials, unsigned *arrived, int steps) {
  int slices = gridDim.x / SPLITS, slice = blockIdx.x / SPLITS, split = blockIdx.x % SPLITS;
  int length = (OUTPUT / 8 + slices - 1) / slices * 8, start = slice * length;  // whole 128-byte lines
  if (slice >= slices) start = OUTPUT;  // a block too many: it only comes to the barrier
  int count = max(0, min(length, OUTPUT - start));
  int share = (OUTPUT / 8 + gridDim.x - 1) / gridDim.x * 8, first = blockIdx.x * share;  // of the finished output
  int end = min(first + share, OUTPUT);
  unsigned target = 0;
  for (int s = 0; s < steps; s++) {
    float v = split + s % 4;  // small integers: any order of the additions is exact
    float4 *sum = sums + s % 3 * OUTPUT;
    if (WAY == WRITTEN) {
      float4 *mine = partials + split * OUTPUT + start;
      for (int i = threadIdx.x; i < count; i += blockDim.x) mine[i] = make_float4(v, v, v, v);
      barrier(arrived, target += gridDim.x);
      for (int i = first + threadIdx.x; i < end; i += blockDim.x) {
        float4 t = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < SPLITS; k++) {
          float4 p = __ldcg(partials + k * OUTPUT + i);
          t = make_float4(t.x + p.x, t.y + p.y, t.z + p.z, t.w + p.w);
        }
        sum[i] = t;
      }
    } else {
      float4 *next = sums + (s + 1) % 3 * OUTPUT;
      for (int i = first + threadIdx.x; i < end; i += blockDim.x) next[i] = make_float4(0, 0, 0, 0);
      // Staggered: each of the blocks that share a slice begins elsewhere in it, at
      // the first float of a 128-byte line.
      int shift = WAY == IN_ORDER ? 0 : split * count / SPLITS / 8 * 8;
#if CUDART_VERSION >= 12010
      if (WAY == VECTOR) add_all(sum + start, count, shift, v);
#endif
      if (WAY != VECTOR) add_all(reinterpret_cast<float *>(sum + start), 4 * count, 4 * shift, v);
    }
    barrier(arrived, target += gridDim.x);
  }
}

template <Way WAY>
void reduction(const char *name, const char *how) {
  constexpr int STEPS = 200;
  if (sms < SPLITS) throw Skip("reductions: fewer SMs than partial sums");
  Array<float4> sums(3 * OUTPUT), partials(SPLITS * OUTPUT);
  Array<unsigned> arrived(1);
  Shape shape = {sms, 256, ALONE, true};
  double us = step_us(STEPS, [&](int n) {
    sums.zero();
    arrived.zero();
    launch(shape, reduce<WAY>, sums.p, partials.p, arrived.p, n);
  });
  int last = 2 * STEPS - 1;
  float want = SPLITS * (SPLITS - 1) / 2 + SPLITS * (last % 4);
  std::vector<float4> got = sums.host();
  for (int i = 0; i < OUTPUT; i++) {
    float4 g = got[last % 3 * OUTPUT + i];
    require(g.x == want && g.y == want && g.z == want && g.w == want, name);
  }
  figure(name, us, "us", how);
}

void reductions() {
  reduction<IN_ORDER>("reduce_atomic_in_order",
                      "2.2 MB of red.add.f32 by 11 blocks an output in the same order; 1 barrier");
  reduction<STAGGERED>("reduce_atomic", "the same with each of the 11 beginning elsewhere; 1 barrier");
  reduction<WRITTEN>("reduce_written", "2.2 MB written then barrier then every output's 11 added; 2 barriers");
}

void vector_reduction() {
#if CUDART_VERSION >= 12010
  reduction<VECTOR>("reduce_atomic_vector", "as reduce_atomic with four floats an atomic; 1 barrier");
#else
  throw Skip("reduce_atomic_vector: atomics of four floats need nvcc 12.1");
#endif
}

// ---- 5. and 6. Clusters ----

__device__ unsigned load_acquire_cluster(const unsigned *p) {
  unsigned v;
  asm volatile("ld.acquire.cluster.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ void store_release_cluster(unsigned *p, unsigned v) {
  asm volatile("st.release.cluster.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

constexpr int PUSH_MAX = 64 << 10;
constexpr size_t PUSH_SHARED = 128 + 2 * PUSH_MAX;  // a flag, what is sent, where it lands

// copy has the block's threads copy n words of 16 bytes, each with IN_FLIGHT loads
// before their stores: the compiler cannot know that the two do not overlap.
__device__ void copy(uint4 *to, const uint4 *from, int n) {
  constexpr int IN_FLIGHT = 4;
  for (int first = threadIdx.x; first < n; first += IN_FLIGHT * blockDim.x) {
    uint4 v[IN_FLIGHT];
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; k++) {
      int i = first + k * blockDim.x;
      if (i < n) v[k] = from[i];
    }
#pragma unroll
    for (int k = 0; k < IN_FLIGHT; k++) {
      int i = first + k * blockDim.x;
      if (i < n) to[i] = v[k];
    }
  }
}

// push: a block copies bytes from its shared memory into a neighbour's and then
// sets a flag there, on which the neighbour spins in its own shared memory. In a
// ring every block pushes to the next one at once: the rate. Otherwise blocks 0
// and 1 push to and fro, so that a step is two pushes one after the other: the
// latency. Plain stores of 16 bytes: bulk copies need a toolkit newer than the
// oldest this is built with.
__global__ void __launch_bounds__(256) push(unsigned *wrong, int bytes, bool ring, int steps) {
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned *flag = reinterpret_cast<unsigned *>(shared);
  uint4 *from = reinterpret_cast<uint4 *>(shared + 128), *landed = from + PUSH_MAX / 16;
  cg::cluster_group cluster = cg::this_cluster();
  unsigned rank = cluster.block_rank(), size = cluster.num_blocks();
  int n = bytes / 16;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    from[i] = make_uint4(rank, i, i + 1, ~i);
    landed[i] = make_uint4(~0u, 0, 0, 0);
  }
  if (threadIdx.x == 0) *flag = 0;
  cluster.sync();
  if (ring || rank < 2) {
    unsigned to = ring ? (rank + 1) % size : 1 - rank;
    uint4 *there = cluster.map_shared_rank(landed, to);
    unsigned *flag_there = cluster.map_shared_rank(flag, to);
    bool begins = ring || rank == 0;
    auto wait = [&](unsigned s) {
      if (threadIdx.x == 0) spin([&] { return load_acquire_cluster(flag) >= s; });
      __syncthreads();
    };
    for (int s = 1; s <= steps; s++) {
      if (!begins) wait(s);
      copy(there, from, n);
      __syncthreads();
      if (threadIdx.x == 0) store_release_cluster(flag_there, s);
      if (begins) wait(s);
    }
    unsigned sender = ring ? (rank + size - 1) % size : 1 - rank;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      uint4 v = landed[i];
      if (v.x != sender || v.y != i || v.z != i + 1 || v.w != ~i) atomicAdd(wrong, 1);
    }
  }
  cluster.sync();  // a block's shared memory must not go while a neighbour still writes it
}

int active_clusters(int size, size_t shared) {
  allow_shared(push, shared);
  Config c(Shape{size, 256, shared, false, false, size});
  int n = 0;
  CHECK(cudaOccupancyMaxActiveClusters(&n, push, &c.config));
  return n;
}

void clusters() {
  int most = 0;
  CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  size_t shared = 210 << 10;
  if (size_t(most) < shared) throw Skip("active clusters: a block has no 210 KB of shared memory");
  for (int size : {8, 4, 2}) {
    figure("clusters_of_" + std::to_string(size), active_clusters(size, shared), "clusters",
           "cudaOccupancyMaxActiveClusters at 210 KB of shared memory a block");
  }
}

void pushes() {
  constexpr int CLUSTER = 8, STEPS = 500;
  int most = active_clusters(CLUSTER, PUSH_SHARED);
  if (most < 1) throw Skip("pushes: no cluster of 8 with 128 KB of shared memory a block fits");
  Array<unsigned> wrong(1);
  auto step = [&](int blocks, int bytes, bool ring) {
    Shape shape = {blocks, 256, PUSH_SHARED, false, false, CLUSTER};
    double us = step_us(STEPS, [&](int n) { launch(shape, push, wrong.p, bytes, ring, n); });
    require(wrong.host()[0] == 0, "what was pushed");
    return us;
  };
  figure("push_flag", step(CLUSTER, 0, false) / 2, "us",
         "a flag alone to a neighbour in a cluster of 8; one way with block barriers");
  for (int kb : {4, 16, 64}) {
    std::string of = "push_" + std::to_string(kb) + "k_";
    figure(of + "latency", step(CLUSTER, kb << 10, false) / 2, "us",
           "shared memory to a neighbour's until it sees the flag; 256 threads");
    double us = step(CLUSTER * most, kb << 10, true), rate = (kb << 10) / us * 1e-3;
    std::string all = std::to_string(most) + " clusters push in rings at once; a flag a push";
    figure(of + "rate", rate, "GB/s", "one block's; all of " + all);
    figure(of + "rate_total", rate * CLUSTER * most * 1e-3, "TB/s", "all blocks'; all of " + all);
  }
}

// ---- 7. Arithmetic ----

// d += a b, 16 x 8 x 8, of values that are TF32 already.
__device__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ uint32_t tf32(float x) {
  uint32_t r;
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

enum Feed { FIXED, ROUNDED, SPLIT };

// A warp has a 32 x 32 tile, 2 x 4 mma with as many independent accumulators. A
// step multiplies once along k = 8. FIXED: the operands never change; the tensor
// cores alone. ROUNDED and SPLIT: the operands are new in every step (an addition
// stands for the load) and are rounded to TF32, or split into two TF32 parts that
// give three products, small x big, big x small and big x big: what a kernel that
// takes fp32 operands can reach at most.
template <Feed FEED>
__global__ void __launch_bounds__(256, 2) tensor(float *out, int steps) {
  float a[2][4], b[4][2], d[2][4][4] = {};
  uint32_t big_a[2][4], big_b[4][2], small_a[2][4], small_b[4][2];
  float lane = threadIdx.x % 32;
  auto feed = [&](float &x, uint32_t &big, uint32_t &small) {
    x += 0.0009765f;
    big = tf32(x);
    if (FEED == SPLIT) small = tf32(x - __uint_as_float(big));
  };
  for (int i = 0; i < 2; i++) {
    for (int k = 0; k < 4; k++) feed(a[i][k] = 0.3f + 0.011f * lane + 0.1f * k - i, big_a[i][k], small_a[i][k]);
  }
  for (int j = 0; j < 4; j++) {
    for (int k = 0; k < 2; k++) feed(b[j][k] = 0.7f - 0.023f * lane + 0.1f * j - k, big_b[j][k], small_b[j][k]);
  }
  auto product = [&](uint32_t (&x)[2][4], uint32_t (&y)[4][2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) mma(d[i][j], x[i], y[j]);
    }
  };
#pragma unroll 2
  for (int s = 0; s < steps; s++) {
    if (FEED != FIXED) {
#pragma unroll
      for (int k = 0; k < 8; k++) {
        feed(a[k / 4][k % 4], big_a[k / 4][k % 4], small_a[k / 4][k % 4]);
        feed(b[k / 2][k % 2], big_b[k / 2][k % 2], small_b[k / 2][k % 2]);
      }
    }
    if (FEED == SPLIT) {
      product(small_a, big_b);
      product(big_a, small_b);
    }
    product(big_a, big_b);
  }
  float sum = 0;
  for (int i = 0; i < 2; i++) {
    for (int j = 0; j < 4; j++) sum += d[i][j][0] + d[i][j][1] + d[i][j][2] + d[i][j][3];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

constexpr int CHAINS = 16, PER_STEP = 16;

// CHAINS independent accumulators a thread, PER_STEP multiply-adds to each a step.
__global__ void __launch_bounds__(512, 2) ffma(float *out, float factor, float term, int steps) {
  float d[CHAINS];
  for (int i = 0; i < CHAINS; i++) d[i] = threadIdx.x + i;
  for (int s = 0; s < steps; s++) {
#pragma unroll
    for (int k = 0; k < PER_STEP; k++) {
#pragma unroll
      for (int i = 0; i < CHAINS; i++) d[i] = fmaf(d[i], factor, term);
    }
  }
  float sum = 0;
  for (int i = 0; i < CHAINS; i++) sum += d[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// rate is in TFLOP/s; flop is what one thread of the kernel does in one step.
template <typename F>
double rate(const Array<float> &out, int threads, int steps, double flop, F work) {
  double us = step_us(steps, work);
  for (float x : out.host()) require(std::isfinite(x) && x != 0, "arithmetic");
  return flop * threads * 2 * sms / us * 1e-6;
}

template <Feed FEED>
void tensor_figure(const char *name, const char *how) {
  constexpr double FLOP = 2.0 * 32 * 32 * 8 / 32;
  Array<float> out(size_t(2) * sms * 256);
  auto work = [&](int n) { launch({2 * sms, 256}, tensor<FEED>, out.p, n); };
  figure(name, rate(out, 256, 4000, FLOP, work), "TFLOP/s", how);
}

void arithmetic() {
  Array<float> out(size_t(2) * sms * 512);
  auto work = [&](int n) { launch({2 * sms, 512}, ffma, out.p, 0.999f, 0.01f, n); };
  figure("ffma", rate(out, 512, 1000, 2.0 * CHAINS * PER_STEP, work), "TFLOP/s",
         "fp32 multiply-adds in registers; 16 chains a thread and 1024 threads an SM");
  tensor_figure<FIXED>("tf32", "mma.sync m16n8k8 in registers; 8 accumulators a warp and 16 warps an SM");
  tensor_figure<ROUNDED>("tf32_rounded",
                         "the same with fresh fp32 operands rounded by cvt.rna in every step; 32 x 32 tile a warp");
  tensor_figure<SPLIT>("tf32_3x", "the same with operands split in two and three products; each counted as one");
}

// ---- 8. Memory ----

__global__ void fill(uint4 *p, size_t n) {
  size_t stride = size_t(gridDim.x) * blockDim.x;
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    unsigned x = unsigned(i);
    p[i] = make_uint4(x * 2654435761u, x ^ 0x9e3779b9u, x, ~(x * 40503u));
  }
}

// Every thread keeps READS loads of 16 bytes in flight, past L1. The grid's place
// in the working set moves on with every step and wraps, so an SM never comes
// back to what it has just read.
constexpr int READS = 4;

__global__ void __launch_bounds__(1024, 2) read_again(const uint4 *p, int n, unsigned *out, int steps) {
  int stride = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (int s = 0; s < steps; s++) {
    uint4 v[READS];
#pragma unroll
    for (int k = 0; k < READS; k++) {
      v[k] = __ldcg(p + i);
      i += stride;
      if (i >= n) i -= n;
    }
#pragma unroll
    for (int k = 0; k < READS; k++) sum += v[k].x + v[k].y + v[k].z + v[k].w;
  }
  atomicAdd(out, sum);
}

void memory() {
  constexpr size_t COPIED = size_t(512) << 20;
  {
    Array<uint4> from(COPIED / 16), to(COPIED / 16);
    launch({4 * sms, 512}, fill, from.p, from.n);
    double us = step_us(4, [&](int n) {
      for (int i = 0; i < n; i++) CHECK(cudaMemcpyAsync(to.p, from.p, COPIED, cudaMemcpyDeviceToDevice, stream));
    });
    uint4 last, want;
    CHECK(cudaMemcpyAsync(&last, to.p + to.n - 1, sizeof last, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(&want, from.p + from.n - 1, sizeof want, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    require(last.x == want.x && last.w == want.w && want.x != 0, "copy");
    figure("copy", 2.0 * COPIED / us * 1e-6, "TB/s",
           "cudaMemcpyAsync of 512 MB on the device; bytes read and bytes written");
  }
  constexpr int STEPS = 200;
  const int n = 10'000'000 / 16, threads = 2 * sms * 1024;
  if (n <= threads) throw Skip("l2_read: more threads than the working set has loads");
  Array<uint4> set(n);
  Array<unsigned> sum(1);
  launch({4 * sms, 512}, fill, set.p, set.n);
  double us = step_us(STEPS, [&](int steps) {
    sum.zero();
    launch({2 * sms, 1024}, read_again, set.p, n, sum.p, steps);
  });
  // All loads together are the first so many of the endlessly repeated set.
  uint64_t loads = uint64_t(threads) * READS * 2 * STEPS;
  unsigned once = 0, rest = 0;
  std::vector<uint4> h = set.host();
  for (int i = 0; i < n; i++) {
    unsigned v = h[i].x + h[i].y + h[i].z + h[i].w;
    once += v;
    if (uint64_t(i) < loads % n) rest += v;
  }
  require(sum.host()[0] == unsigned(loads / n) * once + rest, "sum of what was read");
  figure("l2_read", 16.0 * threads * READS / us * 1e-6, "TB/s",
         "10 MB read again and again past L1; 2048 threads an SM");
}

// run does one group of figures; false if a failed kernel has ended all work.
bool run(void (*group)(), const char *name, int *failed) {
  try {
    group();
  } catch (const Skip &e) {
    fprintf(stderr, "ground: left out: %s\n", e.what());
  } catch (const std::exception &e) {
    *failed = 1;
    fprintf(stderr, "ground: %s: %s\n", name, e.what());
    if (cudaError_t lost = cudaDeviceSynchronize()) {
      fprintf(stderr, "ground: the rest is left out: %s\n", cudaGetErrorString(lost));
      return false;
    }
  }
  return true;
}

struct Group {
  void (*figures)();
  const char *name;
};

const Group groups[] = {
    {launches, "launches"},       {early_launches, "early launches"},     {barriers, "barriers"}, {flags, "flags"},
    {reductions, "reductions"},   {vector_reduction, "vector reduction"}, {clusters, "clusters"}, {pushes, "pushes"},
    {arithmetic, "arithmetic"},   {memory, "memory"},
};

}  // namespace

int main() {
  int failed = 0;
  try {
    int major = 0;
    CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) throw std::runtime_error("needs a card of compute capability 9.0");
    CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    printf("figure,value,unit,how\n");
    for (const Group &g : groups) {
      if (!run(g.figures, g.name, &failed)) break;
    }
    CHECK(cudaStreamDestroy(stream));
  } catch (const std::exception &e) {
    fprintf(stderr, "ground: %s\n", e.what());
    failed = 1;
  }
  return failed;
}
