// Grids, CTAs and threads. A thread of a kernel is a fiber: it runs until it must
// wait for another. CTAs run one after the other, but for those of a cluster.
//
// It is unkind where a GPU may be: the order of a CTA's threads is random, the shared
// memory of a CTA begins as NaN, and of a grid with PDL a few clusters
// begin before the grid that they depend on has run at all.
#include "emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {
namespace {

constexpr size_t STACK = 128 << 10;
constexpr size_t GUARD = 1 << 10, SHARED = MAX_SHARED + GUARD;  // the guard behind a CTA's shared memory must stay unwritten
constexpr int PREFETCHING = 2;  // clusters that begin before
constexpr unsigned char UNWRITTEN = 0xff;

std::mt19937 dice(1);

// A Barrier opens when all of its threads but those that ended have come.
struct Barrier {
  unsigned live = 0, arrived = 0, turn = 0;
  bool open() { return arrived == live && (arrived = 0, turn++, true); }
};

struct Warp {
  Barrier barrier;
  unsigned size = 0;
  Exchange exchange;  // that its threads are at
  Words given[32], got[32];
};

struct Copy {
  uint32_t to;
  const void *from;
  int size, bytes;
};

struct Cta;

// An Mbarrier is open for the next phase when so many calls, and all bytes that
// they expect, have come.
struct Mbarrier {
  int calls;
  int missing = calls;  // calls in this phase
  unsigned phase = 0;
  int64_t bytes = 0;  // to come
  struct Coming {
    int64_t bytes;
    std::function<void(Cta &)> land;
  };
  std::vector<Coming> under_way;

  void check() {
    if (!missing && !bytes) missing = calls, phase++;
  }
};

// A Place is where to go on: go_on(place) returns from the stop(place) before it, on
// the stack of that one. (What setjmp and longjmp add takes longer than the kernels.)
using Place = void *[5];
#define stop(place) __builtin_setjmp(place)
[[noreturn, gnu::noipa]] void go_on(Place &place) { __builtin_longjmp(place, 1); }

struct Running;

struct Thread {
  Cta *cta;
  unsigned index;
  enum { READY, PDL_WAIT, DONE } state;
  unsigned cluster_turn;
  // Copies, and wgmmas, under way, in groups; the last is not committed.
  std::vector<std::vector<Copy>> groups;
  std::vector<std::vector<Wgmma>> wgmmas;

