// What CUDA's own allocators cost when C++ calls them: the scenarios of
// allocbench, request for request, on cudaMalloc and on cudaMallocAsync (from a
// pool that keeps its memory). It prints the CSV that `allocbench -csv` writes;
// `allocbench -with FILE` adds them to its own figures. To build and run:
//
//   nvcc -O3 -std=c++17 -arch=native -o peers peers.cu
//   ./peers [runs, default 5] [text that a case's name is to contain] > peers.csv
//
// Another allocator is a class with the members of Malloc, and a line in main.
// Go is not involved: the host's cost is that of a C++ program.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call) \
  do { \
    cudaError_t error = (call); \
    if (error != cudaSuccess) { \
      fprintf(stderr, "peers: %s: %s\n", #call, cudaGetErrorName(error)); \
      exit(1); \
    } \
  } while (0)

using std::string;
using Bytes = int64_t;
constexpr Bytes KiB = 1 << 10, MiB = 1 << 20;
constexpr double LIMIT = 5e9, LOOP = 1e8;  // ns: of a measurement, of a loop of open length

static double now() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The generator of allocbench, splitmix64.
struct Random {
  uint64_t state = 1;
  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  int64_t below(int64_t n) { return int64_t(next() % uint64_t(n)); }
};

struct Malloc {
  static constexpr const char *NAME = "cudaMalloc";
  void *alloc(Bytes n, cudaStream_t) {
    void *p = nullptr;
    if (cudaMalloc(&p, n) != cudaSuccess) cudaGetLastError();
    return p;
  }
  void free(void *p, cudaStream_t) { CHECK(cudaFree(p)); }
  Bytes reserved(Bytes live) { return live; }
};

struct MallocAsync {
  static constexpr const char *NAME = "cudaMallocAsync";
  cudaMemPool_t pool;
  MallocAsync() {
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location = {cudaMemLocationTypeDevice, 0};
    CHECK(cudaMemPoolCreate(&pool, &props));
    uint64_t all = UINT64_MAX;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
  }
  ~MallocAsync() { cudaMemPoolDestroy(pool); }
  void *alloc(Bytes n, cudaStream_t s) {
    void *p = nullptr;
    if (cudaMallocFromPoolAsync(&p, n, pool, s) != cudaSuccess) cudaGetLastError();
    return p;
  }
  void free(void *p, cudaStream_t s) { CHECK(cudaFreeAsync(p, s)); }
  Bytes reserved(Bytes) {
    uint64_t high = 0;
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &high));
    return Bytes(high);
  }
};

struct Row {
  string scenario, name, unit;
  double mean = NAN, p50 = NAN, p99 = NAN, p999 = NAN, rate = NAN;
  int64_t ops = 0, failed = 0;
  Bytes live = 0, reserved = 0;
  bool cut = false;
};

__global__ void spin(int64_t *out) {  // RMM's compute_bound_kernel
  long long from = clock64();
  while (clock64() - from < 1000000) {
  }
  *out = 1;
}

// A Bench is one new allocator in one case, with its streams.
template <class A>
struct Bench {
  A a;
  std::vector<cudaStream_t> streams;
  Bytes live = 0;
  int64_t failed = 0;
  double end = 0;
  std::vector<Row> &rows;

  Bench(std::vector<Row> &rows, int n) : streams(n), rows(rows) {
    for (auto &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  }
  ~Bench() {
    CHECK(cudaDeviceSynchronize());
    for (auto s : streams) CHECK(cudaStreamDestroy(s));
  }
  bool over(int64_t i) { return (i & 15) == 0 && now() > end; }

  void *alloc(Bytes n, cudaStream_t s) {
    void *p = a.alloc(n, s);
    if (!p) {
      fprintf(stderr, "peers: %s: no memory for %lld bytes\n", A::NAME, (long long)n);
      exit(1);
    }
    return p;
  }
  void pair(Bytes n, cudaStream_t s) { a.free(alloc(n, s), s); }

  int64_t pairs(int64_t n, cudaStream_t s, const std::vector<Bytes> &sizes) {
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
      if (over(i)) return i;
      pair(sizes[at], s);
      if (++at == sizes.size()) at = 0;
    }
    return n;
  }

  template <class F>
  void measure(const char *scenario, const string &name, const char *unit, int threads, F f) {
    double from = now();
    end = from + LIMIT;
    Row r{scenario, name, unit};
    r.ops = f();
    double took = now() - from;
    r.mean = took * threads / double(r.ops);
    r.rate = double(r.ops) / took * 1e9;
    r.live = live, r.reserved = a.reserved(live), r.failed = failed, r.cut = took > LIMIT;
    rows.push_back(r);
  }

