#include "front.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
  SHARDS = 64,    // of the table of blocks, each with a lock
  STREAMS = 1024, // places for streams
  FIRST_SLOTS = 64,
  SPINS = 100,  // looks at a lock before the thread yields
  LINE = 128,   // bytes; what two threads write lies in different lines
  UNIT = 256,   // allocator.Alignment: sizes are multiples of it
};

typedef atomic_int spinlock;

static void lock(spinlock *l) {
  for (int spins = 0; atomic_exchange_explicit(l, 1, memory_order_acquire); spins++)
    while (atomic_load_explicit(l, memory_order_relaxed))
      if (++spins > SPINS) sched_yield();
}

static void unlock(spinlock *l) { atomic_store_explicit(l, 0, memory_order_release); }

// A stream has the blocks that were freed on it, the last one last.
typedef struct {
  spinlock lock;
  uintptr_t stream;
  int count;
  struct {
    uintptr_t ptr;
    size_t size;
    const char *tag;
  } freed[FRONT_BLOCKS];
} __attribute__((aligned(LINE))) stream_blocks;

enum { LIVE, SHARED, KEPT };  // states of a block

// A slot is a block of the table, or empty: ptr is 0.
typedef struct {
  uintptr_t ptr, stream;
  size_t size;
  const char *tag;
  int state;
} slot;

// A shard has the blocks whose addresses have one hash, by linear probing.
typedef struct {
  spinlock lock;
  slot *slots;
  size_t mask, count;
} __attribute__((aligned(LINE))) shard;

struct front {
  shard shards[SHARDS];
  _Atomic(stream_blocks *) streams[STREAMS];
  atomic_int off;
  pthread_mutex_t adding;  // of a stream
};

static uint64_t hash(uint64_t n) { return n * 0x9E3779B97F4A7C15u; }

static shard *shard_of(front *f, uintptr_t ptr) { return &f->shards[hash(ptr / UNIT) >> 58]; }

static size_t place(const shard *d, uintptr_t ptr) { return hash(ptr / UNIT) >> 20 & d->mask; }

// find returns the slot of ptr in a locked shard, or NULL.
static slot *find(shard *d, uintptr_t ptr) {
  if (!ptr || !d->slots) return NULL;
  for (size_t i = place(d, ptr);; i = (i + 1) & d->mask) {
    if (d->slots[i].ptr == ptr) return &d->slots[i];
    if (!d->slots[i].ptr) return NULL;
  }
}

static void insert(shard *d, slot s) {
  size_t i = place(d, s.ptr);
  while (d->slots[i].ptr) i = (i + 1) & d->mask;
  d->slots[i] = s;
  d->count++;
}

// grow doubles a shard, and reports whether the host has the memory.
static int grow(shard *d) {
  size_t slots = d->slots ? 2 * (d->mask + 1) : FIRST_SLOTS;
  shard larger = {.slots = calloc(slots, sizeof(slot)), .mask = slots - 1};
  if (!larger.slots) return 0;
  for (size_t i = 0; d->slots && i <= d->mask; i++)
    if (d->slots[i].ptr) insert(&larger, d->slots[i]);
  free(d->slots);
  d->slots = larger.slots;
  d->mask = larger.mask;
  return 1;
}

// erase empties a slot and moves those after it that would not be found otherwise.
static void erase(shard *d, slot *s) {
  size_t hole = (size_t)(s - d->slots);
  for (size_t i = (hole + 1) & d->mask; d->slots[i].ptr; i = (i + 1) & d->mask) {
    size_t from = place(d, d->slots[i].ptr);
    if (((i - from) & d->mask) >= ((i - hole) & d->mask)) {
      d->slots[hole] = d->slots[i];
      hole = i;
    }
  }
  d->slots[hole].ptr = 0;
  d->count--;
}

static void forget(front *f, uintptr_t ptr) {
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  slot *s = find(d, ptr);
  if (s) erase(d, s);
  unlock(&d->lock);
}

// stream_of returns the blocks of a stream, which it makes if there are none, or NULL if there are too many
// streams.
static stream_blocks *stream_of(front *f, uintptr_t stream, int make) {
  size_t first = hash(stream) >> 54;
  for (size_t k = 0; k < STREAMS; k++) {
    _Atomic(stream_blocks *) *at = &f->streams[(first + k) % STREAMS];
    stream_blocks *s = atomic_load_explicit(at, memory_order_acquire);
    if (!s && make) {
      pthread_mutex_lock(&f->adding);
      if (!(s = atomic_load(at)) && (s = aligned_alloc(LINE, sizeof *s))) {
        memset(s, 0, sizeof *s);
        s->stream = stream;
        atomic_store_explicit(at, s, memory_order_release);
      }
      pthread_mutex_unlock(&f->adding);
    }
    if (!s || s->stream == stream) return s;
  }
  return NULL;
}