  ucontext_t context;
  Place at;
  bool begun = false;
  std::unique_ptr<char[]> stack{new char[STACK]};
};

struct Cta {
  Running *grid;
  unsigned index, rank;
  bool copy_at_once;
  Cta *cluster;  // its first CTA
  char *shared;
  Barrier barrier, cluster_barrier;  // of the cluster: the first CTA's
  std::map<int, Barrier> numbered_barriers;
  std::vector<Warp> warps;
  std::vector<Thread *> threads;
  std::map<const void *, char *> statics;
  char *lowest_static;
  std::map<uint32_t, Mbarrier> mbarriers;
};

using Cluster = std::vector<Cta>;

struct Running {
  Grid grid;
  bool preceding_done = false;
  std::vector<std::unique_ptr<Cluster>> prefetching;
};

std::unique_ptr<Running> queued;
std::vector<Thread *> idle_threads;
std::vector<char *> idle_shared;
Place scheduler;
Thread *self;
bool progress;  // some thread did more than wait

template <typename T>
T *take(std::vector<T *> &idle, T *(*make)()) {
  if (idle.empty()) return make();
  T *t = idle.back();
  idle.pop_back();
  return t;
}

// yield lets other threads run. noipa: its callers must expect that registers change.
[[gnu::noipa]] void yield() {
  if (!stop(self->at)) go_on(scheduler);
}

template <typename Condition>
void wait_until(Condition c) {
  while (!c()) yield();
  progress = true;
}

// run_kernels is all that a fiber does.
void run_kernels() {
  for (;;) {
    self->cta->grid->grid.kernel();
    if (!self->groups.back().empty()) fail("ended with copies that it did not commit");
    if (self->wgmmas.size() > 1 || !self->wgmmas.back().empty()) fail("ended with a wgmma that it did not wait for");
    Cta &b = *self->cta;
    if (b.warps[self->index / 32].barrier.arrived) fail("ended while its warp waits for it");
    self->state = Thread::DONE;
    progress = true;
    for (Barrier *barrier : {&b.warps[self->index / 32].barrier, &b.barrier, &b.cluster->cluster_barrier}) {
      barrier->live--;
      if (barrier->live) barrier->open();
    }
    yield();
  }
}

// resume lets a thread run until it waits.
[[gnu::noipa]] void resume(Thread &t) {
  self = &t;
  threadIdx = {t.index, 0, 0};
  blockIdx = {t.cta->index, 0, 0};
  blockDim = dim3(t.cta->grid->grid.threads);
  gridDim = dim3(t.cta->grid->grid.ctas);
  if (stop(scheduler)) return;
  if (self->begun) go_on(self->at);
  self->begun = true;
  getcontext(&self->context);
  self->context.uc_stack = {self->stack.get(), 0, STACK};
  self->context.uc_link = nullptr;
  makecontext(&self->context, run_kernels, 0);
  setcontext(&self->context);
}

std::unique_ptr<Cluster> begin(Running &r, unsigned index) {
  const Grid &g = r.grid;
  auto cluster = std::make_unique<Cluster>(g.cluster);
  for (unsigned rank = 0; rank < g.cluster; rank++) {
    Cta &b = (*cluster)[rank];
    b.grid = &r, b.index = index * g.cluster + rank, b.rank = rank, b.cluster = cluster->data();
    b.copy_at_once = dice() % 4 == 0;
    b.shared = take<char>(idle_shared, [] { return static_cast<char *>(aligned_alloc(1024, SHARED)); });
    memset(b.shared, UNWRITTEN, g.shared + GUARD);
    b.barrier.live = g.threads, b.cluster_barrier.live = g.threads * g.cluster;
    b.lowest_static = b.shared + SHARED;
    b.warps.resize((g.threads + 31) / 32);
    for (unsigned i = 0; i < g.threads; i++) {
      Thread *t = take<Thread>(idle_threads, [] { return new Thread; });
      t->cta = &b, t->index = i, t->state = Thread::READY;
      t->groups.assign(1, {}), t->wgmmas.assign(1, {});
      b.warps[i / 32].barrier.live++, b.warps[i / 32].size++;
      b.threads.push_back(t);
    }
    std::shuffle(b.threads.begin(), b.threads.end(), dice);
  }
  return cluster;
}

// run lets a cluster's threads run, to their end or as far as they may. Now and then a
// CTA, or one of its warps, rests until the others can do nothing without it.
void run(Cluster &cluster) {
  constexpr unsigned ALL = ~0u;
  Cta *resting = nullptr;
  unsigned resting_warp = ALL;
  for (;;) {
    bool waiting = false, pdl_waiting = false;
    progress = false;
    for (Cta &b : cluster)
      for (Thread *t : b.threads) {
        if (t->state == Thread::DONE) continue;
        if (&b == resting && (resting_warp == ALL || resting_warp == t->index / 32)) waiting = true;
        else if (t->state == Thread::PDL_WAIT && !b.grid->preceding_done) pdl_waiting = true;
        else resume(*t), waiting = true;
      }
    if (!waiting) return;
    if (progress) {
      if (!resting && dice() % 8 == 0) {
        resting = &cluster[dice() % cluster.size()];
        resting_warp = cluster.size() > 1 && dice() % 2 ? ALL : dice() % resting->warps.size();
      }
    } else if (resting) {
      resting = nullptr;
    } else if (pdl_waiting) {
      return;
    } else {
      fail("waits for what never comes");
    }
  }
}

void end(Cluster &cluster) {
  run(cluster);
  for (Cta &b : cluster) {
    for (auto &[address, a] : b.mbarriers)
      if (a.missing != a.calls || a.bytes || !a.under_way.empty()) fail("ended before all came that it waits for");
    char *guard = b.shared + b.grid->grid.shared;
    if (std::any_of(guard, guard + GUARD, [](unsigned char c) { return c != UNWRITTEN; })) fail("wrote past the end of its shared memory");
    idle_shared.push_back(b.shared);
    idle_threads.insert(idle_threads.end(), b.threads.begin(), b.threads.end());
  }
}

}  // namespace