  // How many operations of f take LOOP; trying also warms up.
  template <class F>
  int64_t count(F f) {
    for (int64_t n = 50;; n *= 4) {
      double from = now();
      end = from + LIMIT;
      int64_t done = f(n);
      double took = now() - from;
      if (took >= LOOP / 10) return std::clamp(int64_t(LOOP / took * double(done)), int64_t(1000), int64_t(4000000));
    }
  }

  void percentiles(int64_t n, Bytes bytes) {
    std::vector<double> v(n, -1);
    double clock = 1e9;
    for (int i = 0; i < 10000; i++) {
      double from = now();
      clock = std::min(clock, now() - from);
    }
    double stop = now() + LIMIT;
    int64_t done = 0;
    while (done < n) {
      double from = now();
      pair(bytes, streams[0]);
      double to = now();
      v[done++] = std::max(to - from - clock, 0.0);
      if (to > stop) break;
    }
    std::sort(v.begin(), v.begin() + done);
    Row &r = rows.back();
    r.p50 = v[done / 2], r.p99 = v[done * 99 / 100], r.p999 = v[done * 999 / 1000];
  }

  int64_t random(int64_t num, Bytes largest) {
    struct Block {
      void *p;
      Bytes n;
    };
    std::vector<Block> held;
    held.reserve(num);
    Random r;
    int64_t ops = 0, allocs = 0;
    Bytes bytes = 0, peak = 0;
    auto drop = [&](size_t i) {
      Block b = held[i];
      held[i] = held.back();
      held.pop_back();
      bytes -= b.n, ops++;
      a.free(b.p, streams[0]);
    };
    for (int64_t i = 0; i < 2 * num && !over(i); i++) {
      Bytes n = 1 + r.below(largest);
      if (held.empty() || (r.below(100) < 73 && allocs < num && bytes + n < 16000 * MiB)) {
        if (void *p = a.alloc(n, streams[0])) {
          held.push_back({p, n});
          allocs++, ops++, bytes += n, peak = std::max(peak, bytes);
          continue;
        }
        failed++;
      }
      if (!held.empty()) drop(size_t(r.below(num)) % held.size());
    }
    while (!held.empty()) drop(held.size() - 1);
    live = std::max(live, peak);
    return ops;
  }
};

static string plural(int n, const char *what) { return std::to_string(n) + " " + what + (n == 1 ? "" : "s"); }

static string size_name(Bytes n) {
  if (n % (1 << 30) == 0) return std::to_string(n >> 30) + " GiB";
  if (n % MiB == 0) return std::to_string(n >> 20) + " MiB";
  if (n % KiB == 0) return std::to_string(n >> 10) + " KiB";
  return std::to_string(n) + " B";
}

static const char *filter = "";
static bool wanted(const string &name) { return name.find(filter) != string::npos; }

