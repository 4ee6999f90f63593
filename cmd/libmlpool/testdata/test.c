// Tests mlpool.h on a device, from several threads, in a child of fork, and with wrong arguments.
#include "mlpool.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, mlpool_error()); \
      exit(1); \
    } \
  } while (0)

// FAILS checks the code of a call, and a part of its error.
#define FAILS(call, code, text) CHECK((call) == (code) && strstr(mlpool_error(), text))

enum { MIB = 1 << 20 };

static const char *folder;  // for files

static mlpool_pool *create(const char *options) {
  mlpool_pool *pool = NULL;
  CHECK(!mlpool_create(0, options, &pool));
  return pool;
}

static mlpool_stats stats(mlpool_pool *pool) {
  mlpool_stats s = {.size = sizeof s};
  CHECK(!mlpool_get_stats(pool, &s));
  return s;
}

// driver returns a function of the driver, which the emulator has itself.
static void *driver(const char *name) {
  extern void *cudadriver_symbol(const char *) __attribute__((weak));
  void *function = cudadriver_symbol ? cudadriver_symbol(name) : dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  CHECK(function);
  return function;
}

// new_stream creates a stream of device 0.
static mlpool_stream new_stream(void) {
  void *context = NULL, *stream = NULL;
  CHECK(!((int (*)(void **, int))driver("cuDevicePrimaryCtxRetain"))(&context, 0));
  CHECK(!((int (*)(void *))driver("cuCtxSetCurrent"))(context));
  CHECK(!((int (*)(void **, unsigned))driver("cuStreamCreate"))(&stream, 1) && stream);
  return stream;
}

static void destroy_stream(mlpool_stream stream) { CHECK(!((int (*)(void *))driver("cuStreamDestroy_v2"))(stream)); }

// captures_streams reports whether the driver captures streams, which the emulator's does not.
static int captures_streams(void) {
  extern void *cudadriver_symbol(const char *) __attribute__((weak));
  return !cudadriver_symbol;
}

static void begin_capture(mlpool_stream stream) { CHECK(!((int (*)(void *, int))driver("cuStreamBeginCapture_v2"))(stream, 0)); }

static void end_capture(mlpool_stream stream) {
  void *graph;
  CHECK(!((int (*)(void *, void **))driver("cuStreamEndCapture"))(stream, &graph));
}

static void test_options(void) {
  mlpool_pool *pool;
  FAILS(mlpool_create(0, "slck=1", &pool), MLPOOL_ERROR_INVALID, "did you mean slack?");
  FAILS(mlpool_create(0, "slack", &pool), MLPOOL_ERROR_INVALID, "want key=value");
  FAILS(mlpool_create(0, "slack=2", &pool), MLPOOL_ERROR_INVALID, "slack");
  FAILS(mlpool_create(0, "peers=x", &pool), MLPOOL_ERROR_INVALID, "peers");
  FAILS(mlpool_create(0, NULL, NULL), MLPOOL_ERROR_INVALID, "pool is NULL");
  CHECK(mlpool_create(1000, NULL, &pool) && strlen(mlpool_error()) > 0);
  FAILS(mlpool_check_options("shareable=maybe"), MLPOOL_ERROR_INVALID, "shareable");
  FAILS(mlpool_check_options("strategy=buddy,segments=virtual"), MLPOOL_ERROR_INVALID, "virtual segments");
  CHECK(!mlpool_check_options(" keep_mapped=true, slack=0.25 ,"));
  setenv("MLPOOL_SLACK", "7", 1);
  FAILS(mlpool_check_options(NULL), MLPOOL_ERROR_INVALID, "MLPOOL_SLACK");
  CHECK(!mlpool_check_options("slack=0.5"));
  unsetenv("MLPOOL_SLACK");
}