void submit(Grid grid) {
  auto next = std::make_unique<Running>();
  next->grid = std::move(grid);
  unsigned clusters = next->grid.ctas / next->grid.cluster;
  if (queued && next->grid.pdl)
    for (unsigned i = 0; i < std::min<unsigned>(PREFETCHING, clusters); i++) {
      next->prefetching.push_back(begin(*next, i));
      run(*next->prefetching.back());
    }
  finish();
  queued = std::move(next);
}

void finish() {
  if (!queued) return;
  Running &r = *queued;
  r.preceding_done = true;
  for (unsigned i = 0; i < r.grid.ctas / r.grid.cluster; i++) {
    auto cluster = i < r.prefetching.size() ? std::move(r.prefetching[i]) : begin(r, i);
    end(*cluster);
  }
  queued = nullptr;
}

void fail(const char *what) {
  fprintf(stderr, "emulator: thread %u of CTA %u %s\n", threadIdx.x, blockIdx.x, what);
  abort();
}

char *shared_memory() { return self->cta->shared; }
// other is a CTA of this cluster, for its shared memory.
static Cta &other(unsigned rank) {
  Cta &b = self->cta->cluster[rank];
  if (!b.barrier.live) fail("uses shared memory of a CTA that has ended");
  return b;
}

char *shared_memory(unsigned rank) { return other(rank).shared; }
void *static_shared(const void *site, size_t bytes) {
  Cta &b = *self->cta;
  char *&place = b.statics[site];
  if (!place) {
    b.lowest_static -= (bytes + 15) / 16 * 16;
    if (b.lowest_static < b.shared + b.grid->grid.shared + GUARD) fail("has too much shared memory");
    place = static_cast<char *>(memset(b.lowest_static, UNWRITTEN, bytes));
  }
  return place;
}
size_t shared_bytes() { return self->cta->grid->grid.shared; }
unsigned cluster_rank() { return self->cta->rank; }
unsigned cluster_size() { return self->cta->grid->grid.cluster; }

static void arrive_and_wait(Barrier &b) {
  unsigned turn = b.turn;
  b.arrived++, progress = true;
  b.open();
  wait_until([&] { return b.turn != turn; });
}

void cta_barrier() { arrive_and_wait(self->cta->barrier); }

void bar_sync(int barrier, int threads) {
  constexpr int CTA_BARRIER = 0, MAX_NUMBER = 15;  // the first is that of __syncthreads
  if (barrier <= CTA_BARRIER || barrier > MAX_NUMBER || threads <= 0 || threads % 32) fail("is at a barrier that there is not");
  Barrier &b = self->cta->numbered_barriers[barrier];
  if (b.arrived && b.live != unsigned(threads)) fail("is at a barrier with another number of threads than those before it");
  b.live = unsigned(threads);
  arrive_and_wait(b);
}

Words exchange(const Words &given, Exchange f) {
  Warp &w = self->cta->warps[self->index / 32];
  unsigned turn = w.barrier.turn, lane = self->index % 32;
  if (w.barrier.live != w.size) fail("waits for threads of its warp that ended");
  if (w.barrier.arrived && w.exchange != f) fail("is at another operation than its warp");
  w.exchange = f;
  w.given[lane] = given;
  w.barrier.arrived++, progress = true;
  if (w.barrier.open()) f(w.given, w.got);
  wait_until([&] { return w.barrier.turn != turn; });
  return w.got[lane];
}

void barrier_cluster_arrive_aligned() {
  Barrier &b = self->cta->cluster->cluster_barrier;
  self->cluster_turn = b.turn;
  b.arrived++, progress = true;
  b.open();
}

void barrier_cluster_wait_aligned() {
  Barrier &b = self->cta->cluster->cluster_barrier;
  wait_until([&] { return b.turn != self->cluster_turn; });
}

