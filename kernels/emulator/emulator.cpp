// Grids, CTAs, and how their threads wait for each other. Clusters run one after the other.
//
// It orders work as badly as CUDA allows: the order of a CTA's warps and of a warp's threads is random, a
// warp runs until it must wait for another, the shared memory of a CTA begins as NaN, and a few clusters of a
// grid with PDL begin before the grid ahead of it has run at all. They even begin before the grid ahead of
// that one, if the grid in between allows it: if all its CTAs call griddepcontrol.launch_dependents, or end,
// before they wait.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>

#include "fibers.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emulator {

namespace {

// The guard behind a CTA's shared memory must stay unwritten.
constexpr size_t GUARD = 1 << 10, SHARED = MAX_SHARED + GUARD;
constexpr unsigned char UNWRITTEN = 0xff;

std::mt19937 dice(1);

std::deque<std::unique_ptr<Running>> queued;  // in the order of the stream
std::vector<Thread *> idle_threads;
std::vector<char *> idle_shared;

template <typename T>
T *take(std::vector<T *> &idle, T *(*make)()) {
  if (idle.empty()) return make();
  T *t = idle.back();
  idle.pop_back();
  return t;
}

}  // namespace

char *take_shared(size_t unwritten) {
  char *shared = take<char>(idle_shared, [] { return static_cast<char *>(aligned_alloc(1024, SHARED)); });
  memset(shared, UNWRITTEN, unwritten);
  return shared;
}

namespace {

std::unique_ptr<Cluster> begin(Running &r, unsigned index) {
  const Grid &g = r.grid;
  auto cluster = std::make_unique<Cluster>(g.cluster);
  for (unsigned rank = 0; rank < g.cluster; rank++) {
    Cta &b = (*cluster)[rank];
    b.grid = &r, b.index = index * g.cluster + rank, b.rank = rank, b.cluster = cluster->data();
    b.copy_at_once = dice() % 4 == 0;
    b.shared = take_shared(g.shared + GUARD);
    b.barrier.live = g.threads, b.cluster_barrier.live = g.threads * g.cluster;
    b.lowest_static = b.shared + SHARED;
    b.warps.resize((g.threads + 31) / 32);
    for (unsigned i = 0; i < g.threads; i++) {
      Thread *t = take<Thread>(idle_threads, make_thread);
      t->cta = &b, t->warp = &b.warps[i / 32], t->index = i, t->lane = i % 32, t->state = Thread::READY, t->barrier = nullptr,
      t->arrived = t->wgmma_fenced = t->acquired = t->storing = t->complete = false;
      t->copies.clear(), t->wgmmas.clear(), t->stores.clear();
      t->warp->barrier.live++, t->warp->size++;
      t->warp->threads.push_back(t);
    }
    for (Warp &w : b.warps) {
      std::shuffle(w.threads.begin(), w.threads.end(), dice);
      b.order.push_back(&w);
    }
    std::shuffle(b.order.begin(), b.order.end(), dice);
  }
  return cluster;
}

// run runs a cluster's threads, to their end or as far as they may. At random it suspends a CTA, maybe
// from its beginning, or one of its warps, until the others can do nothing without it.
void run(Cluster &cluster) {
  constexpr unsigned ALL = ~0u;
  Cta *resting = dice() % 4 ? nullptr : &cluster[dice() % cluster.size()];
  unsigned resting_warp = ALL;
  for (;;) {
    bool waiting = false, pdl_waiting = false, any = false;
    for (Cta &b : cluster)
      for (Warp *w : b.order) {
        if (&b == resting && (resting_warp == ALL || w == &b.warps[resting_warp])) waiting = waiting || !w->ended();
        else run_warp(*w), any = any || passes.any, waiting = waiting || passes.waiting, pdl_waiting = pdl_waiting || passes.pdl_waiting;
      }
    if (!waiting) return;
    if (any) {
      if (!resting && dice() % 8 == 0) {
        resting = &cluster[dice() % cluster.size()];
        resting_warp = cluster.size() > 1 && dice() % 2 ? ALL : dice() % resting->warps.size();
      }
    } else if (resting) {
      resting = nullptr;
    } else if (pdl_waiting) {
      return;
    } else {
      fail("waits for an event that never comes");
    }
  }
}

void end(Cluster &cluster) {
  run(cluster);
  for (Cta &b : cluster) {
    for (auto &[address, a] : b.mbarriers)
      if (a.missing != a.calls || a.bytes || !a.under_way.empty()) fail("ended before all copies to its mbarrier arrived");
    char *guard = b.shared + b.grid->grid.shared;
    if (std::any_of(guard, guard + GUARD, [](unsigned char c) { return c != UNWRITTEN; })) fail("wrote past the end of its shared memory");
    idle_shared.push_back(b.shared);
    if (b.async) idle_shared.push_back(b.async);
    for (Warp &w : b.warps) idle_threads.insert(idle_threads.end(), w.threads.begin(), w.threads.end());
  }
}

unsigned clusters(const Running &r) { return r.grid.ctas / r.grid.cluster; }

// begin_early runs a cluster as far as it may before the grid ahead is done.
Cluster &begin_early(Running &r, unsigned index) {
  auto &cluster = r.early[index];
  if (!cluster) run(*(cluster = begin(r, index)));
  return *cluster;
}

bool ended(const Cta &b) { return !b.barrier.live; }

// all_early begins clusters of a grid early, first those that have begun already, as long as is() holds for
// all their CTAs. It reports whether it holds for the whole grid.
template <typename Is>
bool all_early(Running &r, Is is) {
  auto all = [&](const Cluster &c) { return std::all_of(c.begin(), c.end(), is); };
  for (auto &[index, cluster] : r.early)
    if (!all(*cluster)) return false;
  for (unsigned i = 0; i < clusters(r); i++)
    if (!all(begin_early(r, i))) return false;
  return true;
}

// finish_but finishes all grids but the last ones.
void finish_but(size_t last) {
  while (queued.size() > last) {
    Running &r = *queued.front();
    r.preceding_done = true;
    for (unsigned i = 0; i < clusters(r); i++) {
      auto early = r.early.find(i);
      end(*(early == r.early.end() ? begin(r, i) : std::move(early->second)));
    }
    queued.pop_front();
  }
}

}  // namespace