static void test_blocks(void) {
  mlpool_pool *pool = create(NULL), *other = create(NULL);
  void *a, *b, *c;
  CHECK(mlpool_abi() == MLPOOL_ABI);
  CHECK(!mlpool_alloc(pool, &a, 3 * MIB, NULL, "a") && !mlpool_alloc(pool, &b, 0, NULL, NULL) && a != b);
  CHECK(stats(pool).allocs == 2 && stats(pool).allocated == 3 * MIB + 256);
  CHECK(!mlpool_alloc_aligned(pool, &c, 1000, 1 << 16, NULL, "c") && (uintptr_t)c % (1 << 16) == 0);
  FAILS(mlpool_alloc_aligned(pool, &c, 1, 3, NULL, "c"), MLPOOL_ERROR_INVALID, "power of two");
  FAILS(mlpool_alloc(pool, &c, (size_t)-1, NULL, "huge"), MLPOOL_ERROR_OUT_OF_MEMORY, "huge");
  FAILS(mlpool_alloc(pool, NULL, 1, NULL, NULL), MLPOOL_ERROR_INVALID, "ptr is NULL");
  FAILS(mlpool_free(other, a, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "not of this");
  FAILS(mlpool_free(pool, (char *)a + 256, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "not of this");
  CHECK(!mlpool_record_stream(pool, a, NULL));
  CHECK(!mlpool_free(pool, a, NULL));
  FAILS(mlpool_free(pool, a, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "block");
  FAILS(mlpool_record_stream(pool, a, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "not of this");
  CHECK(!mlpool_try_alloc(pool, &a, 3 * MIB, NULL, "again") && !mlpool_free(pool, a, NULL));
  FAILS(mlpool_try_alloc(pool, &a, (size_t)64 * MIB, NULL, NULL), MLPOOL_ERROR_WOULD_BLOCK, "");
  CHECK(!mlpool_reserve(pool, 32 * MIB) && stats(pool).reserved >= 32 * MIB);
  CHECK(!mlpool_trim(pool, 0) && stats(pool).reserved < 32 * MIB);
  CHECK(!mlpool_reset_peaks(pool) && stats(pool).reserved_peak == stats(pool).reserved);
  CHECK(!mlpool_release_stream(pool, NULL));
  FAILS(mlpool_destroy(pool), MLPOOL_ERROR_LEAK, "\"c\"");
  FAILS(mlpool_destroy(pool), MLPOOL_ERROR_CLOSED, "closed");
  FAILS(mlpool_alloc(pool, &a, 1, NULL, NULL), MLPOOL_ERROR_CLOSED, "closed");
  FAILS(mlpool_alloc(NULL, &a, 1, NULL, NULL), MLPOOL_ERROR_INVALID, "handle");
  CHECK(!mlpool_destroy(other));
}

// test_front frees blocks that are kept for the next request of their size, and others.
static void test_front(void) {
  enum { BLOCKS = 64 };  // as many as are kept
  mlpool_pool *pool = create(NULL);
  void *blocks[BLOCKS], *again, *more;
  CHECK(!mlpool_alloc(pool, &more, 1, NULL, "x"));
  for (int i = 0; i < BLOCKS; i++) CHECK(!mlpool_alloc(pool, &blocks[i], 1000 * (size_t)(i + 1), NULL, "x"));
  for (int i = 0; i < BLOCKS; i++) CHECK(!mlpool_free(pool, blocks[i], NULL));
  for (int i = 0; i < BLOCKS; i++) {
    int k = i * 37 % BLOCKS;
    CHECK(!mlpool_alloc(pool, &again, 1000 * (size_t)(k + 1), NULL, "x") && again == blocks[k]);
  }
  for (int i = 0; i < BLOCKS; i++) CHECK(!mlpool_free(pool, blocks[i], NULL));
  for (int i = 0; i < BLOCKS; i++) FAILS(mlpool_free(pool, blocks[i], NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "block");
  CHECK(!mlpool_alloc(pool, &again, 1000 * BLOCKS, NULL, "x") && again == blocks[BLOCKS - 1]);
  CHECK(!mlpool_free(pool, again, NULL));
  FAILS(mlpool_free(pool, again, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "freed before");
  FAILS(mlpool_record_stream(pool, again, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "freed before");
  FAILS(mlpool_send(pool, again, 0), MLPOOL_ERROR_UNKNOWN_BLOCK, "freed before");
  for (int i = 0; i < 3; i++) FAILS(mlpool_free(pool, NULL, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "not of this");
  CHECK(!mlpool_free(pool, more, NULL) && stats(pool).allocated == 0);
  FAILS(mlpool_free(pool, again, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "not of this");
  CHECK(!mlpool_alloc(pool, &again, 0, NULL, "x") && !mlpool_record_stream(pool, again, NULL) && !mlpool_free(pool, again, NULL));
  // Blocks that are kept serve a larger request before the pool grows.
  int64_t reserved = stats(pool).reserved;
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, MIB / 2, NULL, "a") && !mlpool_alloc(pool, &b, MIB / 2, NULL, "b"));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_free(pool, b, NULL) && !mlpool_alloc(pool, &a, 3 * MIB / 2, NULL, "c"));
  CHECK(stats(pool).reserved == reserved && !mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
}

// at_once allocates blocks of some sizes on a stream, each after the one before is free, and wants all at the address of the
// first.
static void at_once(mlpool_pool *pool, mlpool_stream stream, int count, const size_t *sizes) {
  char *first, *p;
  CHECK(!mlpool_alloc(pool, (void **)&first, sizes[0], stream, "x") && !mlpool_free(pool, first, stream));
  for (int i = 1; i < count; i++) CHECK(!mlpool_alloc(pool, (void **)&p, sizes[i], stream, "x") && p == first && !mlpool_free(pool, p, stream));
}

// test_room has blocks with room. The room serves other requests, and counts nowhere.
static void test_room(void) {
  mlpool_pool *pool = create("max_bytes=67108864,streams_last=true");
  mlpool_stream stream = new_stream();
  const size_t sizes[] = {64 * MIB, 1000, 2000, 64 * MIB, 3 * MIB, 1000, 2 * MIB, 5 * MIB};
  char text[65536], *a, *b, *c;
  size_t bytes = 0;
  at_once(pool, stream, 8, sizes);
  CHECK(stats(pool).allocs == 8 && stats(pool).frees == 8 && stats(pool).allocated == 0 && stats(pool).allocated_peak == 64 * MIB);
  CHECK(!mlpool_reset_peaks(pool));
  at_once(pool, stream, 3, sizes);
  CHECK(!mlpool_alloc(pool, (void **)&a, 700, stream, "x"));
  CHECK(!mlpool_stats_json(pool, text, sizeof text, &bytes) && strstr(text, "{\"tag\":\"x\",\"blocks\":1,\"bytes\":700}"));
  CHECK(!mlpool_free(pool, a, stream) && !mlpool_reset_peaks(pool));
  at_once(pool, stream, 4, sizes + 4);
  CHECK(!mlpool_alloc(pool, (void **)&a, 1000, stream, "x") && stats(pool).allocated == 1024 && stats(pool).allocated_peak == 5 * MIB);
  CHECK(!mlpool_stats_json(pool, text, sizeof text, &bytes) && strstr(text, "{\"size\":1024,\"allocs\":6,\"live\":1,\"bytes\":1024}"));
  // All but the block serves other requests of its stream, of others, and larger ones.
  CHECK(!mlpool_alloc(pool, (void **)&b, 60 * MIB, stream, "x") && !mlpool_free(pool, b, stream) && !mlpool_free(pool, a, stream));
  at_once(pool, stream, 3, sizes);
  CHECK(!mlpool_alloc(pool, (void **)&a, MIB, stream, "x") && !mlpool_alloc(pool, (void **)&b, 62 * MIB, NULL, "x"));
  CHECK(!mlpool_free(pool, a, stream) && !mlpool_free(pool, b, NULL) && stats(pool).allocated == 0);
  // A request that is too large for the room gets none of it, and one that another free block fits better gets that.
  CHECK(!mlpool_alloc(pool, (void **)&a, 8 * MIB, stream, "x") && !mlpool_alloc(pool, (void **)&b, 24 * MIB, stream, "x"));
  at_once(pool, stream, 2, (size_t[]){3 * MIB, 5 * MIB});
  FAILS(mlpool_alloc(pool, (void **)&c, 40 * MIB, stream, "x"), MLPOOL_ERROR_OUT_OF_MEMORY, "");
  at_once(pool, stream, 2, (size_t[]){3 * MIB, 5 * MIB});
  CHECK(!mlpool_alloc(pool, (void **)&c, 6 * MIB, stream, "x") && !mlpool_free(pool, c, stream) && !mlpool_free(pool, a, stream));
  CHECK(!mlpool_alloc(pool, (void **)&c, 7 * MIB, stream, "x") && c == a && !mlpool_free(pool, c, stream));
  at_once(pool, stream, 2, (size_t[]){9 * MIB, 10 * MIB});
  CHECK(!mlpool_alloc(pool, (void **)&c, 4 * MIB, stream, "x") && c == a);
  CHECK(!mlpool_free(pool, c, stream) && !mlpool_free(pool, b, stream) && stats(pool).allocated == 0);
  // Others get the room of a block that another stream uses or frees, or whose stream ends.
  for (int i = 0; i < 3; i++) {
    CHECK(!mlpool_reset_peaks(pool));
    at_once(pool, stream, 4, (size_t[]){1000, 2000, 3 * MIB, MIB});
    CHECK(!mlpool_alloc(pool, (void **)&a, MIB, stream, "x"));
    if (i == 0) CHECK(!mlpool_record_stream(pool, a, NULL));
    if (i == 2) CHECK(!mlpool_release_stream(pool, stream));
    CHECK(!mlpool_free(pool, a, i ? NULL : stream) && stats(pool).allocated == 0 && stats(pool).allocated_peak == 3 * MIB);
    CHECK(!mlpool_alloc(pool, (void **)&a, 64 * MIB, NULL, "x") && !mlpool_free(pool, a, NULL));
  }
  destroy_stream(stream);
  CHECK(!mlpool_destroy(pool));
}

// test_counts wants what the front serves in the statistics.
static void test_counts(void) {
  enum { PAIRS = 1000 };
  mlpool_pool *pool = create(NULL);
  char text[65536];
  size_t bytes = 0;
  void *p;
  for (int i = 0; i < PAIRS; i++) CHECK(!mlpool_alloc(pool, &p, MIB, NULL, "x") && !mlpool_free(pool, p, NULL));
  CHECK(!mlpool_alloc(pool, &p, 300, NULL, "y"));
  CHECK(stats(pool).allocs == PAIRS + 1 && stats(pool).frees == PAIRS);
  CHECK(!mlpool_stats_json(pool, text, sizeof text, &bytes) && strstr(text, "\"allocs\":1001,\"frees\":1000"));
  CHECK(strstr(text, "{\"size\":512,\"allocs\":1,") && strstr(text, "{\"size\":1048576,\"allocs\":1000,"));
  CHECK(!mlpool_free(pool, p, NULL) && !mlpool_destroy(pool));
}

// keeps reports whether a pool keeps a block that is freed on a stream.
static int keeps(mlpool_pool *pool, mlpool_stream stream) {
  void *p;
  CHECK(!mlpool_alloc(pool, &p, 1000, stream, "x") && !mlpool_free(pool, p, stream));
  CHECK(mlpool_free(pool, p, stream) == MLPOOL_ERROR_UNKNOWN_BLOCK);
  return strstr(mlpool_error(), "freed before") != NULL;
}

// test_streams has more streams than the front keeps blocks of, of which few have any.
static void test_streams(void) {
  mlpool_pool *pool = create("reuse=same-stream");
  for (uintptr_t i = 1; i < 5000; i++) {
    CHECK(keeps(pool, (mlpool_stream)i));
    if (i % 100 == 0) CHECK(stats(pool).allocated == 0);
  }
  CHECK(!mlpool_destroy(pool));
}

// test_refused_sleep has a sleep fail: the pool stays awake, and keeps blocks.
static void test_refused_sleep(void) {
  mlpool_pool *pool = create("segments=malloc");
  CHECK(keeps(pool, NULL));
  for (int i = 0; i < 2; i++) FAILS(mlpool_sleep(pool, 1), MLPOOL_ERROR_UNSUPPORTED, "malloc segments");
  CHECK(keeps(pool, NULL) && !mlpool_destroy(pool));
}

// test_release frees a block that is kept on a stream, which is then released: the block serves another
// stream that may call no driver, and so wait for no event.
static void test_release(void) {
  mlpool_pool *pool = create(NULL);
  mlpool_stream stream = new_stream();
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, 3 * MIB, stream, "a") && !mlpool_free(pool, a, stream));
  CHECK(!mlpool_release_stream(pool, stream));
  destroy_stream(stream);
  CHECK(!mlpool_try_alloc(pool, &b, 3 * MIB, NULL, "b") && a == b);
  CHECK(!mlpool_free(pool, b, NULL) && !mlpool_destroy(pool));
}

// test_release_beside_capture releases a stream that may be destroyed while another is captured, which waiting for the
// device would end.
static void test_release_beside_capture(void) {
  if (!captures_streams()) return;
  mlpool_pool *pool = create(NULL);
  mlpool_stream stream = new_stream(), captured = new_stream();
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, MIB, stream, "a") && !mlpool_capture_begin(pool, 7, NULL, NULL));
  CHECK(!mlpool_capture_alloc(pool, 7, &b, MIB, stream, "b"));
  begin_capture(captured);
  FAILS(mlpool_release_stream(pool, stream), MLPOOL_ERROR_INVALID, "a capture is open");
  end_capture(captured);
  CHECK(!mlpool_capture_end(pool, 7) && !mlpool_release_stream(pool, stream));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_free(pool, b, NULL) && !mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
}

static int is_stream(void *arg, mlpool_stream stream) { return arg == stream; }

// test_captured_stream frees, while a stream is captured, a block of it in memory that an event orders, and on another
// stream, which is then destroyed.
static void test_captured_stream(void) {
  if (!captures_streams()) return;
  mlpool_pool *pool = create("streams_last=true");
  mlpool_stream stream = new_stream(), other = new_stream();
  void *a, *b, *c;
  CHECK(!mlpool_alloc(pool, &a, MIB, other, "a") && !mlpool_alloc(pool, &b, MIB, other, "b") && !mlpool_free(pool, b, other));
  CHECK(!mlpool_release_stream(pool, other)); // b's memory is of no stream
  CHECK(!mlpool_alloc(pool, &b, MIB, stream, "b") && !mlpool_alloc(pool, &c, MIB, stream, "c"));
  CHECK(!mlpool_capture_begin(pool, 7, is_stream, stream));
  begin_capture(stream);
  CHECK(!mlpool_free(pool, b, stream) && !mlpool_free(pool, c, other));
  CHECK(!mlpool_release_stream(pool, other));
  destroy_stream(other);
  end_capture(stream);
  CHECK(!mlpool_capture_end(pool, 7) && stats(pool).allocated == MIB);
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
}

// test_trim_beside_capture trims while a stream is captured. Its memory stays, and that of another one goes.
static void test_trim_beside_capture(void) {
  if (!captures_streams()) return;
  mlpool_pool *pool = create("streams_last=true");
  mlpool_stream stream = new_stream(), other = new_stream();
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, 4 * MIB, stream, "a") && !mlpool_alloc(pool, &b, 4 * MIB, other, "b"));
  CHECK(!mlpool_free(pool, a, stream) && !mlpool_free(pool, b, other) && !mlpool_capture_begin(pool, 7, NULL, NULL));
  begin_capture(stream);
  CHECK(!mlpool_trim(pool, 0) && stats(pool).reserved == 4 * MIB);
  end_capture(stream);
  CHECK(!mlpool_capture_end(pool, 7) && !mlpool_trim(pool, 0) && stats(pool).reserved == 0);
  CHECK(!mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
}

// test_destroyed destroys streams that blocks name. Their memory serves other streams before the pool is out of
// memory, and after a trim.
static void test_destroyed(void) {
  mlpool_pool *pool = create("max_bytes=16777216");
  mlpool_stream one = new_stream(), two = new_stream(), three = new_stream();
  void *a, *b, *c, *d;
  CHECK(!mlpool_alloc(pool, &a, 4 * MIB, one, "a") && !mlpool_alloc(pool, &b, 4 * MIB, two, "b") && !mlpool_alloc(pool, &d, MIB, one, "d"));
  CHECK(!mlpool_record_stream(pool, b, three));
  destroy_stream(one), destroy_stream(two), destroy_stream(three);
  CHECK(!mlpool_free(pool, a, one) && !mlpool_free(pool, b, two) && !mlpool_free(pool, d, NULL));
  CHECK(!mlpool_alloc(pool, &c, MIB, NULL, "c") && !mlpool_free(pool, c, NULL));
  CHECK(!mlpool_alloc(pool, &c, 12 * MIB, NULL, "all but a little") && !mlpool_free(pool, c, NULL));
  CHECK(!mlpool_trim(pool, 0) && stats(pool).reserved == 0);
  CHECK(!mlpool_destroy(pool));
}

static void test_reports(void) {
  mlpool_pool *pool = create("trace_events=100");
  void *a;
  char path[4096], text[65536], few[4];
  size_t bytes = 0;
  CHECK(!mlpool_alloc(pool, &a, MIB, NULL, "a tag"));
  FAILS(mlpool_stats_json(pool, few, sizeof few, &bytes), MLPOOL_ERROR_INVALID, "buffer");
  CHECK(bytes > sizeof few && bytes < sizeof text && !mlpool_stats_json(pool, text, sizeof text, &bytes));
  CHECK(strlen(text) + 1 == bytes && strstr(text, "\"a tag\"") && strstr(text, "\"allocated\":1048576"));
  mlpool_stats part = {.size = offsetof(mlpool_stats, frees)};
  part.frees = -1;
  CHECK(!mlpool_get_stats(pool, &part) && part.allocs == 1 && part.frees == -1);
  const char *kinds[] = {"pickle", "csv", "json"};
  for (int i = 0; i < 3; i++) {
    snprintf(path, sizeof path, "%s/snapshot.%s", folder, kinds[i]);
    CHECK(!mlpool_snapshot(pool, path) && !access(path, R_OK));
  }
  FAILS(mlpool_snapshot(pool, "/nowhere/at/all.pickle"), MLPOOL_ERROR_FILE, "/nowhere");
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
}

static int freed;
static void *cache;

static int free_cache(void *arg, size_t bytes, const char *error) {
  CHECK(bytes == 8 * MIB && strstr(error, "out of memory"));
  if (freed++) return 0;
  return !mlpool_free(arg, cache, NULL);
}

static void test_limits(void) {
  mlpool_pool *pool = create("max_bytes=16777216");
  void *a;
  CHECK(!mlpool_alloc(pool, &cache, 12 * MIB, NULL, "cache"));
  CHECK(!mlpool_on_out_of_memory(pool, free_cache, pool));
  CHECK(!mlpool_alloc(pool, &a, 8 * MIB, NULL, "a") && freed == 1);
  void *b;
  CHECK(!mlpool_alloc(pool, &b, 8 * MIB, NULL, "b"));
  FAILS(mlpool_alloc(pool, &cache, 8 * MIB, NULL, "c"), MLPOOL_ERROR_OUT_OF_MEMORY, "limit");
  CHECK(freed == 2 && !mlpool_on_out_of_memory(pool, NULL, NULL));
  CHECK(!mlpool_set_limit(pool, 64 * MIB) && !mlpool_alloc(pool, &cache, 8 * MIB, NULL, "c"));
  FAILS(mlpool_set_tag_limit(pool, "c", MIB), MLPOOL_ERROR_INVALID, "before");
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_free(pool, b, NULL) && !mlpool_free(pool, cache, NULL) && !mlpool_destroy(pool));
  pool = create(NULL);
  CHECK(!mlpool_set_tag_limit(pool, "c", MIB) && !mlpool_alloc(pool, &a, MIB, NULL, "c"));
  FAILS(mlpool_alloc(pool, &b, 1, NULL, "c"), MLPOOL_ERROR_OUT_OF_MEMORY, "\"c\"");
  CHECK(!mlpool_alloc(pool, &b, 2 * MIB, NULL, "d") && !mlpool_free(pool, a, NULL) && !mlpool_free(pool, b, NULL));
  CHECK(!mlpool_destroy(pool));
}

static void test_sleep(void) {
  mlpool_pool *pool = create("segments=virtual");
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, 5 * MIB, NULL, "a"));
  CHECK(!mlpool_sleep(pool, 1) && stats(pool).reserved == 0);
  FAILS(mlpool_alloc(pool, &b, 1, NULL, "b"), MLPOOL_ERROR_ASLEEP, "");
  CHECK(!mlpool_wake(pool) && stats(pool).reserved >= 5 * MIB);
  CHECK(!mlpool_alloc(pool, &b, 1, NULL, "b") && !mlpool_free(pool, b, NULL) && !mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
}

