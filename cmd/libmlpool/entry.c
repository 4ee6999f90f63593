// The functions of mlpool.h. Each calls the Go function of the same name, unless this is a child of fork:
// the Go runtime has no threads there, so a call would hang.
#include "entry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "_cgo_export.h"

static atomic_int forked;

static void in_child(void) { forked = 1; }

// last_error has the text of each thread's last error, once it had one. It is no __thread variable: Go makes
// this library one whose thread-local variables must fit into what the program has left for such.
static pthread_key_t last_error;

// thread has a number of each thread that used its default stream, from 1 on.
static pthread_key_t thread;
static _Atomic(uintptr_t) threads;

// tries has how often a thread's request tried again, and drained what front_returned returned when the thread had
// drained a front to the end.
static pthread_key_t tries, drained;

__attribute__((constructor)) static void begin(void) {
  pthread_key_create(&last_error, free);
  pthread_key_create(&thread, NULL);
  pthread_key_create(&tries, NULL);
  pthread_key_create(&drained, NULL);
  pthread_atfork(NULL, NULL, in_child);
}

// fail keeps the text of an error.
static int fail(int code, const char *text) {
  char *kept = pthread_getspecific(last_error);
  if (!kept && (kept = malloc(ERROR_BYTES)) && pthread_setspecific(last_error, kept)) {
    free(kept);
    kept = NULL;
  }
  if (kept) snprintf(kept, ERROR_BYTES, "%s", text);
  return code;
}

static int refuse_fork(void) {
  return fail(MLPOOL_ERROR_FORKED, "mlpool: this process is a child of fork, in which the pool does not work: start it with spawn, or with exec");
}

// CALL calls a Go function and keeps its error.
#define CALL(function, ...) \
  ({ \
    char text_[ERROR_BYTES]; \
    int code_ = forked ? -1 : function(__VA_ARGS__, text_); \
    code_ < 0 ? refuse_fork() : code_ ? fail(code_, text_) : MLPOOL_OK; \
  })
#define WANT(condition, text) \
  do { \
    if (!(condition)) return fail(MLPOOL_ERROR_INVALID, "mlpool: " text); \
  } while (0)

static const char no_memory[] = "mlpool: the host has no memory";

#define NUMBER(pointer) ((uintptr_t)(pointer))
#define STREAM(stream) entry_stream(NUMBER(stream))

uintptr_t entry_stream(uintptr_t stream) {
  if (stream != PER_THREAD) return stream;
  uintptr_t number = (uintptr_t)pthread_getspecific(thread);
  if (!number) pthread_setspecific(thread, (void *)(number = ++threads));
  return number << STREAM_BITS | PER_THREAD;
}

int entry_out_of_memory(mlpool_out_of_memory function, uintptr_t arg, size_t bytes, char *text) { return function((void *)arg, bytes, text); }

int entry_filter(mlpool_filter filter, uintptr_t arg, uintptr_t stream) { return filter((void *)arg, (mlpool_stream)entry_handle(stream)); }

// fronts has the fronts of pools by handle.
enum { FRONTS = 1 << 16 };
static _Atomic(front *) fronts[FRONTS];

static front *front_of(uintptr_t handle) { return !forked && handle < FRONTS ? atomic_load_explicit(&fronts[handle], memory_order_acquire) : NULL; }

front *entry_front(uintptr_t handle) { return front_of(handle) ?: front_none; }

int entry_drain_next(front *f, int *next, front_drained *out) {
  uint32_t in_hand;
  if (front_drain_next(f, next, out)) return 1;
  pthread_setspecific(drained, (void *)(uintptr_t)front_returned(f, &in_hand));
  return 0;
}

int entry_again(front *f) {
  enum { MOST = 3 };
  uint32_t in_hand;
  uintptr_t count = (uintptr_t)pthread_getspecific(tries);
  if (count == MOST || (front_returned(f, &in_hand) == (uintptr_t)pthread_getspecific(drained) && !in_hand)) return 0;
  pthread_setspecific(tries, (void *)(count + 1));
  return 1;
}

int mlpool_abi(void) { return MLPOOL_ABI; }

const char *mlpool_error(void) {
  const char *text = pthread_getspecific(last_error);
  return text ? text : "";
}