void submit(Grid grid) {
  auto next = std::make_unique<Running>();
  next->grid = std::move(grid);
  if (!next->grid.pdl) finish();
  if (!queued.empty()) {
    Running &last = *queued.back();
    if (queued.size() > 1 && !all_early(last, [](const Cta &b) { return b.triggered || ended(b); })) finish_but(1);
    // A grid whose threads do not wait may be done before the one ahead of it.
    next->preceding_done = queued.size() > 1 && all_early(last, ended);
    unsigned all = clusters(*next);
    for (unsigned i : {0u, all - 1, unsigned(dice() % all)}) begin_early(*next, i);
  }
  queued.push_back(std::move(next));
}

void finish() { finish_but(0); }

void fail(const char *what) {
  fprintf(stderr, "emulator: thread %u of CTA %u %s\n", threadIdx.x, blockIdx.x, what);
  abort();
}

char *shared_memory() { return self->cta->shared; }

Cta &other(unsigned rank) {
  Cta &b = self->cta->cluster[rank];
  if (!b.begun) fail("uses shared memory of a CTA that has not begun");
  if (!b.barrier.live) fail("uses shared memory of a CTA that has ended");
  return b;
}

void *static_shared(const void *site, size_t bytes) {
  Cta &b = *self->cta;
  char *&place = b.statics[site];
  if (!place) {
    b.lowest_static -= (bytes + 15) / 16 * 16;
    size_t statics = b.shared + SHARED - b.lowest_static;
    if (b.grid->grid.shared + statics > max_shared()) fail("has too much shared memory, static and dynamic");
    place = static_cast<char *>(memset(b.lowest_static, UNWRITTEN, bytes));
  }
  return place;
}
size_t shared_bytes() { return self->cta->grid->grid.shared; }
unsigned cluster_rank() { return self->cta->rank; }
unsigned cluster_size() { return self->cta->grid->grid.cluster; }

// wait_for_turn waits until a barrier has opened. The scheduler does not resume the thread before.
static void wait_for_turn(Barrier &b, unsigned turn) {
  self->barrier = &b, self->turn = turn;
  wait_until([&] { return b.turn != turn; });
  self->barrier = nullptr;
}

// arrive reports whether the barrier then opens.
static bool arrive(Barrier &b) {
  b.arrived++, progress = true;
  return b.open();
}

static void arrive_and_wait(Barrier &b) {
  unsigned turn = b.turn;
  arrive(b);
  wait_for_turn(b, turn);
}

void cta_barrier() { arrive_and_wait(self->cta->barrier); }

// numbered_barrier returns a barrier of bar.sync and bar.arrive.
static Barrier &numbered_barrier(int barrier, int threads) {
  constexpr int CTA_BARRIER = 0, MAX_NUMBER = 15;  // the first is for __syncthreads
  if (barrier <= CTA_BARRIER || barrier > MAX_NUMBER || threads <= 0 || threads % 32) fail("comes to a barrier that does not exist");
  Barrier &b = self->cta->numbered_barriers[barrier];
  if (b.arrived && b.live != unsigned(threads)) fail("comes to a barrier with another number of threads than those before it");
  b.live = unsigned(threads);
  return b;
}

void bar_sync(int barrier, int threads) { arrive_and_wait(numbered_barrier(barrier, threads)); }

void bar_arrive(int barrier, int threads) { arrive(numbered_barrier(barrier, threads)); }

Words &given() { return self->warp->given[self->lane]; }

const Words &exchange(Exchange f) {
  Warp &w = *self->warp;
  unsigned turn = w.barrier.turn, lane = self->lane;
  if (w.barrier.live != w.size) fail("waits for threads of its warp that ended");
  if (w.barrier.arrived && w.exchange != f) fail("executes another operation than its warp");
  w.exchange = f;
  if (arrive(w.barrier)) f(w.given, w.got);
  wait_for_turn(w.barrier, turn);
  return w.got[lane];
}

void barrier_cluster_arrive_aligned() {
  Barrier &b = self->cta->cluster->cluster_barrier;
  if (std::exchange(self->arrived, true)) fail("arrives at the cluster barrier without having waited at the one before");
  self->cluster_turn = b.turn;
  arrive(b);
}

void barrier_cluster_arrive_relaxed_aligned() {
  if (self->cta->cluster->cluster_barrier.turn) fail("may still read the shared memory that it gives back by a relaxed arrive");
  barrier_cluster_arrive_aligned();
}

void barrier_cluster_wait_aligned() {
  Barrier &b = self->cta->cluster->cluster_barrier;
  if (!std::exchange(self->arrived, false)) fail("waits at the cluster barrier without having arrived");
  wait_until([&] { return b.turn != self->cluster_turn; });
}

void griddepcontrol_launch_dependents() { self->cta->triggered = true; }

void griddepcontrol_wait() {
  if (self->cta->grid->preceding_done) return;
  self->state = Thread::PDL_WAIT;
  progress = true;
  wait_until([] { return self->cta->grid->preceding_done; });
  self->state = Thread::READY;
}

}  // namespace emulator