static void *wake(void *arg) { return (void *)(intptr_t)mlpool_wake(arg); }

// test_sleep_beside_wake has two threads put a pool to sleep and wake it: if it sleeps it hands out no block.
static void test_sleep_beside_wake(void) {
  mlpool_pool *pool = create(NULL);
  void *a, *b;
  for (int i = 0; i < 300; i++) {
    pthread_t thread;
    CHECK(!mlpool_alloc(pool, &a, MIB, NULL, "a") && !mlpool_sleep(pool, 0));
    CHECK(mlpool_capture_retain(pool, 9) == MLPOOL_ERROR_ASLEEP); // new memory is awake
    CHECK(!pthread_create(&thread, NULL, wake, pool) && !mlpool_sleep(pool, 0) && !pthread_join(thread, NULL));
    int asleep = mlpool_alloc(pool, &b, 3 * MIB, NULL, "b") == MLPOOL_ERROR_ASLEEP;
    CHECK(!mlpool_free(pool, a, NULL) && (asleep || !mlpool_free(pool, b, NULL)));
    CHECK(mlpool_alloc(pool, &b, MIB, NULL, "a") == (asleep ? MLPOOL_ERROR_ASLEEP : MLPOOL_OK) && !mlpool_wake(pool));
    if (!asleep) CHECK(!mlpool_free(pool, b, NULL));
  }
  CHECK(!mlpool_destroy(pool));
}