int mlpool_create(int device, const char *options, mlpool_pool **pool) {
  WANT(pool, "pool is NULL");
  uintptr_t handle = 0;
  int plain = 0;
  int code = CALL(mlpool_go_create, device, (char *)options, &handle, &plain);
  if (code) return code;
  front *f = handle < FRONTS ? front_new() : NULL;
  if (!f) {
    (void)CALL(mlpool_go_destroy, handle);
    return fail(MLPOOL_ERROR_INVALID, handle < FRONTS ? no_memory : "mlpool: a process can create 65535 pools, destroyed ones included");
  }
  if (!plain) front_off(f, 1); // a trace must see every call
  atomic_store_explicit(&fronts[handle], f, memory_order_release);
  *pool = (mlpool_pool *)handle;
  return MLPOOL_OK;
}

int mlpool_check_options(const char *options) { return CALL(mlpool_go_check_options, (char *)options); }

int mlpool_destroy(mlpool_pool *pool) {
  front *f = front_of(NUMBER(pool));
  if (f) front_off(f, 1); // before the pool is closed, so that no thread gets a block afterwards
  int code = CALL(mlpool_go_destroy, NUMBER(pool));
  if (f && code != MLPOOL_ERROR_CLOSED) front_end(f);
  return code;
}

// extend is for front_extend.
static size_t extend(uintptr_t pool, const front_block *b) {
  char text[ERROR_BYTES];
  size_t room = 0;
  return mlpool_go_extend(pool, (front_block *)b, &room, text) ? 0 : room;
}

// allocate_missing is allocate of what the front does not have.
static int allocate_missing(mlpool_pool *pool, void **ptr, entry_request *r, front *f, front_miss *miss, front_drained *frees) {
  front_block b = {.stream = r->stream};
  int outside = 0;
  int code = CALL(mlpool_go_alloc, NUMBER(pool), &b, r, frees, &outside);
  if (pthread_getspecific(tries)) pthread_setspecific(tries, NULL);
  if (code) return code;
  if (!front_add(f, &b, r->bytes, r->tag, !outside)) {
    (void)CALL(mlpool_go_free, NUMBER(pool), &b);
    return fail(MLPOOL_ERROR_INVALID, no_memory);
  }
  miss->alone = miss->alone && !outside && !r->try && r->alignment == 1;
  front_extend(f, miss, &b, r->bytes, extend, NUMBER(pool));
  *ptr = (void *)b.ptr;
  return MLPOOL_OK;
}

static int allocate(mlpool_pool *pool, void **ptr, entry_request *r) {
  WANT(ptr, "ptr is NULL");
  front_drained frees;
  front_miss miss = {NULL, 0};
  front *f = front_of(NUMBER(pool));
  frees.count = 0;
  frees.room.block.ptr = 0;
  // No block that the front keeps, or has room, is of SIZE_MAX bytes: an aligned request only drains.
  uintptr_t kept = f && !r->id && !r->tagged ? front_take(f, r->alignment == 1 ? r->bytes : SIZE_MAX, r->stream, r->tag, &frees, &miss) : 0;
  if (kept) return *ptr = (void *)kept, MLPOOL_OK;
  if (f) front_missing(f, 1);
  int code = allocate_missing(pool, ptr, r, f, &miss, &frees);
  if (f) front_missing(f, -1);
  return code;
}
int mlpool_alloc(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream, const char *tag) {
  return allocate(pool, ptr, &(entry_request){bytes, 1, STREAM(stream), tag, 0, 0, 0});
}

int mlpool_alloc_aligned(mlpool_pool *pool, void **ptr, size_t bytes, size_t alignment, mlpool_stream stream, const char *tag) {
  WANT(alignment && !(alignment & (alignment - 1)), "the alignment is not a power of two");
  return allocate(pool, ptr, &(entry_request){bytes, alignment, STREAM(stream), tag, 0, 0, 0});
}

int mlpool_try_alloc(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream, const char *tag) {
  return allocate(pool, ptr, &(entry_request){bytes, 1, STREAM(stream), tag, 1, 0, 0});
}

static int freed_before(void) { return fail(MLPOOL_ERROR_UNKNOWN_BLOCK, "mlpool: block was freed before"); }

