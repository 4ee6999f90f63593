// The threads of a kernel as fibers, and their shared state: internal to the emulator.
#ifndef EMULATOR_FIBERS_H
#define EMULATOR_FIBERS_H

#include <ucontext.h>

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
  uint32_t fenced = 0;  // lanes that called fence.proxy.async since their writes became visible to TMA and wgmma
  Exchange exchange;  // that its threads are at
  Words given[32], got[32];

  bool ended() { return !barrier.live; }
};

struct Copy {
  uint32_t to;
  const void *from;
  int size, bytes;
};

// A TileStore is a tile that TMA stores, or adds, to global memory; or bytes that it stores to an address.
struct TileStore {
  CUtensorMap map;
  int x, y;
  uint32_t from;
  bool add, done;
  void *to = nullptr;
  int bytes = 0;
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

// A Place is a point to resume: go_on(place) returns from the last stop(place), on its stack. (setjmp
// and longjmp would take longer than the kernels.)
using Place = void *[5];

struct Running;

struct Thread {
  Cta *cta;
  unsigned index;
  enum { READY, PDL_WAIT, DONE } state;
  Barrier *barrier;  // that it waits for to leave this turn, or null
  unsigned turn;
  bool arrived;           // at the cluster barrier, at which it has yet to wait
  unsigned cluster_turn;  // the barrier's when it arrived
  bool wgmma_fenced;      // wgmma.fence was called since the last group was committed
  // Asynchronous work, in groups; the last is not committed.
  std::vector<std::vector<Copy>> groups;
  std::vector<std::vector<Wgmma>> wgmmas;
  std::vector<std::vector<TileStore>> stores;

  ucontext_t context;
  Place at;
  bool begun = false;
  std::unique_ptr<char[]> stack{new char[STACK]};
};

struct Cta {
  Running *grid;
  unsigned index, rank;
  bool copy_at_once;
  bool begun = false;
  bool triggered = false;  // some thread called griddepcontrol.launch_dependents
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
  std::map<unsigned, std::unique_ptr<Cluster>> early;  // clusters that have begun, by their index
};

extern Thread *self;
extern bool progress;  // some thread did more than wait

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

#endif