void griddepcontrol_wait() {
  if (self->cta->grid->preceding_done) return;
  self->state = Thread::PDL_WAIT;
  progress = true;
  wait_until([] { return self->cta->grid->preceding_done; });
  self->state = Thread::READY;
}

static void copy(const Copy &c) {
  if (c.to % c.size || c.to + c.size > self->cta->grid->grid.shared) fail("copied to a wrong address in shared memory");
  if (c.bytes && reinterpret_cast<uintptr_t>(c.from) % c.size) fail("copied from an address that is not aligned");
  char *to = shared_memory() + c.to;
  memset(to, 0, c.size);
  if (c.bytes) memcpy(to, c.from, c.bytes);
}

void copy(uint32_t to, const void *from, int size, int bytes) {
  Copy c = {to, from, size, bytes};
  if (self->cta->copy_at_once) copy(c);
  else self->groups.back().push_back(c);
}

// wait_groups does what is in groups that were committed, but for so many of the last.
template <typename T, typename F>
static void wait_groups(std::vector<std::vector<T>> &groups, int left, F f) {
  int done = static_cast<int>(groups.size()) - 1 - left;
  if (done <= 0) return;
  auto end = groups.begin() + done;
  for (auto group = groups.begin(); group != end; group++)
    for (const T &t : *group) f(t);
  groups.erase(groups.begin(), end);
}

void cp_async_commit_group() { self->groups.emplace_back(); }
void cp_async_wait_group(int left) {
  progress = true, yield();  // others may write to shared memory until this thread's copies come, and after
  wait_groups(self->groups, left, [](const Copy &c) { copy(c); });
}

static Mbarrier &mbarrier_at(Cta &b, uint32_t address) {
  auto found = b.mbarriers.find(address);
  if (found == b.mbarriers.end()) fail("uses an mbarrier that was not made");
  return found->second;
}

void mbarrier_init_shared_cta_b64(uint32_t address, int calls) {
  at_shared<uint64_t>(address, 8);
  if (calls < 1) fail("makes an mbarrier of no calls");
  if (!self->cta->mbarriers.try_emplace(address, Mbarrier{calls}).second) fail("makes an mbarrier twice");
}

void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t address, int bytes) {
  Mbarrier &a = mbarrier_at(*self->cta, address);
  if (!a.missing) fail("expects copies before the last ones came");
  a.missing--, a.bytes += bytes, progress = true;
  a.check();
}

void mbarrier_arrive_shared_cta_b64(uint32_t address) { mbarrier_arrive_expect_tx_shared_cta_b64(address, 0); }

static void land(Cta &b, Mbarrier &a, const Mbarrier::Coming &c) {
  c.land(b);
  a.bytes -= c.bytes, progress = true;
  a.check();
}

// come lets a copy come to a CTA, at once or later.
static void come(Cta &b, uint32_t address, Mbarrier::Coming c) {
  Mbarrier &a = mbarrier_at(b, address);
  if (b.copy_at_once) land(b, a, c);
  else a.under_way.push_back(std::move(c));
}

// rounded is the nearest number of 11 bits, ties to even; or f, if it is none.
static float rounded(float f) {
  constexpr uint32_t LOW = (1u << 13) - 1;
  uint32_t u = bits<uint32_t>(f);
  return std::isfinite(f) ? bits<float>((u + LOW / 2 + (u >> 13 & 1)) & ~LOW) : f;
}

// each calls f(element, place in the tile) for a tile's elements, those outside with nullptr.
template <typename F>
static void each(const CUtensorMap &map, const int (&at)[3], F f) {
  size_t place = 0;
  for (uint32_t z = 0; z < map.tile[2]; z++)
    for (uint32_t y = 0; y < map.tile[1]; y++)
      for (uint32_t x = 0; x < map.tile[0]; x++) {
        int64_t i[3] = {int64_t(at[0]) + x, int64_t(at[1]) + y, int64_t(at[2]) + z};
        bool inside = true;
        int64_t offset = 0;
        for (int d = 0; d < 3; d++) inside = inside && i[d] >= 0 && uint64_t(i[d]) < map.counts[d], offset += i[d] * int64_t(map.strides[d]);
        f(inside ? reinterpret_cast<float *>(map.array + offset) : nullptr, place++);
      }
}