// find sets b->index of a live block, or to that of none, whose error the pool knows.
static int find(mlpool_pool *pool, front_block *b, int shared) {
  front *f = front_of(NUMBER(pool));
  b->index = NO_BLOCK;
  return f && front_use(f, b, shared) == FRONT_FREED_BEFORE ? freed_before() : MLPOOL_OK;
}

int mlpool_free(mlpool_pool *pool, void *ptr, mlpool_stream stream) {
  front *f = front_of(NUMBER(pool));
  front_block b = {NUMBER(ptr), STREAM(stream), NO_BLOCK, 0};
  front_drained out;
  out.count = 0;
  out.room.block.ptr = 0;
  int known = f ? front_give(f, &b, &out) : FRONT_UNKNOWN;
  if (known == FRONT_FREED_BEFORE) return freed_before();
  int code = out.count || out.room.block.ptr ? CALL(mlpool_go_give_back, NUMBER(pool), &out) : MLPOOL_OK;
  if (known == FRONT_KEPT) return code;
  code = CALL(mlpool_go_free, NUMBER(pool), &b);
  if (code && code != MLPOOL_ERROR_CLOSED && known == FRONT_LIVE) (void)front_add(f, &b, 0, NULL, 0); // it is live again
  return code;
}

int mlpool_record_stream(mlpool_pool *pool, void *ptr, mlpool_stream stream) {
  front_block b = {NUMBER(ptr), STREAM(stream), NO_BLOCK, 0};
  return find(pool, &b, 1) ?: CALL(mlpool_go_record_stream, NUMBER(pool), b);
}

int mlpool_release_stream(mlpool_pool *pool, mlpool_stream stream) { return CALL(mlpool_go_release_stream, NUMBER(pool), STREAM(stream)); }

int mlpool_trim(mlpool_pool *pool, size_t keep) { return CALL(mlpool_go_trim, NUMBER(pool), keep); }

int mlpool_reserve(mlpool_pool *pool, size_t bytes) { return CALL(mlpool_go_reserve, NUMBER(pool), bytes); }

int mlpool_set_limit(mlpool_pool *pool, size_t bytes) { return CALL(mlpool_go_set_limit, NUMBER(pool), bytes); }

int mlpool_set_tag_limit(mlpool_pool *pool, const char *tag, size_t bytes) { return CALL(mlpool_go_set_tag_limit, NUMBER(pool), (char *)tag, bytes); }

int mlpool_on_out_of_memory(mlpool_pool *pool, mlpool_out_of_memory function, void *arg) {
  return CALL(mlpool_go_on_out_of_memory, NUMBER(pool), function, NUMBER(arg));
}

int mlpool_get_stats(mlpool_pool *pool, mlpool_stats *stats) {
  WANT(stats, "stats is NULL");
  WANT(stats->size >= sizeof(size_t), "set the field size of mlpool_stats to sizeof(mlpool_stats)");
  mlpool_stats now = {0};
  int code = CALL(mlpool_go_stats, NUMBER(pool), &now);
  if (code) return code;
  now.size = stats->size;
  memcpy(stats, &now, stats->size < sizeof now ? stats->size : sizeof now);
  return MLPOOL_OK;
}

int mlpool_reset_peaks(mlpool_pool *pool) { return CALL(mlpool_go_reset_peaks, NUMBER(pool)); }

int mlpool_stats_json(mlpool_pool *pool, char *buffer, size_t size, size_t *bytes) {
  size_t needed = 0;
  int code = CALL(mlpool_go_stats_json, NUMBER(pool), buffer, buffer ? size : 0, &needed);
  if (bytes) *bytes = needed;
  return code;
}

int mlpool_snapshot(mlpool_pool *pool, const char *path) {
  WANT(path, "path is NULL");
  return CALL(mlpool_go_snapshot, NUMBER(pool), (char *)path);
}

int mlpool_sleep(mlpool_pool *pool, int keep) { return CALL(mlpool_go_sleep, NUMBER(pool), keep); }

int mlpool_wake(mlpool_pool *pool) { return CALL(mlpool_go_wake, NUMBER(pool)); }

int mlpool_tag_alloc(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream, const char *tag) {
  WANT(tag && *tag, "the tag is empty");
  return allocate(pool, ptr, &(entry_request){.bytes = bytes, .alignment = 1, .stream = STREAM(stream), .tag = tag, .tagged = 1});
}

