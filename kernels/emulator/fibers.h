// The threads of a kernel as fibers, and their shared state: internal to the emulator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuda_runtime.h"
#include "emulator.h"

namespace emulator {

constexpr size_t STACK = 128 << 10;

// A Barrier opens once all of its threads that have not ended have come.
struct Barrier {
  unsigned live = 0, arrived = 0, turn = 0;
  bool open() { return arrived == live && (arrived = 0, turn++, true); }
};

struct Thread;

struct Warp {
  std::vector<Thread *> threads;
  Barrier barrier;
  unsigned size = 0;
  uint32_t fenced = 0;  // lanes that called fence.proxy.async since their writes became visible to the async proxy
  Exchange exchange;  // that its threads are at
  Words given[32], got[32];

  bool ended() { return !barrier.live; }
};

// Groups are groups of asynchronous work, of which the last is not committed.
template <typename T>
class Groups {
  std::vector<T> work;
  std::vector<size_t> ends;  // of the committed groups

 public:
  void add(const T &t) { work.push_back(t); }
  void commit() { ends.push_back(work.size()); }
  void clear() { work.clear(), ends.clear(); }
  bool all_committed() const { return work.size() == (ends.empty() ? 0 : ends.back()); }
  bool empty() const { return work.empty() && ends.empty(); }
  // wait calls f with the work of committed groups, except for the last ones.
  template <typename F>
  void wait(int last, F f) {
    auto done = static_cast<ptrdiff_t>(ends.size()) - last;
    if (done <= 0) return;
    size_t end = ends[size_t(done) - 1];
    for (size_t i = 0; i < end; i++) f(work[i]);
    work.erase(work.begin(), work.begin() + ptrdiff_t(end));
    ends.erase(ends.begin(), ends.begin() + done);
    for (size_t &e : ends) e -= end;
  }
};

struct Copy {
  uint32_t to;
  const void *from;
  int size, bytes;
};

struct Cta;

// An Mbarrier completes its phase once this number of calls, and all bytes that they expect, have
// arrived.
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
  bool fenced = false;  // so that TMA and other CTAs see it

  void check() {
    if (!missing && !bytes) missing = calls, phase++;
  }
};

// A Place is a point to resume, for __builtin_setjmp. (setjmp and longjmp would take longer than the
// kernels.)
using Place = void *[5];

struct Running;

struct Thread {
  Cta *cta;
  Warp *warp;
  unsigned index, lane;
  enum { READY, PDL_WAIT, DONE } state;
  Barrier *barrier;  // that it waits for to leave this turn, or null
  unsigned turn;
  bool arrived;           // at the cluster barrier, at which it has yet to wait
  unsigned cluster_turn;  // the barrier's when it arrived
  bool wgmma_fenced;      // wgmma.fence was called since the last group was committed
  bool acquired;          // it read a flag, and called no fence.proxy.async.global since
  // Its stores by TMA have yet to be complete, and to be followed by fence.proxy.async.global.
  bool storing;
  bool complete;
  Groups<Copy> copies;
  Groups<Wgmma> wgmmas;
  Groups<std::function<void()>> stores;  // by TMA; those that are done are null

  Place at;
  std::unique_ptr<char[]> stack{new char[STACK]};
};

struct Cta {
  Running *grid;
  unsigned index, rank;
  bool copy_at_once;
  bool begun = false;
  bool triggered = false;  // some thread called griddepcontrol.launch_dependents
  unsigned acquired = 0;   // threads
  Cta *cluster;  // its first CTA
  char *shared;
  char *async = nullptr;             // shared memory as TMA and wgmma see it, see async_memory
  Barrier barrier, cluster_barrier;  // of the cluster: the first CTA's
  std::map<int, Barrier> numbered_barriers;
  std::vector<Warp> warps;
  std::vector<Warp *> order;  // in which they run
  std::map<const void *, char *> statics;
  char *lowest_static;
  std::map<uint32_t, Mbarrier> mbarriers;
};

using Cluster = std::vector<Cta>;

struct Running {
  Grid grid;
  bool preceding_done = false;
  unsigned storing = 0;  // threads
  std::map<unsigned, std::unique_ptr<Cluster>> early;  // clusters that have begun, by their index
};

extern Thread *self;
extern bool progress;  // some thread did more than wait

// make_thread returns a thread that has yet to be given a kernel.
Thread *make_thread();

// A warp runs in passes over its threads, until none does more than wait.
struct Passes {
  Warp *warp;
  size_t next;                     // index of the thread that the pass comes to
  bool any, waiting, pdl_waiting;  // some thread did more than wait, waits, and waits for the grid ahead
};
extern Passes passes;

// run_warp runs a warp's threads as far as they get without other warps: passes then says how far.
void run_warp(Warp &);

// yield lets other threads run. noipa: its callers must expect that registers change.
[[gnu::noipa]] void yield();

template <typename Condition>
void wait_until(Condition c) {
  while (!c()) yield();
  progress = true;
}

// take_shared returns the shared memory of a CTA, which begins with NaN.
char *take_shared(size_t unwritten);

// async_memory is shared memory as TMA and wgmma see it: data of TMA, and of threads before their
// fence.proxy.async. The rest is NaN.
char *async_memory(Cta &b);

// other returns a CTA of this cluster, for its shared memory.
Cta &other(unsigned rank);

}  // namespace emulator
