// A front keeps the last blocks that were freed on each stream of a pool, so that a request of the same size
// on the same stream gets one without a call to Go. Such a call costs a hundred nanoseconds, and the Go
// runtime takes a lock in it that all threads share. To the pool these blocks are live: it takes them back
// before it looks for memory elsewhere, and before it reports anything.
#ifndef MLPOOL_FRONT_H
#define MLPOOL_FRONT_H

#include <stddef.h>
#include <stdint.h>

enum {
  FRONT_BLOCKS = 16,   // that a front keeps of one stream
  FRONT_CLASSES = 48,  // of sizes: class c has those of more than 128 << c bytes, and at most 256 << c
};

typedef struct front front;

// A block that a front gives back to the pool: it was freed on stream.
typedef struct {
  uintptr_t ptr, stream;
} front_block;

// front_new returns an empty front, or NULL if the host has no memory. It is never freed, since another
// thread may be within it; front_end frees most of what it holds.
front *front_new(void);
void front_end(front *f);

// front_add notes a block that the pool handed out for work on stream.
void front_add(front *f, uintptr_t ptr, size_t bytes, uintptr_t stream, const char *tag);

// front_take returns a block for a request, or 0. Two tags are equal if their addresses are.
uintptr_t front_take(front *f, size_t bytes, uintptr_t stream, const char *tag);

// front_keeps reports whether the front keeps a block, which the program has freed. If not, and if shared is
// set because another stream uses the block, front_give will not keep it.
int front_keeps(front *f, uintptr_t ptr, int shared);

// The results of front_give.
enum { FRONT_KEPT, FRONT_FREED_BEFORE, FRONT_NOT_KEPT };

// front_give keeps a block that is freed on stream. If it does not, the block is the pool's to free. If there
// are too many blocks, it writes those to give back, *count of them, to out, which has FRONT_BLOCKS.
int front_give(front *f, uintptr_t ptr, uintptr_t stream, front_block *out, int *count);

// front_drain writes the blocks of a stream to out, which has FRONT_BLOCKS, and returns their number. The
// front forgets them.
int front_drain(front *f, uintptr_t stream, front_block *out);

// front_drain_next is front_drain for the first stream with blocks from *next on, and advances *next; it returns
// -1 if there is none.
int front_drain_next(front *f, int *next, front_block *out);

// front_taken adds to taken, by class, how many blocks requests got so far. Each was freed and allocated without
// the pool's knowledge.
void front_taken(front *f, uint64_t *taken);

// front_off stops the front from keeping blocks, until front_on was called as often.
void front_off(front *f);
void front_on(front *f);

#endif