int mlpool_tag_sleep(mlpool_pool *pool, const char *tag, int keep) { return CALL(mlpool_go_tag_sleep, NUMBER(pool), (char *)tag, keep); }

int mlpool_tag_wake(mlpool_pool *pool, const char *tag) { return CALL(mlpool_go_tag_wake, NUMBER(pool), (char *)tag); }

int mlpool_capture_begin(mlpool_pool *pool, uint64_t id, mlpool_filter filter, void *arg) {
  return CALL(mlpool_go_capture_begin, NUMBER(pool), id, filter, NUMBER(arg));
}

int mlpool_capture_end(mlpool_pool *pool, uint64_t id) { return CALL(mlpool_go_capture_end, NUMBER(pool), id); }

int mlpool_capture_release(mlpool_pool *pool, uint64_t id) { return CALL(mlpool_go_capture_release, NUMBER(pool), id); }

int mlpool_capture_retain(mlpool_pool *pool, uint64_t id) { return CALL(mlpool_go_capture_retain, NUMBER(pool), id); }

int mlpool_capture_alloc(mlpool_pool *pool, uint64_t id, void **ptr, size_t bytes, mlpool_stream stream, const char *tag) {
  WANT(id, "id is 0");
  return allocate(pool, ptr, &(entry_request){bytes, 1, STREAM(stream), tag, 0, id, 0});
}

int mlpool_capture_alloc_at(mlpool_pool *pool, uint64_t id, void *ptr, size_t bytes, mlpool_stream stream, const char *tag) {
  WANT(id && ptr, "id is 0, or ptr is NULL");
  return allocate(pool, &ptr, &(entry_request){bytes, 1, STREAM(stream), tag, 0, id, NUMBER(ptr)});
}

int mlpool_capture_trim(mlpool_pool *pool, uint64_t id) { return CALL(mlpool_go_capture_trim, NUMBER(pool), id); }

void entry_visit(mlpool_visitor function, uintptr_t arg, const mlpool_region *region) { function((void *)arg, region); }

int mlpool_visit(mlpool_pool *pool, mlpool_visitor visitor, void *arg) {
  WANT(visitor, "visitor is NULL");
  return CALL(mlpool_go_visit, NUMBER(pool), visitor, NUMBER(arg));
}

int mlpool_add_peer(mlpool_pool *pool, int device) { return CALL(mlpool_go_add_peer, NUMBER(pool), device); }

int mlpool_send(mlpool_pool *pool, void *ptr, int socket) {
  front_block b = {.ptr = NUMBER(ptr)};
  return find(pool, &b, 0) ?: CALL(mlpool_go_send, NUMBER(pool), b, socket);
}

int mlpool_export(mlpool_pool *pool, void *ptr, mlpool_ipc_handle *handle) {
  WANT(handle, "handle is NULL");
  front_block b = {.ptr = NUMBER(ptr)};
  return find(pool, &b, 1) ?: CALL(mlpool_go_export, NUMBER(pool), b, handle);
}

int mlpool_import(int device, const mlpool_ipc_handle *handle, void **ptr, size_t *bytes) {
  WANT(handle && ptr && bytes, "handle, ptr or bytes is NULL");
  uintptr_t addr = 0;
  int code = CALL(mlpool_go_import, device, (mlpool_ipc_handle *)handle, &addr, bytes);
  if (!code) *ptr = (void *)addr;
  return code;
}

int mlpool_receive(int device, int socket, void **ptr, size_t *bytes) {
  WANT(ptr && bytes, "ptr or bytes is NULL");
  uintptr_t addr = 0;
  int code = CALL(mlpool_go_receive, device, socket, &addr, bytes);
  if (!code) *ptr = (void *)addr;
  return code;
}

int mlpool_close_received(void *ptr) { return CALL(mlpool_go_close_received, NUMBER(ptr)); }

// What _torch.py needs of PyTorch's pools beyond torch.c.
int mlpool_torch_limit(mlpool_pool *pool, size_t bytes) { return CALL(mlpool_go_torch_limit, NUMBER(pool), bytes); }

int mlpool_torch_external(mlpool_stream stream) { return CALL(mlpool_go_torch_external, STREAM(stream)); }
