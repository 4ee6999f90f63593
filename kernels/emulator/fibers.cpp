// A thread of a kernel is a fiber: it runs until it must wait for another.
#include "fibers.h"

#include <ucontext.h>

#include <cstdlib>

namespace emulator {

Thread *self;
bool progress;
Passes passes;

static Place scheduler;  // the caller of run_warp or make_thread

// switch_to stops at one place and goes on at another. Here and in yield every call returns, to the same
// address in all threads of a warp: a CPU predicts that each return is to the last call, on whatever stack. A
// wrong prediction takes twice as long.
[[gnu::noipa]] static void called() {}
[[gnu::noipa]] static void switch_to(Place &from, Place &to) {
  if (__builtin_setjmp(from)) return;
  called();  // for GCC, which takes it that only a call leads to where __builtin_setjmp returns again
  __builtin_longjmp(to, 1);
}

// next_thread returns the thread that runs next, or null.
static Thread *next_thread() {
  const std::vector<Thread *> &threads = passes.warp->threads;
  for (;;) {
    while (passes.next < threads.size()) {
      Thread *t = threads[passes.next++];
      if (t->state == Thread::DONE) continue;
      if (t->state == Thread::PDL_WAIT && !t->cta->grid->preceding_done) passes.pdl_waiting = true;
      else if (passes.waiting = true; !t->barrier || t->barrier->turn != t->turn) return t;
    }
    if (!progress) return nullptr;
    passes.any = true, progress = false, passes.next = 0;
  }
}

void yield() {
  Thread *from = self, *next = next_thread();
  if (next) self = next, threadIdx.x = next->index;
  if (next != from) switch_to(from->at, next ? next->at : scheduler);
}

// run_kernels is the main function of a fiber.
static void run_kernels() {
  switch_to(self->at, scheduler);
  for (;;) {
    self->cta->grid->grid.kernel();
    if (!self->copies.all_committed()) fail("ended with copies that it did not commit");
    if (!self->wgmmas.empty()) fail("ended with a wgmma that it did not wait for");
    if (!self->stores.empty()) fail("ended before TMA had read a tile that it stores");
    if (self->warp->barrier.arrived) fail("ended while its warp waits for it");
    self->state = Thread::DONE;
    progress = true;
    for (Barrier *barrier : {&self->warp->barrier, &self->cta->barrier, &self->cta->cluster->cluster_barrier}) {
      barrier->live--;
      if (barrier->live) barrier->open();
    }
    yield();
  }
}

[[gnu::noipa]] Thread *make_thread() {
  self = new Thread;
  if (__builtin_setjmp(scheduler)) return self;
  // Stacks begin at different places in a page, so that those of a warp lie in different sets of a cache.
  static unsigned threads;
  constexpr unsigned LINE = 64, LINES = 4096 / LINE;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack = {self->stack.get(), 0, STACK - LINE * (37 * threads++ % LINES)};
  context.uc_link = nullptr;
  makecontext(&context, run_kernels, 0);
  setcontext(&context);
  abort();
}

void run_warp(Warp &w) {
  progress = false;
  passes = {&w};
  self = next_thread();
  if (!self) return;
  Cta &b = *self->cta;
  b.begun = true;
  threadIdx = {self->index, 0, 0};
  blockIdx = {b.index, 0, 0};
  blockDim = dim3(b.grid->grid.threads);
  gridDim = dim3(b.grid->grid.ctas);
  switch_to(scheduler, self->at);
}

}  // namespace emulator