// Threads' default streams have one handle, and are not ordered after each other.
static mlpool_stream const per_thread = (mlpool_stream)2;

static void *alloc_per_thread(void *arg) {
  void *b;
  CHECK(!mlpool_alloc(arg, &b, 5 * MIB, per_thread, "t") && !mlpool_free(arg, b, per_thread));
  return b;
}

static void test_per_thread(void) {
  mlpool_pool *pool = create(NULL);
  void *a = alloc_per_thread(pool), *b;
  pthread_t t;
  CHECK(alloc_per_thread(pool) == a);
  CHECK(!pthread_create(&t, NULL, alloc_per_thread, pool) && !pthread_join(t, &b) && b != a);
  CHECK(!mlpool_destroy(pool));
}

static int only_7(void *arg, mlpool_stream stream) { return arg == &only_7 && stream == NULL; }

static void test_captures(void) {
  mlpool_pool *pool = create(NULL);
  void *a, *b, *c, *d, *before, *within;
  CHECK(!mlpool_alloc(pool, &before, 4 * MIB, NULL, "e"));
  CHECK(!mlpool_alloc(pool, &a, MIB, NULL, "a") && !mlpool_free(pool, a, NULL));
  FAILS(mlpool_capture_end(pool, 7), MLPOOL_ERROR_INVALID, "no capture");
  CHECK(!mlpool_capture_begin(pool, 7, only_7, &only_7));
  CHECK(!mlpool_alloc(pool, &b, MIB, NULL, "b") && b != a);
  CHECK(!mlpool_record_stream(pool, b, NULL) && !mlpool_free(pool, b, NULL));
  // What other work frees serves no capture.
  CHECK(!mlpool_free(pool, before, NULL) && !mlpool_alloc(pool, &within, 4 * MIB, NULL, "e") && within != before);
  CHECK(!mlpool_free(pool, within, NULL));
  CHECK(!mlpool_alloc(pool, &d, 2 * MIB, NULL, "d") && !mlpool_capture_end(pool, 7));
  // A graph may still write to d, so its memory serves no later request.
  CHECK(!mlpool_free(pool, d, NULL) && !mlpool_alloc(pool, &b, 2 * MIB, NULL, "d") && b != d && !mlpool_free(pool, b, NULL));
  FAILS(mlpool_free(pool, b, NULL), MLPOOL_ERROR_UNKNOWN_BLOCK, "freed before"); // blocks are kept again
  int64_t reserved = stats(pool).reserved;
  CHECK(!mlpool_alloc(pool, &c, MIB, NULL, "c") && stats(pool).reserved == reserved);
  CHECK(!mlpool_trim(pool, 0) && stats(pool).reserved >= MIB);
  CHECK(!mlpool_capture_release(pool, 7) && stats(pool).reserved < reserved);
  FAILS(mlpool_capture_release(pool, 7), MLPOOL_ERROR_INVALID, "no capture");
  CHECK(!mlpool_free(pool, c, NULL) && !mlpool_destroy(pool));
  // The program has freed what waits for the end of a capture.
  pool = create(NULL);
  CHECK(!mlpool_alloc(pool, &a, MIB, NULL, "a") && !mlpool_record_stream(pool, a, new_stream()));
  CHECK(!mlpool_capture_begin(pool, 7, NULL, NULL) && !mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
  // So has it what it frees on another stream meanwhile. Memory of captures is free once none is open.
  pool = create(NULL);
  CHECK(!mlpool_alloc(pool, &a, MIB, new_stream(), "a") && !mlpool_capture_begin(pool, 7, NULL, NULL));
  CHECK(!mlpool_capture_alloc(pool, 7, &b, MIB, new_stream(), "b"));
  CHECK(!mlpool_free(pool, a, new_stream()) && !mlpool_free(pool, b, new_stream()));
  CHECK(mlpool_free(pool, a, NULL) == MLPOOL_ERROR_UNKNOWN_BLOCK && stats(pool).allocated == 2 * MIB);
  CHECK(!mlpool_capture_end(pool, 7) && stats(pool).allocated == 0);
  CHECK(!mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
  // Other work goes on: its streams wait for each other.
  pool = create("max_bytes=16777216");
  CHECK(!mlpool_alloc(pool, &a, 12 * MIB, NULL, "a") && !mlpool_free(pool, a, NULL) && !mlpool_capture_begin(pool, 7, NULL, NULL));
  mlpool_stream stream = new_stream();
  CHECK(!mlpool_alloc(pool, &b, 12 * MIB, stream, "b") && !mlpool_free(pool, b, stream));
  CHECK(!mlpool_capture_end(pool, 7) && !mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
  // A limit is for all memory together.
  pool = create(NULL);
  CHECK(!mlpool_set_limit(pool, 16 * MIB) && !mlpool_capture_begin(pool, 7, NULL, NULL));
  CHECK(!mlpool_capture_alloc(pool, 7, &a, 12 * MIB, NULL, "a") && !mlpool_capture_end(pool, 7));
  FAILS(mlpool_alloc(pool, &b, 8 * MIB, NULL, "b"), MLPOOL_ERROR_OUT_OF_MEMORY, "limit of 16777216 bytes");
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_capture_release(pool, 7));
  CHECK(!mlpool_alloc(pool, &b, 12 * MIB, NULL, "b") && !mlpool_free(pool, b, NULL));
  CHECK(!mlpool_capture_begin(pool, 7, NULL, NULL) && !mlpool_capture_end(pool, 7));
  CHECK(!mlpool_capture_alloc(pool, 7, &a, 12 * MIB, NULL, "a")); // b's memory makes room
  CHECK(!mlpool_set_limit(pool, 32 * MIB) && !mlpool_capture_alloc(pool, 7, &b, 12 * MIB, NULL, "b"));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_free(pool, b, NULL) && !mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
}

static void test_tags(void) {
  mlpool_pool *pool = create("segments=virtual,max_bytes=67108864");
  void *weights, *cache, *other, *a;
  FAILS(mlpool_tag_alloc(pool, &a, 1, NULL, ""), MLPOOL_ERROR_INVALID, "empty");
  FAILS(mlpool_tag_sleep(pool, "x", 0), MLPOOL_ERROR_INVALID, "tag \"x\" has no memory: there are []");
  CHECK(!mlpool_tag_alloc(pool, &weights, 5 * MIB, NULL, "weights") && !mlpool_tag_alloc(pool, &cache, 8 * MIB, NULL, "cache"));
  CHECK(!mlpool_alloc(pool, &other, MIB, NULL, "cache") && stats(pool).allocs == 3);
  memset(weights, 7, 5 * MIB), memset(other, 9, MIB); // an emulated device's memory is the host's
  FAILS(mlpool_tag_wake(pool, "x"), MLPOOL_ERROR_INVALID, "there are [cache, weights]");
  int64_t reserved = stats(pool).reserved;
  CHECK(!mlpool_tag_sleep(pool, "weights", 1) && !mlpool_tag_sleep(pool, "cache", 0) && !mlpool_tag_sleep(pool, "cache", 1));
  CHECK(stats(pool).reserved <= reserved - 13 * MIB && *(char *)other == 9);
  FAILS(mlpool_tag_alloc(pool, &a, 1, NULL, "cache"), MLPOOL_ERROR_ASLEEP, "tag \"cache\": ");
  CHECK(!mlpool_tag_alloc(pool, &a, MIB, NULL, "more") && !mlpool_free(pool, a, NULL) && keeps(pool, NULL));
  CHECK(!mlpool_tag_wake(pool, "weights") && ((char *)weights)[5 * MIB - 1] == 7 && mlpool_tag_alloc(pool, &a, 1, NULL, "cache"));
  CHECK(!mlpool_sleep(pool, 1) && stats(pool).reserved == 0);
  FAILS(mlpool_tag_alloc(pool, &a, 1, NULL, "new"), MLPOOL_ERROR_ASLEEP, "");
  CHECK(!mlpool_wake(pool) && *(char *)weights == 7 && *(char *)other == 9);
  memset(cache, 1, 8 * MIB);
  // No memory sleeps while a capture is open, which waiting for the device would end.
  CHECK(!mlpool_capture_begin(pool, 8, NULL, NULL));
  FAILS(mlpool_tag_sleep(pool, "cache", 0), MLPOOL_ERROR_INVALID, "is open");
  FAILS(mlpool_sleep(pool, 1), MLPOOL_ERROR_INVALID, "is open");
  CHECK(!mlpool_capture_end(pool, 8) && !mlpool_capture_release(pool, 8));
  // Freed memory serves its tag, until a trim.
  CHECK(!mlpool_free(pool, cache, NULL) && !mlpool_tag_alloc(pool, &a, 8 * MIB, NULL, "cache") && a == cache && !mlpool_free(pool, a, NULL));
  CHECK(!mlpool_free(pool, weights, NULL) && !mlpool_free(pool, other, NULL) && !mlpool_trim(pool, 0) && stats(pool).reserved == 0);
  // An open capture has requests of its own.
  CHECK(!mlpool_capture_begin(pool, 7, only_7, &only_7) && !mlpool_tag_alloc(pool, &a, MIB, NULL, "cache") && !mlpool_capture_end(pool, 7));
  CHECK(!mlpool_tag_sleep(pool, "cache", 0) && memset(a, 0, MIB));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_capture_release(pool, 7) && !mlpool_destroy(pool));
  // All requests, and a wake, get what others do not use. Two blocks are more than the device has.
  size_t large = (size_t)17 << 30;
  pool = create("segments=virtual");
  CHECK(!mlpool_tag_alloc(pool, &cache, large, NULL, "cache") && !mlpool_free(pool, cache, NULL));
  CHECK(!mlpool_alloc(pool, &other, large, NULL, "x") && mlpool_tag_alloc(pool, &a, large, NULL, "cache") == MLPOOL_ERROR_OUT_OF_MEMORY);
  CHECK(!mlpool_free(pool, other, NULL) && !mlpool_tag_alloc(pool, &cache, large, NULL, "cache") && !mlpool_tag_sleep(pool, "cache", 0));
  CHECK(!mlpool_alloc(pool, &other, large, NULL, "x") && mlpool_tag_wake(pool, "cache") == MLPOOL_ERROR_OUT_OF_MEMORY);
  CHECK(!mlpool_free(pool, other, NULL) && !mlpool_tag_wake(pool, "cache") && !mlpool_free(pool, cache, NULL) && !mlpool_destroy(pool));
  // So does a wake of all. A trim keeps what it says of all memory.
  pool = create("segments=virtual,max_bytes=104857600");
  CHECK(!mlpool_alloc(pool, &other, 50 * MIB, NULL, "x") && !mlpool_tag_alloc(pool, &weights, 20 * MIB, NULL, "weights"));
  CHECK(!mlpool_sleep(pool, 1) && !mlpool_tag_wake(pool, "weights") && !mlpool_tag_alloc(pool, &a, 60 * MIB, NULL, "weights"));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_wake(pool) && !mlpool_alloc(pool, &a, 20 * MIB, NULL, "x") && !mlpool_free(pool, a, NULL));
  CHECK(!mlpool_trim(pool, 76 * MIB) && stats(pool).reserved <= 76 * MIB);
  CHECK(!mlpool_free(pool, other, NULL) && !mlpool_free(pool, weights, NULL) && !mlpool_destroy(pool));
  // So they do at a limit, which is for all.
  pool = create("segments=virtual,max_bytes=16777216");
  CHECK(!mlpool_tag_alloc(pool, &cache, 12 * MIB, NULL, "cache") && !mlpool_tag_sleep(pool, "cache", 0));
  CHECK(!mlpool_alloc(pool, &other, 12 * MIB, NULL, "x") && mlpool_tag_wake(pool, "cache") == MLPOOL_ERROR_OUT_OF_MEMORY);
  CHECK(!mlpool_free(pool, other, NULL) && !mlpool_tag_wake(pool, "cache"));
  CHECK(!mlpool_free(pool, cache, NULL) && !mlpool_destroy(pool));
  pool = create(NULL);
  CHECK(!mlpool_set_tag_limit(pool, "a", MIB));
  FAILS(mlpool_tag_alloc(pool, &a, 1, NULL, "a"), MLPOOL_ERROR_UNSUPPORTED, "limits by tag");
  CHECK(!mlpool_destroy(pool));
}