template <class A>
void run(std::vector<Row> &rows) {
  for (Bytes n : {512l, 4 * KiB, 64 * KiB, MiB, 16 * MiB, 64 * MiB}) {
    if (!wanted(size_name(n))) continue;
    Bench<A> b(rows, 1);
    auto f = [&](int64_t k) { return b.pairs(k, b.streams[0], {n}); };
    int64_t k = b.count(f);
    b.live = n;
    b.measure("pair", size_name(n), "pair", 1, [&] { return f(k); });
    b.percentiles(std::clamp(k, int64_t(10000), int64_t(200000)), n);
  }
  if (wanted("10k x 1 MiB")) {
    Bench<A> b(rows, 1);
    b.end = now() + LIMIT, b.live = MiB;
    b.pairs(100, b.streams[0], {MiB});
    b.measure("throughput", "10k x 1 MiB", "pair", 1, [&] { return b.pairs(10000, b.streams[0], {MiB}); });
  }
  if (wanted("64 KiB - 16 MiB")) {
    Bench<A> b(rows, 1);
    std::vector<Bytes> sizes;
    for (Bytes n = 64 * KiB; n <= 16 * MiB; n *= 2) sizes.push_back(n);
    auto f = [&](int64_t k) { return b.pairs(k, b.streams[0], sizes); };
    int64_t k = b.count(f);
    b.live = 16 * MiB;
    b.measure("mixed", "64 KiB - 16 MiB", "pair", 1, [&] { return f(k); });
  }
  for (bool shared : {false, true})
    for (int n : shared ? std::vector<int>{1, 4, 16} : std::vector<int>{1, 2, 4, 8, 16}) {
      if (!wanted(plural(n, "thread"))) continue;
      Bench<A> b(rows, n);
      auto stream = [&](int i) { return b.streams[shared ? 0 : i]; };
      std::vector<Bytes> sizes{MiB};
      if (shared) sizes = {256, 4096, 16384, 524288, 512, 1048576};
      std::vector<void *> held;
      for (int i = 0; i < n; i++) held.push_back(b.alloc(MiB, stream(i)));
      for (int i = 0; i < n; i++) b.a.free(held[i], stream(i));
      b.live = n * MiB;
      auto f = [&](int64_t k) {
        std::vector<std::thread> threads;
        std::atomic<int64_t> ops{0};
        for (int i = 0; i < n; i++) threads.emplace_back([&, i] { ops += b.pairs(k, stream(i), sizes); });
        for (auto &t : threads) t.join();
        return ops.load();
      };
      int64_t k = std::max(b.count(f) / n, int64_t(1000));
      b.measure(shared ? "tf_threaded" : "threads", plural(n, "thread"), "pair", n, [&] { return f(k); });
    }
  for (int delay : {1, 10, 100, 1000}) {
    string name = "delay " + std::to_string(delay);
    if (!wanted(name)) continue;
    Bench<A> b(rows, 1);
    const Bytes sizes[] = {256, 4096, 16384, 4096, 512, 1024, 1024};
    std::vector<void *> held(delay);
    std::vector<Bytes> bytes(delay);
    size_t at = 0, size = 0;
    auto f = [&](int64_t k) {
      for (int64_t i = 0; i < k; i++) {
        if (b.over(i)) return i;
        if (held[at]) b.a.free(held[at], b.streams[0]);
        held[at] = b.alloc(bytes[at] = sizes[size], b.streams[0]);
        if (++at == held.size()) at = 0;
        if (++size == 7) size = 0;
      }
      return k;
    };
    int64_t k = b.count(f);
    for (Bytes n : bytes) b.live += n;
    b.measure("tf_delayed", name, "pair", 1, [&] { return f(k); });
    for (void *p : held)
      if (p) b.a.free(p, b.streams[0]);
  }
  for (int64_t num : {1000, 10000, 100000})
    for (Bytes most : {1, 4, 64, 256, 1024, 4096}) {
      string name = std::to_string(num) + " <= " + size_name(most * MiB);
      if (!wanted(name)) continue;
      Bench<A> b(rows, 1);
      for (const char *round : {" cold", " second", " warm"}) {
        b.measure("random", name + round, "call", 1, [&] { return b.random(num, most * MiB); });
        if (rows.back().cut) break;
        if (round[1] == 's') rows.pop_back();
      }
    }
  for (int streams : {32, 1}) {
    if (!wanted(plural(streams, "stream"))) continue;
    Bench<A> b(rows, streams);
    void *held[32];
    Bytes size[32], bytes = 0, peak = 0;
    Random r;
    auto fill = [&](int i) {
      bytes += size[i] = 64 * KiB << r.below(9);
      peak = std::max(peak, bytes);
      held[i] = b.alloc(size[i], b.streams[i % streams]);
    };
    for (int i = 0; i < 32; i++) fill(i);
    auto f = [&](int64_t k) {
      for (int64_t n = 0; n < k; n++) {
        if (b.over(n)) return n;
        int i = int(r.below(32));
        bytes -= size[i];
        b.a.free(held[i], b.streams[i % streams]);
        fill(i);
      }
      return k;
    };
    b.end = now() + LIMIT;
    f(50000);
    b.measure("churn", plural(streams, "stream"), "pair", 1, [&] {
      int64_t done = f(50000);
      b.live = peak;
      return done;
    });
    for (int i = 0; i < 32; i++) b.a.free(held[i], b.streams[i % streams]);
  }
  if (wanted("two temporaries")) {
    Bench<A> b(rows, 1);
    Random r;
    auto f = [&](int64_t k) {
      for (int64_t i = 0; i < k; i += 2) {
        if (b.over(i)) return i;
        Bytes n = 64 * KiB << r.below(9);
        b.live = std::max(b.live, 2 * n);
        void *first = b.alloc(n, b.streams[0]), *second = b.alloc(n, b.streams[0]);
        b.a.free(first, b.streams[0]);
        b.a.free(second, b.streams[0]);
      }
      return k;
    };
    int64_t k = b.count(f) & ~1;
    b.measure("churn", "two temporaries", "pair", 1, [&] { return f(k); });
  }
  if (wanted("1000 x 1 MiB")) {
    Bench<A> b(rows, 1);
    std::vector<void *> held(1000);
    b.live = 1000 * MiB;
    auto round = [&] {
      for (auto &p : held) p = b.alloc(MiB, b.streams[0]);
      for (auto &p : held) b.a.free(p, b.streams[0]);
      return int64_t(2000);
    };
    b.measure("live1000", "1000 x 1 MiB cold", "call", 1, round);
    b.measure("live1000", "1000 x 1 MiB warm", "call", 1, [&] {
      int64_t ops = 0;
      for (double from = now(); now() - from < LOOP;) ops += round();
      return ops;
    });
  }
  if (wanted("100 K - 10 M rows")) {
    Bench<A> b(rows, 1);
    std::vector<int64_t> count(1024);
    Random r;
    for (auto &n : count) n = int64_t(1e5 * pow(100, double(r.next() >> 11) / double(1ull << 53)));
    auto f = [&](int64_t k) {
      for (int64_t i = 0; i < k; i++) {
        if (b.over(i)) return 8 * i;
        int64_t n = count[i % 1024];
        void *columns[4];
        for (int c = 0; c < 4; c++) columns[c] = b.alloc(c < 3 ? 8 * n : n, b.streams[0]);
        b.live = std::max(b.live, 25 * n);
        for (void *p : columns) b.a.free(p, b.streams[0]);
      }
      return 8 * k;
    };
    b.measure("extreme", "100 K - 10 M rows cold", "call", 1, [&] { return f(1024); });
    b.measure("extreme", "100 K - 10 M rows warm", "call", 1, [&] { return f(20000); });
  }
  for (bool prewarmed : {false, true})
    for (int n : {1, 2, 4}) {
      string name = plural(n, "stream") + (prewarmed ? " prewarmed" : "");
      if (!wanted(name)) continue;
      Bench<A> b(rows, n);
      if (prewarmed)
        for (auto s : b.streams) b.pair(8, s);
      b.live = 8;
      auto rounds = [&](int64_t k) {
        for (int64_t i = 0; i < k; i++) {
          for (int j = 0; j < 4; j++) {
            cudaStream_t s = b.streams[j % n];
            void *p = b.alloc(8, s);
            spin<<<1, 1, 0, s>>>(static_cast<int64_t *>(p));
            CHECK(cudaGetLastError());
            b.a.free(p, s);
          }
          CHECK(cudaDeviceSynchronize());
        }
        return k;
      };
      b.measure("multi_stream", name + (prewarmed ? "" : " first"), "round", 1, [&] { return rounds(1); });
      if (!prewarmed) b.measure("multi_stream", name + " again", "round", 1, [&] { return rounds(20); });
    }
}

