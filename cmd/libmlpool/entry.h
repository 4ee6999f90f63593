// What entry.c and exports.go share.
#ifndef MLPOOL_ENTRY_H
#define MLPOOL_ENTRY_H

#include <stdlib.h>

#include "front.h"
#include "mlpool.h"

enum { ERROR_BYTES = 2048 };  // of the text of an error

#define NO_BLOCK UINT32_MAX  // the index of none

// The arguments of an allocation.
typedef struct {
  size_t bytes, alignment;
  uintptr_t stream;
  const char *tag;
  int try;       // neither wait nor call the driver
  uint64_t id;   // of the captures whose memory it wants; 0: those that its stream belongs to
  uintptr_t at;  // where the block was before; 0: anywhere
  int tagged;    // it wants memory that serves only its tag
} entry_request;

// A thread's default stream (cudaStreamPerThread) has the same handle in every thread, and is another stream in each. So
// entry_stream gives it a number of the calling thread; other streams are their handles, whose lowest bits are 0.
enum { PER_THREAD = 2, STREAM_BITS = 4 };
uintptr_t entry_stream(uintptr_t stream);
static inline int entry_is_per_thread(uintptr_t stream) { return (stream & ((1 << STREAM_BITS) - 1)) == PER_THREAD; }
static inline uintptr_t entry_handle(uintptr_t stream) { return entry_is_per_thread(stream) ? PER_THREAD : stream; }

// Calls of functions of the program, which Go cannot call itself.
int entry_out_of_memory(mlpool_out_of_memory function, uintptr_t arg, size_t bytes, char *text);
void entry_visit(mlpool_visitor function, uintptr_t arg, const mlpool_region *region);
int entry_filter(mlpool_filter filter, uintptr_t arg, uintptr_t stream);

// entry_front returns the front of a pool, or front_none.
front *entry_front(uintptr_t handle);

// entry_drain_next is front_drain_next that lets entry_again know of the end.
int entry_drain_next(front *f, int *next, front_drained *out);

// entry_again reports whether the thread's request, which would fail, should try again: since the thread last drained the
// front to the end, other threads freed blocks that were in hand, or they have some in hand now. A request tries again a
// few times at most.
int entry_again(front *f);

#endif
