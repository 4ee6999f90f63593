#include "front.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
  SHARDS = 64,    // of the table of blocks, each with a lock
  STREAMS = 1024, // places for streams
  PROBES = 16,    // places where a stream may be
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

// A stream has the blocks that were freed on it.
typedef struct stream_blocks {
  spinlock lock;
  unsigned place;              // in the table
  uint32_t left, returned;     // times that blocks left, and that the pool had freed them
  struct stream_blocks *next;  // made before
  _Atomic(uintptr_t) stream;  // changes with the lock held, while there are no blocks
  _Atomic(uintptr_t) last;    // block that the pool handed out
  front_room room;
  int count;
  size_t sizes[FRONT_BLOCKS];  // of freed
  const char *tags[FRONT_BLOCKS];
  front_block freed[FRONT_BLOCKS];
  uint64_t taken[FRONT_CLASSES];  // blocks that requests took, by class
} __attribute__((aligned(LINE))) stream_blocks;

enum { LIVE, OUTSIDE, KEPT };  // states of a block: only a live one may be kept

// A slot is a block of the table, or empty: block.ptr is 0.
typedef struct {
  front_block block;
  int state;
  size_t size;
  const char *tag;
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
  _Atomic(uint64_t) kept[STREAMS / 64];  // bit i of all: streams[i] may have blocks or room
  _Atomic(stream_blocks *) last;  // of all streams, made last
  atomic_int off;
  pthread_mutex_t adding;  // of a stream
  atomic_int missing __attribute__((aligned(LINE)));
  int32_t rooms;  // in hand, or being made
};

static front none;
front *const front_none = &none;

static uint64_t hash(uint64_t n) { return n * 0x9E3779B97F4A7C15u; }

static shard *shard_of(front *f, uintptr_t ptr) { return &f->shards[hash(ptr / UNIT) >> 58]; }

static size_t place(const shard *d, uintptr_t ptr) { return hash(ptr / UNIT) >> 20 & d->mask; }

// find returns the slot of ptr in a locked shard, or NULL.
static slot *find(shard *d, uintptr_t ptr) {
  if (!ptr || !d->slots) return NULL;
  for (size_t i = place(d, ptr);; i = (i + 1) & d->mask) {
    if (d->slots[i].block.ptr == ptr) return &d->slots[i];
    if (!d->slots[i].block.ptr) return NULL;
  }
}

// insert returns an empty slot for ptr, which is not in the shard.
static slot *insert(shard *d, uintptr_t ptr) {
  size_t i = place(d, ptr);
  while (d->slots[i].block.ptr) i = (i + 1) & d->mask;
  d->count++;
  return &d->slots[i];
}

// grow doubles a shard, and reports whether the host has the memory.
static int grow(shard *d) {
  size_t slots = d->slots ? 2 * (d->mask + 1) : FIRST_SLOTS;
  shard larger = {.slots = calloc(slots, sizeof(slot)), .mask = slots - 1};
  if (!larger.slots) return 0;
  for (size_t i = 0; d->slots && i <= d->mask; i++)
    if (d->slots[i].block.ptr) *insert(&larger, d->slots[i].block.ptr) = d->slots[i];
  free(d->slots);
  d->slots = larger.slots;
  d->mask = larger.mask;
  return 1;
}

// erase empties a slot and moves those after it that would not be found otherwise.
static void erase(shard *d, slot *s) {
  size_t hole = (size_t)(s - d->slots);
  for (size_t i = (hole + 1) & d->mask; d->slots[i].block.ptr; i = (i + 1) & d->mask) {
    size_t from = place(d, d->slots[i].block.ptr);
    if (((i - from) & d->mask) >= ((i - hole) & d->mask)) {
      d->slots[hole] = d->slots[i];
      hole = i;
    }
  }
  d->slots[hole].block.ptr = 0;
  d->count--;
}

static void forget(front *f, uintptr_t ptr) {
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  slot *s = find(d, ptr);
  if (s) erase(d, s);
  unlock(&d->lock);
}

// in_hand_of returns how many times blocks of a stream are in hand.
static uint32_t in_hand_of(stream_blocks *s) {
  uint32_t returned = __atomic_load_n(&s->returned, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&s->left, __ATOMIC_SEQ_CST) - returned;
}

// add_stream returns new blocks of a stream, locked. If no place is free they take that of another stream, which
// may be destroyed, without blocks and room, and with none in hand. If all streams have some, it returns NULL.
static stream_blocks *add_stream(front *f, uintptr_t stream) {
  size_t first = hash(stream) >> 54;
  for (unsigned k = 0; k < PROBES; k++) {
    unsigned place = (first + k) % STREAMS;
    stream_blocks *s = atomic_load(&f->streams[place]);
    if (!s) {
      if (!(s = aligned_alloc(LINE, sizeof *s))) return NULL;
      memset(s, 0, sizeof *s);
      s->place = place;
      s->stream = stream;
      lock(&s->lock);
      s->next = f->last;
      atomic_store(&f->last, s);
      atomic_store_explicit(&f->streams[place], s, memory_order_release);
      return s;
    }
    lock(&s->lock);
    if (!s->count && !s->room.block.ptr && !in_hand_of(s)) return s->stream = stream, s;
    unlock(&s->lock);
  }
  return NULL;
}