static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

static void number(double v) {
  if (std::isnan(v)) printf(",");
  else printf("%.6g,", v);
}

// Prints the medians of the rows of several runs.
static void print(const char *allocator, const std::vector<std::vector<Row>> &runs) {
  std::map<std::pair<string, string>, std::vector<Row>> same;
  std::vector<std::pair<string, string>> order;
  for (auto &rows : runs)
    for (auto &r : rows) {
      auto &v = same[{r.scenario, r.name}];
      if (v.empty()) order.push_back({r.scenario, r.name});
      v.push_back(r);
    }
  for (auto &key : order) {
    auto &v = same[key];
    Row m = v[0];
    auto of = [&](double Row::*field) {
      std::vector<double> values;
      for (auto &r : v) values.push_back(r.*field);
      return median(values);
    };
    for (auto &r : v) {
      m.live = std::max(m.live, r.live), m.reserved = std::max(m.reserved, r.reserved);
      m.failed = std::max(m.failed, r.failed), m.cut |= r.cut;
    }
    printf("%s,%s,%s,%s,%zu,%lld,", m.scenario.c_str(), m.name.c_str(), allocator, m.unit.c_str(), v.size(), (long long)m.ops);
    for (auto field : {&Row::mean, &Row::p50, &Row::p99, &Row::p999, &Row::rate}) number(of(field));
    printf("%lld,%lld,%lld,%d,,%s\n", (long long)m.live, (long long)m.reserved, (long long)m.failed,
           m.unit == "pair"   ? 2
           : m.unit == "call" ? 1
                              : 8,
           m.cut ? "true" : "false");
  }
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 5;
  if (n < 1 || argc > 3) {
    fprintf(stderr, "usage: peers [runs [text]]\n");
    return 2;
  }
  if (argc > 2) filter = argv[2];
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  CHECK(cudaFree(nullptr));
  std::vector<std::vector<Row>> plain(n), async(n);
  for (int i = 0; i < n; i++) {  // in turns, so that what changes with time hits both
    run<Malloc>(plain[i]);
    run<MallocAsync>(async[i]);
  }
  printf("# %s, C++, runtime %d\n", device.name, CUDART_VERSION);
  printf("scenario,case,allocator,unit,runs,ops,mean_ns,p50_ns,p99_ns,p999_ns,per_second,peak_live_bytes,"
         "peak_reserved_bytes,out_of_memory,driver_calls_per_op,go_allocs_per_op,cut\n");
  print(Malloc::NAME, plain);
  print(MallocAsync::NAME, async);
}