void copy_tile(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t address, unsigned ctas) {
  size_t bytes = 4 * size_t(map->tile[0]) * map->tile[1] * map->tile[2];
  if (to % (map->swizzled ? 1024 : 128) || to + bytes > shared_bytes()) fail("loaded a tile to a wrong address in shared memory");
  for (unsigned rank = 0; rank < cluster_size(); rank++) {
    if (!(ctas >> rank & 1)) continue;
    come(other(rank), address, {int64_t(bytes), [to, map = *map, x, y, z](Cta &b) {
                                  each(map, {x, y, z}, [&](const float *element, size_t i) {
                                    float f = element ? *element : 0;
                                    uint32_t at = to + uint32_t(4 * i);
                                    *reinterpret_cast<float *>(b.shared + (map.swizzled ? swizzled(at) : at)) = map.tf32 ? rounded(f) : f;
                                  });
                                }});
  }
}

// A Remote is 16 bytes of shared memory in a CTA of this cluster, at an address of mapa.
struct Remote {
  Cta &cta;
  uint32_t place;

  static constexpr uint32_t ADDRESS = (1u << RANK_SHIFT) - 1;
  static constexpr size_t BYTES = 16;
  explicit Remote(uint32_t to) : cta(other(to >> RANK_SHIFT ? (to >> RANK_SHIFT) - 1 : cluster_rank())), place(to & ADDRESS) {
    if (place % BYTES || place + BYTES > shared_bytes()) fail("used a wrong address in shared memory of its cluster");
  }
};

void st_shared_cluster_v4_f32(uint32_t to, float a, float b, float c, float d) {
  Remote r(to);
  std::array<float, 4> v = {a, b, c, d};
  memcpy(r.cta.shared + r.place, v.data(), sizeof v);
}

void ld_shared_cluster_v4_f32(float &a, float &b, float &c, float &d, uint32_t from) {
  Remote r(from);
  float v[4];
  memcpy(v, r.cta.shared + r.place, sizeof v);
  a = v[0], b = v[1], c = v[2], d = v[3];
}

void st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(uint32_t to, float a, float b, float c, float d, uint32_t mbarrier) {
  if (to >> RANK_SHIFT != mbarrier >> RANK_SHIFT) fail("writes to one CTA and tells another");
  Remote r(to);
  std::array<float, 4> v = {a, b, c, d};
  come(r.cta, mbarrier & Remote::ADDRESS,
       {int64_t(Remote::BYTES), [place = r.place, v](Cta &cta) { memcpy(cta.shared + place, v.data(), sizeof v); }});
}

void mbarrier_try_wait_parity_shared_cta_b64_bra(uint32_t address, int parity) {
  Cta &b = *self->cta;
  Mbarrier &a = mbarrier_at(b, address);
  wait_until([&] {
    for (const Mbarrier::Coming &c : std::exchange(a.under_way, {})) land(b, a, c);
    return int(a.phase % 2) != parity;
  });
}

static void write_tile(const CUtensorMap &map, int x, int y, uint32_t from, bool add) {
  if (from % 128) fail("writes a tile from an address in shared memory that is not aligned");
  const float *tile = reinterpret_cast<const float *>(shared_memory() + from);
  each(map, {x, y, 0}, [&](float *element, size_t i) {
    if (element) *element = add ? *element + tile[i] : tile[i];
  });
}

void cp_reduce_async_bulk_tensor_2d_global_shared_cta_add_tile_bulk_group(const CUtensorMap *map, int x, int y, uint32_t from) {
  write_tile(*map, x, y, from, true);
}

void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const CUtensorMap *map, int x, int y, uint32_t from) {
  write_tile(*map, x, y, from, false);
}

void wgmma(const Wgmma &w) {
  if (self->cta->copy_at_once) multiply(w);
  else self->wgmmas.back().push_back(w);
}

void wgmma_commit_group_sync_aligned() { self->wgmmas.emplace_back(); }
void wgmma_wait_group_sync_aligned(int left) { wait_groups(self->wgmmas, left, multiply); }

}  // namespace emulator