// find_stream returns the blocks of a stream, locked, or NULL.
static inline stream_blocks *find_stream(front *f, uintptr_t stream) {
  size_t first = hash(stream) >> 54;
  for (unsigned k = 0; k < PROBES; k++) {
    stream_blocks *s = atomic_load_explicit(&f->streams[(first + k) % STREAMS], memory_order_acquire);
    if (!s) return NULL;
    if (s->stream != stream) continue;
    lock(&s->lock);
    if (s->stream == stream) return s;
    unlock(&s->lock);
  }
  return NULL;
}

// stream_of is find_stream that adds the stream if it is not there.
static stream_blocks *stream_of(front *f, uintptr_t stream) {
  stream_blocks *s = find_stream(f, stream);
  if (s) return s;
  pthread_mutex_lock(&f->adding);
  if (!(s = find_stream(f, stream))) s = add_stream(f, stream);
  pthread_mutex_unlock(&f->adding);
  return s;
}

front *front_new(void) {
  front *f = aligned_alloc(LINE, sizeof *f);
  if (!f) return NULL;
  memset(f, 0, sizeof *f);
  pthread_mutex_init(&f->adding, NULL);
  return f;
}

void front_end(front *f) {
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

// class_of returns the class of a size in units.
static int class_of(size_t size) { return size > 1 ? 64 - __builtin_clzll(size - 1) : 0; }

int front_add(front *f, const front_block *b, size_t bytes, const char *tag, int plain) {
  shard *d = shard_of(f, b->ptr);
  lock(&d->lock);
  int room = (d->slots && d->count < d->mask / 4 * 3) || grow(d);
  if (room) *insert(d, b->ptr) = (slot){*b, plain ? LIVE : OUTSIDE, size_of(bytes), tag};
  unlock(&d->lock);
  return room;
}

int front_use(front *f, front_block *b, int shared) {
  shard *d = shard_of(f, b->ptr);
  lock(&d->lock);
  slot *s = find(d, b->ptr);
  int result = !s ? FRONT_UNKNOWN : s->state == KEPT ? FRONT_FREED_BEFORE : FRONT_LIVE;
  if (result == FRONT_LIVE) {
    b->index = s->block.index;
    if (shared) s->state = OUTSIDE;
  }
  unlock(&d->lock);
  return result;
}

static _Atomic(uint64_t) *kept_of(front *f, unsigned place) { return &f->kept[place / 64]; }

static uint64_t bit_of(unsigned place) { return (uint64_t)1 << place % 64; }

// mark_kept sets the bit of a stream, whose lock is held.
static void mark_kept(front *f, stream_blocks *s) {
  if (!(atomic_load(kept_of(f, s->place)) & bit_of(s->place))) atomic_fetch_or(kept_of(f, s->place), bit_of(s->place));
}

// leave notes that out has something of a stream, whose lock is held.
static void leave(stream_blocks *s, front_drained *out) {
  out->returned = &s->returned;
  __atomic_store_n(&s->left, s->left + 1, __ATOMIC_SEQ_CST);
}

// move_room moves the room of a stream, whose lock is held, to out.
static void move_room(front *f, stream_blocks *s, front_drained *out) {
  out->room = s->room;
  if (!s->room.block.ptr) return;
  s->room.block.ptr = 0;
  out->rooms = &f->rooms;
  __atomic_add_fetch(&f->rooms, 1, __ATOMIC_SEQ_CST);
}

// empty moves the room and the blocks of a stream, whose lock is held, to out.
static void empty(front *f, stream_blocks *s, front_drained *out) {
  move_room(f, s, out);
  out->count = s->count;
  memcpy(out->blocks, s->freed, (size_t)s->count * sizeof *s->freed);
  s->count = 0;
  if (out->count || out->room.block.ptr) leave(s, out);
}

// take_room moves the room of a stream to out.
static void take_room(front *f, uintptr_t stream, front_drained *out) {
  stream_blocks *s = find_stream(f, stream);
  if (!s) return;
  move_room(f, s, out);
  if (out->room.block.ptr) leave(s, out);
  unlock(&s->lock);
}

static void forget_all(front *f, const front_drained *out) {
  for (int i = 0; i < out->count; i++) forget(f, out->blocks[i].ptr);
}

uint32_t front_returned(front *f, uint32_t *in_hand) {
  uint32_t returned = 0;
  *in_hand = 0;
  for (stream_blocks *s = atomic_load(&f->last); s; s = s->next) {
    returned += __atomic_load_n(&s->returned, __ATOMIC_SEQ_CST);
    *in_hand += in_hand_of(s);
  }
  return returned;
}

uint32_t front_in_hand(front *f, uintptr_t stream) {
  stream_blocks *s = find_stream(f, stream);
  if (!s) return 0;
  unlock(&s->lock);
  return in_hand_of(s);
}

// has_room reports whether the one block that a stream keeps has room for a request.
static int has_room(const stream_blocks *s, size_t size, const char *tag) {
  return s->count == 1 && s->freed[0].ptr == s->room.block.ptr && s->tags[0] == tag && size >= size_of(s->room.least) && size <= s->room.room / UNIT;
}

uintptr_t front_take(front *f, size_t bytes, uintptr_t stream, const char *tag, front_drained *out, front_miss *miss) {
  stream_blocks *s = miss->stream = find_stream(f, stream);
  if (!s) return 0;
  size_t size = size_of(bytes);
  int i = f->off ? -1 : s->count - 1;
  while (i >= 0 && (s->sizes[i] != size || s->tags[i] != tag)) i--;
  if (i < 0 && !f->off && has_room(s, size, tag)) i = 0;
  if (i < 0) {
    miss->alone = s->count == 1 && s->freed[0].ptr == s->last;
    empty(f, s, out);
    unlock(&s->lock);
    return forget_all(f, out), 0;
  }
  uintptr_t ptr = s->freed[i].ptr;
  if (ptr == s->room.block.ptr) {
    s->room.bytes = bytes;
    if (bytes > s->room.most) s->room.most = bytes;
  }
  int last = --s->count;
  s->freed[i] = s->freed[last];
  s->sizes[i] = s->sizes[last];
  s->tags[i] = s->tags[last];
  s->taken[class_of(size)]++;
  unlock(&s->lock);
  shard *d = shard_of(f, ptr);
  lock(&d->lock);
  slot *found = find(d, ptr);
  if (found) {
    found->state = LIVE;
    found->size = size;
  }
  unlock(&d->lock);
  return ptr;
}

void front_extend(front *f, const front_miss *miss, const front_block *b, size_t bytes, size_t (*extend)(uintptr_t, const front_block *),
                  uintptr_t pool) {
  stream_blocks *s = miss->stream;
  if (!s) return;
  atomic_store_explicit(&s->last, b->ptr, memory_order_relaxed);
  if (!miss->alone) return;
  lock(&s->lock);
  if (s->stream == b->stream && !s->room.block.ptr && !f->off) {
    __atomic_add_fetch(&f->rooms, 1, __ATOMIC_SEQ_CST);
    mark_kept(f, s);
    size_t room = f->missing > 1 ? 0 : extend(pool, b);
    if (room) s->room = (front_room){*b, bytes, bytes, bytes, room};
    __atomic_sub_fetch(&f->rooms, 1, __ATOMIC_SEQ_CST);
  }
  unlock(&s->lock);
}

void front_missing(front *f, int change) { atomic_fetch_add(&f->missing, change); }

int front_rooms(front *f) { return __atomic_load_n(&f->rooms, __ATOMIC_SEQ_CST); }

int front_give(front *f, front_block *b, front_drained *out) {
  shard *d = shard_of(f, b->ptr);
  lock(&d->lock);
  slot *found = find(d, b->ptr), block = {0};
  int result = !found ? FRONT_UNKNOWN : found->state == KEPT ? FRONT_FREED_BEFORE : FRONT_LIVE;
  if (result == FRONT_LIVE) {
    block = *found;
    b->index = block.block.index;
    if (block.state == LIVE && block.block.stream == b->stream && !f->off) {
      result = FRONT_KEPT;
      found->state = KEPT;
    } else {
      erase(d, found);
    }
  }
  unlock(&d->lock);
  if (result == FRONT_LIVE) take_room(f, block.block.stream, out);
  if (result != FRONT_KEPT) return result;
  stream_blocks *s = stream_of(f, b->stream);
  if (!s) return forget(f, b->ptr), FRONT_LIVE;
  if (s->count == FRONT_BLOCKS) empty(f, s, out);
  int last = s->count++;
  s->freed[last] = *b;
  s->sizes[last] = block.size;
  s->tags[last] = block.tag;
  mark_kept(f, s);
  unlock(&s->lock);
  forget_all(f, out);
  return FRONT_KEPT;
}

int front_drain_next(front *f, int *next, front_drained *out) {
  for (unsigned place = (unsigned)*next; place < STREAMS;) {
    uint64_t rest = atomic_load(kept_of(f, place)) >> place % 64;
    if (!rest) {
      place = (place | 63) + 1;
      continue;
    }
    place += (unsigned)__builtin_ctzll(rest);
    stream_blocks *s = atomic_load(&f->streams[place++]);
    lock(&s->lock);
    empty(f, s, out);
    atomic_fetch_and(kept_of(f, s->place), ~bit_of(s->place));
    unlock(&s->lock);
    forget_all(f, out);
    *next = (int)place;
    if (out->count || out->room.block.ptr) return 1;
  }
  return 0;
}

void front_taken(front *f, uint64_t *taken) {
  for (stream_blocks *s = atomic_load(&f->last); s; s = s->next) {
    lock(&s->lock);
    for (int c = 0; c < FRONT_CLASSES; c++) taken[c] += s->taken[c];
    unlock(&s->lock);
  }
}

void front_off(front *f, int change) { atomic_fetch_add(&f->off, change); }