typedef struct {
  void *wanted;
  const char *tag;       // of the wanted block
  uint64_t segment, id; // of the segment before, and of the wanted block
  size_t segments, bytes, live;
} seen;

static void look(void *arg, const mlpool_region *r) {
  seen *s = arg;
  CHECK(r->size == sizeof *r);
  if (r->kind == MLPOOL_SEGMENT) {
    CHECK(s->bytes == 0); // blocks cover the segment before
    s->segments++, s->segment = r->id, s->bytes = r->bytes;
    return;
  }
  s->bytes -= r->bytes;
  s->live += r->kind == MLPOOL_LIVE;
  if (r->kind == MLPOOL_LIVE && r->ptr == s->wanted && !strcmp(r->tag, s->tag)) s->id = s->segment;
}

// A program may say itself which requests are captured.
static void test_capture_ids(void) {
  mlpool_pool *pool = create(NULL);
  void *a, *b, *c;
  FAILS(mlpool_capture_alloc(pool, 5, &a, MIB, NULL, "graph"), MLPOOL_ERROR_INVALID, "no capture");
  FAILS(mlpool_capture_retain(pool, 0), MLPOOL_ERROR_INVALID, "not 0");
  CHECK(!mlpool_capture_retain(pool, 5) && !mlpool_capture_begin(pool, 5, NULL, NULL));
  CHECK(!mlpool_capture_alloc(pool, 5, &a, 3 * MIB, NULL, "graph") && !mlpool_alloc(pool, &b, MIB, NULL, "other"));
  seen s = {.wanted = a, .tag = "graph"};
  CHECK(!mlpool_visit(pool, look, &s) && s.id == 5 && s.live == 2 && s.segments >= 2 && s.bytes == 0);
  // The front keeps blocks of other work.
  CHECK(!mlpool_free(pool, b, NULL) && !mlpool_alloc(pool, &c, MIB, NULL, "other") && c == b && !mlpool_free(pool, c, NULL));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_capture_end(pool, 5) && !mlpool_capture_trim(pool, 5));
  CHECK(!mlpool_capture_alloc_at(pool, 5, a, 3 * MIB, NULL, "graph"));
  FAILS(mlpool_capture_alloc_at(pool, 5, a, 3 * MIB, NULL, "graph"), MLPOOL_ERROR_INVALID, "not free");
  CHECK(!mlpool_capture_release(pool, 5) && !mlpool_free(pool, a, NULL) && stats(pool).allocated == 0);
  CHECK(!mlpool_capture_alloc_at(pool, 5, a, 3 * MIB, NULL, "graph")); // the other use
  int64_t reserved = stats(pool).reserved;
  CHECK(!mlpool_capture_release(pool, 5) && !mlpool_capture_trim(pool, 5) && stats(pool).reserved == reserved);
  CHECK(!mlpool_free(pool, a, NULL) && stats(pool).reserved < reserved);
  // What is freed during a capture, its graph may write to.
  CHECK(!mlpool_capture_retain(pool, 5) && !mlpool_capture_alloc(pool, 5, &a, 3 * MIB, NULL, "graph") && !mlpool_capture_release(pool, 5));
  reserved = stats(pool).reserved;
  CHECK(!mlpool_capture_begin(pool, 6, NULL, NULL) && !mlpool_free(pool, a, NULL) && !mlpool_capture_end(pool, 6));
  mlpool_stats before = stats(pool), after;
  CHECK(before.reserved == reserved && !mlpool_capture_release(pool, 6));
  after = stats(pool);
  CHECK(after.reserved < reserved && after.reserved_peak >= before.reserved_peak && after.allocs == before.allocs &&
        after.driver_mallocs == before.driver_mallocs && after.driver_frees > before.driver_frees);
  CHECK(!mlpool_reset_peaks(pool) && stats(pool).reserved_peak == after.reserved && !mlpool_destroy(pool));
  // Peaks of reserved memory at different times are not added.
  pool = create(NULL);
  CHECK(!mlpool_alloc(pool, &a, 16 * MIB, NULL, "a") && !mlpool_free(pool, a, NULL) && !mlpool_trim(pool, 0));
  int64_t peak = stats(pool).reserved_peak;
  CHECK(!mlpool_capture_retain(pool, 5) && !mlpool_capture_alloc(pool, 5, &a, 8 * MIB, NULL, "graph") && stats(pool).reserved_peak == peak);
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
}