front *front_new(void) {
  front *f = aligned_alloc(LINE, sizeof *f);
  if (!f) return NULL;
  memset(f, 0, sizeof *f);
  pthread_mutex_init(&f->adding, NULL);
  return f;
}

void front_end(front *f) {
  front_off(f);
  for (int i = 0; i < SHARDS; i++) {
    shard *d = &f->shards[i];
    lock(&d->lock);
    free(d->slots);
    d->slots = NULL;
    d->mask = d->count = 0;
    unlock(&d->lock);
  }
}

static size_t size_of(size_t bytes) { return bytes ? (bytes + UNIT - 1) / UNIT : 1; }

void front_add(front *f, uintptr_t ptr, size_t bytes, uintptr_t stream, const char *tag) {
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  if ((d->slots && d->count < d->mask / 4 * 3) || grow(d)) insert(d, (slot){ptr, stream, size_of(bytes), tag, LIVE});
  unlock(&d->lock);
}

uintptr_t front_take(front *f, size_t bytes, uintptr_t stream, const char *tag) {
  if (f->off) return 0;
  stream_blocks *s = stream_of(f, stream, 0);
  if (!s) return 0;
  size_t size = size_of(bytes);
  uintptr_t ptr = 0;
  lock(&s->lock);
  for (int i = s->count - 1; i >= 0 && !ptr; i--) {
    if (s->freed[i].size != size || s->freed[i].tag != tag) continue;
    ptr = s->freed[i].ptr;
    s->count--;
    memmove(&s->freed[i], &s->freed[i + 1], (size_t)(s->count - i) * sizeof s->freed[0]);
  }
  unlock(&s->lock);
  if (!ptr) return 0;
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  slot *found = find(d, ptr);
  if (found) found->state = LIVE;
  unlock(&d->lock);
  return ptr;
}

int front_keeps(front *f, uintptr_t ptr, int shared) {
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  slot *s = find(d, ptr);
  int kept = s && s->state == KEPT;
  if (s && !kept && shared) s->state = SHARED;
  unlock(&d->lock);
  return kept;
}

// drain empties the blocks of a stream, whose lock is held, to out.
static int drain(stream_blocks *s, front_block *out) {
  int count = s->count;
  for (int i = 0; i < count; i++) out[i] = (front_block){s->freed[i].ptr, s->stream};
  s->count = 0;
  return count;
}

int front_give(front *f, uintptr_t ptr, uintptr_t stream, front_block *out, int *count) {
  *count = 0;
  stream_blocks *s = f->off ? NULL : stream_of(f, stream, 1);
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  slot *found = find(d, ptr);
  int known = found != NULL, kept = known && found->state == KEPT, keeps = known && found->state == LIVE && s && found->stream == stream;
  slot block = known ? *found : (slot){0};
  if (keeps) found->state = KEPT;
  if (known && !kept && !keeps) erase(d, found);
  unlock(&d->lock);
  if (!keeps) return kept ? FRONT_FREED_BEFORE : FRONT_NOT_KEPT;
  lock(&s->lock);
  if (s->count == FRONT_BLOCKS) *count = drain(s, out);
  s->freed[s->count].ptr = ptr;
  s->freed[s->count].size = block.size;
  s->freed[s->count++].tag = block.tag;
  unlock(&s->lock);
  for (int i = 0; i < *count; i++) forget(f, out[i].ptr);
  return FRONT_KEPT;
}

static int drain_stream(front *f, stream_blocks *s, front_block *out) {
  lock(&s->lock);
  int count = drain(s, out);
  unlock(&s->lock);
  for (int i = 0; i < count; i++) forget(f, out[i].ptr);
  return count;
}

int front_drain(front *f, uintptr_t stream, front_block *out) {
  stream_blocks *s = stream_of(f, stream, 0);
  return s ? drain_stream(f, s, out) : 0;
}

int front_drain_next(front *f, int *next, front_block *out) {
  while (*next < STREAMS) {
    stream_blocks *s = atomic_load_explicit(&f->streams[(*next)++], memory_order_acquire);
    if (s) return drain_stream(f, s, out);
  }
  return -1;
}

void front_off(front *f) { atomic_fetch_add(&f->off, 1); }

void front_on(front *f) { atomic_fetch_sub(&f->off, 1); }