// A std::function<bool(cudaStream_t)>, as torch.c knows it.
typedef struct {
  void *functor[2];
  int (*manage)(void *to, const void *from, int operation);
  char (*invoke)(const void *functor, void **stream);
} function;

extern int mlpool_torch_pool(int device, mlpool_pool **pool);
extern void *mlpool_torch_alloc(ssize_t bytes, int device, void *stream);
extern void mlpool_torch_free(void *ptr, ssize_t bytes, int device, void *stream);
extern void mlpool_torch_begin(int device, unsigned long long first, unsigned long long second, function *filter);
extern void mlpool_torch_end(int device, unsigned long long first, unsigned long long second);
extern void mlpool_torch_release(int device, unsigned long long first, unsigned long long second);

static char is_default(const void *functor, void **stream) { return (void)functor, !*stream; }

// test_plugin has PyTorch request memory during a capture. What the program requests itself belongs to no capture.
static void test_plugin(void) {
  mlpool_pool *pool;
  function filter = {.invoke = is_default};
  void *a, *b;
  CHECK(!mlpool_torch_pool(0, &pool));
  mlpool_torch_begin(0, 0, 1, &filter);
  CHECK((a = mlpool_torch_alloc(MIB, 0, NULL)) && !mlpool_alloc(pool, &b, MIB, NULL, "own"));
  seen of_a = {.wanted = a, .tag = "torch"}, of_b = {.wanted = b, .tag = "own"};
  CHECK(!mlpool_visit(pool, look, &of_a) && of_a.id && !mlpool_visit(pool, look, &of_b) && !of_b.id);
  mlpool_torch_end(0, 0, 1);
  mlpool_torch_free(a, MIB, 0, NULL);
  CHECK(!mlpool_free(pool, b, NULL));
  mlpool_torch_release(0, 0, 1);
  CHECK(stats(pool).allocated == 0);
}

static void test_peer(void) {
  mlpool_pool *pool = create("segments=virtual");
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, 3 * MIB, NULL, "a"));
  FAILS(mlpool_add_peer(pool, 1000), MLPOOL_ERROR_INVALID, "does not exist");
  CHECK(!mlpool_add_peer(pool, 1) && !mlpool_add_peer(pool, 1) && !mlpool_alloc(pool, &b, 30 * MIB, NULL, "b"));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_free(pool, b, NULL) && !mlpool_destroy(pool));
}

static void test_send(void) {
  mlpool_pool *pool = create("segments=virtual,shareable=true");
  void *a, *b;
  size_t bytes;
  int ends[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  CHECK(!mlpool_alloc(pool, &a, 3 * MIB, NULL, "a"));
  memset(a, 42, 3 * MIB); // an emulated device's memory is the host's
  FAILS(mlpool_send(pool, ends, ends[0]), MLPOOL_ERROR_UNKNOWN_BLOCK, "");
  FAILS(mlpool_send(pool, a, -1), MLPOOL_ERROR_FILE, "descriptor");
  CHECK(!mlpool_send(pool, a, ends[0]) && !mlpool_receive(0, ends[1], &b, &bytes));
  CHECK(bytes == 3 * MIB && a != b && !memcmp(a, b, bytes));
  CHECK(!(fcntl(ends[0], F_GETFL) & O_NONBLOCK) && !(fcntl(ends[1], F_GETFL) & O_NONBLOCK));
  CHECK(!mlpool_close_received(b));
  FAILS(mlpool_close_received(b), MLPOOL_ERROR_UNKNOWN_BLOCK, "");
  close(ends[0]);
  CHECK(mlpool_receive(0, ends[1], &b, &bytes) == MLPOOL_ERROR_FILE);
  close(ends[1]);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  close(ends[1]);
  signal(SIGPIPE, SIG_DFL); // which ends the process
  CHECK(mlpool_send(pool, a, ends[0]) == MLPOOL_ERROR_FILE);
  close(ends[0]);
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
}

static void test_export(void) {
  mlpool_pool *pool = create("segments=virtual,shareable=auto"), *other;
  void *a, *b, *c, *d;
  size_t bytes;
  mlpool_ipc_handle h, again;
  at_once(pool, NULL, 3, (size_t[]){6 * MIB, 1000, 2000});
  CHECK(!mlpool_alloc(pool, &a, 5 * MIB, NULL, "x") && memset(a, 42, 5 * MIB));
  FAILS(mlpool_export(pool, &h, &h), MLPOOL_ERROR_UNKNOWN_BLOCK, "");
  FAILS(mlpool_export(pool, a, NULL), MLPOOL_ERROR_INVALID, "handle is NULL");
  CHECK(!mlpool_export(pool, a, &h) && !mlpool_export(pool, a, &again) && !memcmp(&h, &again, sizeof h));
  CHECK(!mlpool_import(0, &h, &b, &bytes) && bytes == 5 * MIB && a != b && !memcmp(a, b, bytes));
  CHECK(!mlpool_import(1, &h, &c, &bytes) && c != b && memset(c, 1, MIB) && *(char *)a == 1);
  // The memory stays the block's.
  CHECK(!mlpool_alloc(pool, &d, 30 * MIB, NULL, "d") && !mlpool_free(pool, d, NULL) && !mlpool_trim(pool, 0));
  CHECK(!mlpool_alloc(pool, &d, 40 * MIB, NULL, "d") && memset(d, 7, 40 * MIB) && !mlpool_free(pool, d, NULL));
  CHECK(memset(a, 2, 2 * MIB) && !memcmp(a, b, bytes));
  CHECK(!mlpool_close_received(b));
  FAILS(mlpool_sleep(pool, 1), MLPOOL_ERROR_INVALID, "another process maps the block");
  CHECK(!mlpool_alloc(pool, &d, 1, NULL, "d") && !mlpool_free(pool, d, NULL)); // awake
  CHECK(!mlpool_close_received(c) && !mlpool_sleep(pool, 1));
  FAILS(mlpool_import(0, &h, &b, &bytes), MLPOOL_ERROR_INVALID, "asleep");
  CHECK(!mlpool_wake(pool) && !mlpool_import(0, &h, &b, &bytes) && !memcmp(a, b, bytes) && !mlpool_close_received(b));
  // A tag sleeps unless its own blocks are mapped.
  CHECK(!mlpool_tag_alloc(pool, &c, MIB, NULL, "c") && !mlpool_tag_alloc(pool, &d, MIB, NULL, "d"));
  CHECK(!mlpool_export(pool, c, &again) && !mlpool_import(0, &again, &b, &bytes) && !mlpool_tag_sleep(pool, "d", 0));
  FAILS(mlpool_tag_sleep(pool, "c", 0), MLPOOL_ERROR_INVALID, "another process maps the block");
  CHECK(!mlpool_close_received(b) && !mlpool_tag_sleep(pool, "c", 0));
  // A handle is that of one block.
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_alloc(pool, &b, 5 * MIB, NULL, "a") && !mlpool_free(pool, b, NULL));
  FAILS(mlpool_import(0, &h, &b, &bytes), MLPOOL_ERROR_INVALID, "was freed");
  FAILS(mlpool_export(pool, a, &h), MLPOOL_ERROR_UNKNOWN_BLOCK, "");
  memset(&h, 0, sizeof h);
  FAILS(mlpool_import(0, &h, &b, &bytes), MLPOOL_ERROR_INVALID, "mlpool_export");
  CHECK(mlpool_destroy(pool) == MLPOOL_ERROR_LEAK);
  FAILS(mlpool_import(0, &again, &b, &bytes), MLPOOL_ERROR_INVALID, "was freed");
  other = create("segments=virtual");
  CHECK(!mlpool_alloc(other, &a, MIB, NULL, "a"));
  FAILS(mlpool_export(other, a, &h), MLPOOL_ERROR_UNSUPPORTED, "shareable=true");
  CHECK(!mlpool_free(other, a, NULL) && !mlpool_destroy(other));
  other = create("segments=malloc,shareable=auto");
  CHECK(!mlpool_alloc(other, &a, MIB, NULL, "a"));
  FAILS(mlpool_export(other, a, &h), MLPOOL_ERROR_UNSUPPORTED, "virtual segments");
  CHECK(!mlpool_free(other, a, NULL) && !mlpool_destroy(other));
}

// A message to a child process, and its answer.
typedef struct {
  enum { EXPORT, IMPORT, CLOSE, LIMIT } what;
  mlpool_ipc_handle handle;
  size_t bytes;
  int code;
  char error[512];
} message;

enum { SOCKET = 3 };

// serve_test does what the parent asks for. An import adds 1 to the first byte and to the last.
static int serve_test(void) {
  mlpool_pool *pool = create("segments=virtual,shareable=true");
  void *p = NULL;
  message m;
  while (read(SOCKET, &m, sizeof m) == sizeof m) {
    m.code = 0;
    switch (m.what) {
      case EXPORT: CHECK(!mlpool_alloc(pool, &p, m.bytes, NULL, "p") && memset(p, 5, m.bytes) && !mlpool_export(pool, p, &m.handle)); break;
      case IMPORT:
        if (!(m.code = mlpool_import(0, &m.handle, &p, &m.bytes))) ((char *)p)[0]++, ((char *)p)[m.bytes - 1]++;
        break;
      case CLOSE: m.code = mlpool_close_received(p); break;
      case LIMIT: {
        struct rlimit l;
        CHECK(!getrlimit(RLIMIT_NOFILE, &l));
        l.rlim_cur = m.bytes;
        CHECK(!setrlimit(RLIMIT_NOFILE, &l));
        break;
      }
    }
    snprintf(m.error, sizeof m.error, "%s", m.code ? mlpool_error() : "");
    CHECK(write(SOCKET, &m, sizeof m) == sizeof m);
  }
  return 0;
}

static pid_t start_child(int *socket) {
  int ends[2];
  CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
  pid_t child = fork();
  if (!child) {
    if (dup2(ends[1], SOCKET) == SOCKET) execl("/proc/self/exe", "test", "--serve", NULL);
    _exit(1);
  }
  CHECK(child > 0 && !close(ends[1]));
  *socket = ends[0];
  return child;
}

static message ask(int socket, message m) {
  CHECK(write(socket, &m, sizeof m) == sizeof m && read(socket, &m, sizeof m) == sizeof m);
  return m;
}

static void kill_child(pid_t child, int socket) { CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child && !close(socket)); }

static void test_processes(void) {
  mlpool_pool *pool = create("segments=virtual,shareable=true");
  char *a;
  void *b, *chunks[150];
  int socket;
  message m = {.what = IMPORT}, limit = {.what = LIMIT, .bytes = 60}, done = {.what = CLOSE}, new = {.what = EXPORT, .bytes = 3 * MIB};
  size_t last = 300 * MIB - 1;
  for (int i = 0; i < 150; i++) CHECK(!mlpool_alloc(pool, &chunks[i], 2 * MIB, NULL, "chunk"));
  for (int i = 0; i < 150; i++) CHECK(!mlpool_free(pool, chunks[i], NULL));
  CHECK(!mlpool_alloc(pool, (void **)&a, last + 1, NULL, "a") && !mlpool_export(pool, a, &m.handle));
  a[0] = 5, a[last] = 6;
  pid_t child = start_child(&socket);
  m = ask(socket, m);
  CHECK(!m.code && m.bytes == last + 1 && a[0] == 6 && a[last] == 7);
  FAILS(mlpool_sleep(pool, 1), MLPOOL_ERROR_INVALID, "another process");
  CHECK(!ask(socket, done).code && !mlpool_sleep(pool, 1));
  CHECK(strstr(ask(socket, m).error, "asleep") && !mlpool_wake(pool));
  // Too few descriptors are an error that leaves nothing. An emulated device needs one for each chunk.
  ask(socket, limit);
  CHECK(strstr(ask(socket, m).error, "descriptors for 64 parts: the sender could export no more, or ulimit -n is too low"));
  CHECK(!mlpool_sleep(pool, 1) && !mlpool_wake(pool));
  limit.bytes = 1000;
  ask(socket, limit);
  CHECK(!ask(socket, m).code && a[0] == 7 && a[last] == 8);
  // A process that is killed maps nothing.
  kill_child(child, socket);
  for (int i = 0; mlpool_sleep(pool, 0); i++) CHECK(i < 500 && !usleep(10000));
  CHECK(!mlpool_wake(pool) && !mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
  // The memory of a process that was killed stays until it is closed, and is not mapped again.
  child = start_child(&socket);
  new = ask(socket, new);
  CHECK(!new.code && !mlpool_import(0, &new.handle, &b, &new.bytes) && new.bytes == 3 * MIB);
  kill_child(child, socket);
  CHECK(((char *)b)[3 * MIB - 1] == 5);
  FAILS(mlpool_import(0, &new.handle, (void **)&a, &new.bytes), MLPOOL_ERROR_FILE, "did not send it");
  FAILS(mlpool_import(0, &new.handle, (void **)&a, &new.bytes), MLPOOL_ERROR_FILE, "has ended");
  CHECK(((char *)b)[0] == 5 && !mlpool_close_received(b));
}

// work allocates blocks and frees those of all threads, and sees that none has bytes of another: each block has its
// address at its end, and that of the end at its beginning. Every other time it frees the block at once.
static void *work(void *arg) {
  enum { BLOCKS = 64, STEPS = 20000 };
  static _Atomic(void **) blocks[BLOCKS];
  unsigned random = (unsigned)(uintptr_t)&random;
  for (int i = 0; i < STEPS + BLOCKS; i++) {
    random = random * 1664525 + 1013904223;
    _Atomic(void **) *at = &blocks[i < STEPS ? (int)(random >> 26) : i - STEPS];
    void **block = atomic_exchange(at, NULL);
    if (!block && i < STEPS) {
      size_t pointers = 1 + random % (8 << 10);
      CHECK(!mlpool_alloc(arg, (void **)&block, pointers * sizeof(void *), NULL, random & 1 << 20 ? "odd" : "even"));
      block[0] = block + pointers - 1;
      *(void **)block[0] = block;
      if (i % 1000 == 0) CHECK(!mlpool_trim(arg, 0) && stats(arg).allocs > 0);
      if (random & 1 << 21) block = atomic_exchange(at, block);
    }
    if (!block) continue;
    CHECK(*(void **)block[0] == block);
    if (i % 16 == 0) CHECK(!mlpool_record_stream(arg, block, NULL));
    CHECK(!mlpool_free(arg, block, NULL));
  }
  return NULL;
}

static void test_threads(void) {
  mlpool_pool *pool = create(NULL);
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, work, pool));
  for (int i = 0; i < 8; i++) CHECK(!pthread_join(threads[i], NULL));
  CHECK(stats(pool).allocated == 0 && !mlpool_destroy(pool));
}

static atomic_int stop;

// one_at_a_time allocates a small block and frees it, until the test stops.
static void *one_at_a_time(void *arg) {
  void *p;
  for (int i = 0; !stop; i++) CHECK(!mlpool_alloc(arg, &p, i % 2 ? MIB : MIB / 2, NULL, "x") && !mlpool_free(arg, p, NULL));
  return NULL;
}

// test_rooms has threads on one stream, whose blocks have room. At the limit no request fails, and no room counts.
static void test_rooms(void) {
  mlpool_pool *pool = create("max_bytes=67108864,streams_last=true");
  pthread_t thread;
  void *p;
  stop = 0;
  CHECK(!mlpool_alloc(pool, &p, 64 * MIB, NULL, "x") && !mlpool_free(pool, p, NULL));
  CHECK(!pthread_create(&thread, NULL, one_at_a_time, pool));
  for (int i = 0; i < 50000; i++) {
    CHECK(!mlpool_alloc(pool, &p, 30 * MIB + i % 2 * MIB, NULL, "x") && !mlpool_free(pool, p, NULL));
    if (i % 4 == 0) CHECK(stats(pool).allocated <= 32 * MIB);
  }
  stop = 1;
  CHECK(!pthread_join(thread, NULL) && stats(pool).allocated == 0 && !mlpool_destroy(pool));
}

// take_in_hand takes the free blocks from the front again and again, to free them.
static void *take_in_hand(void *arg) {
  mlpool_stats s = {.size = sizeof s};
  while (!stop) (void)mlpool_get_stats(arg, &s);
  return NULL;
}

// test_in_hand makes calls while other threads have free blocks in hand: requests of all that a limit allows, on two
// streams in turn, then releases of streams, which are destroyed then, and then the end of the pool.
static void test_in_hand(void) {
  mlpool_pool *pool = create("max_bytes=67108864,streams_last=true");
  mlpool_stream streams[2] = {new_stream(), new_stream()};
  pthread_t threads[2];
  void *a;
  stop = 0;
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, take_in_hand, pool));
  for (int i = 0; i < 100000; i++) CHECK(!mlpool_alloc(pool, &a, 64 * MIB, streams[i % 2], "a") && !mlpool_free(pool, a, streams[i % 2]));
  for (int i = 0; i < 5000; i++) {
    mlpool_stream stream = new_stream();
    CHECK(!mlpool_alloc(pool, &a, MIB, stream, "a") && !mlpool_free(pool, a, stream) && !mlpool_release_stream(pool, stream));
    destroy_stream(stream);
  }
  for (int i = 0; i < 60; i++) CHECK(!mlpool_alloc(pool, &a, (size_t)i << 10, NULL, "a") && !mlpool_free(pool, a, NULL));
  CHECK(!mlpool_destroy(pool));
  stop = 1;
  for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL));
}

static void *destroy(void *arg) { return (void *)(intptr_t)mlpool_destroy(arg); }

// test_destroy_beside_free frees a block while another thread destroys the pool: it serves no request afterwards.
static void test_destroy_beside_free(void) {
  for (int i = 0; i < 30; i++) {
    mlpool_pool *pool = create(NULL);
    mlpool_stats s = {.size = sizeof s};
    pthread_t thread;
    void *a, *other;
    for (int k = 0; k < 64; k++) CHECK(!mlpool_alloc(pool, &other, 3 * MIB, NULL, "other"));
    CHECK(!mlpool_alloc(pool, &a, MIB, NULL, "a") && !pthread_create(&thread, NULL, destroy, pool));
    while (mlpool_get_stats(pool, &s) != MLPOOL_ERROR_CLOSED) {
    }
    CHECK(mlpool_free(pool, a, NULL) == MLPOOL_ERROR_CLOSED && mlpool_alloc(pool, &a, MIB, NULL, "a") == MLPOOL_ERROR_CLOSED);
    CHECK(!pthread_join(thread, NULL));
  }
}

static void test_fork(void) {
  mlpool_pool *pool = create(NULL);
  void *a, *b;
  CHECK(!mlpool_alloc(pool, &a, MIB, NULL, "a"));
  pid_t child = fork();
  if (!child) {
    int ok = mlpool_alloc(pool, &b, 1, NULL, NULL) == MLPOOL_ERROR_FORKED && mlpool_free(pool, a, NULL) == MLPOOL_ERROR_FORKED &&
             strstr(mlpool_error(), "fork");
    _exit(ok ? 0 : 1);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
  CHECK(!mlpool_free(pool, a, NULL) && !mlpool_destroy(pool));
}

static const struct {
  const char *name;
  void (*run)(void);
} tests[] = {
    {"options", test_options},
    {"blocks", test_blocks},
    {"front", test_front},
    {"room", test_room},
    {"release", test_release},
    {"destroyed", test_destroyed},
    {"counts", test_counts},
    {"streams", test_streams},
    {"refused sleep", test_refused_sleep},
    {"reports", test_reports},
    {"limits", test_limits},
    {"sleep", test_sleep},
    {"tags", test_tags},
    {"captures", test_captures},
    {"capture ids", test_capture_ids},
    {"peer", test_peer},
    {"per thread", test_per_thread},
    {"send", test_send},
    {"threads", test_threads},
    {"fork", test_fork},
    {"export", test_export},
    {"processes", test_processes},
    {"release beside capture", test_release_beside_capture},
    {"plugin", test_plugin},
    {"captured stream", test_captured_stream},
    {"trim beside capture", test_trim_beside_capture},
    {"sleep beside wake", test_sleep_beside_wake},
    {"in hand", test_in_hand},
    {"rooms", test_rooms},
    {"destroy beside free", test_destroy_beside_free},
};

// wanted reports whether the names, if there are any, include name.
static int wanted(const char *name, char **names) {
  int any = *names != NULL;
  for (; *names; names++)
    if (!strcmp(*names, name)) return 1;
  return !any;
}

int main(int count, char **args) {
  if (count == 2 && !strcmp(args[1], "--serve")) return serve_test();
  if (count < 2) return fprintf(stderr, "usage: test FOLDER [TEST...]\n"), 2;
  folder = args[1];
  int passed = 0;
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
    if (wanted(tests[i].name, args + 2)) tests[i].run(), passed++;
  printf("%d passed, 0 failed\n", passed);
  return 0;
}
