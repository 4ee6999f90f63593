// A libcuda.so.1 of CUDA 10.1, for tests without a GPU: memory, streams and events, which
// are all done at once, and nothing newer. As the real one it refuses a thread without a
// context, and to tell of an attribute that it does not know. With OTHER_CONTEXT in the
// environment all threads have one that is not the primary, and no call may find that
// the one before it has left another there.
#include <stddef.h>
#include <stdlib.h>

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 201 };
enum { ALIGNMENT = 256, ATTRIBUTES = 102 };
static const size_t CARD = 1 << 30;

static int initialised;
static char the_context, other_context;
static _Thread_local void *current;

static int ready(void) { return !initialised ? 3 : current == &the_context ? SUCCESS : INVALID_CONTEXT; }

static int make(void **p) {
  int code = ready();
  return code ? code : (*p = malloc(1)) ? SUCCESS : OUT_OF_MEMORY;
}

static int destroy(void *p) {
  int code = ready();
  if (!code) free(p);
  return code;
}

int cuInit(unsigned flags) { return initialised = 1, flags ? INVALID_VALUE : SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return *device = 0, ordinal ? INVALID_VALUE : SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  return *value = 0, attribute > 0 && attribute < ATTRIBUTES && !device ? SUCCESS : INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &the_context, device ? INVALID_VALUE : SUCCESS; }
int cuCtxGetCurrent(void **context) {
  if (getenv("OTHER_CONTEXT")) {
    if (!current) current = &other_context;
    if (current != &other_context) return INVALID_CONTEXT;
  }
  return *context = current, SUCCESS;
}
int cuCtxSetCurrent(void *context) { return current = context, context ? SUCCESS : INVALID_CONTEXT; }

int cuMemAlloc_v2(unsigned long long *addr, size_t bytes) {
  int code = ready();
  if (code) return code;
  if (bytes > CARD) return OUT_OF_MEMORY;
  *addr = (unsigned long long)aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  return *addr ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFree_v2(unsigned long long addr) { return destroy((void *)addr); }
int cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = CARD / 2, *total = CARD, ready(); }

int cuStreamCreate(void **stream, unsigned flags) { return flags == 1 ? make(stream) : INVALID_VALUE; }
int cuStreamDestroy_v2(void *stream) { return destroy(stream); }
int cuStreamSynchronize(void *stream) { return (void)stream, ready(); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)stream, (void)event, flags ? INVALID_VALUE : ready(); }

int cuEventCreate(void **event, unsigned flags) { return flags == 2 ? make(event) : INVALID_VALUE; }
int cuEventDestroy_v2(void *event) { return destroy(event); }
int cuEventRecord(void *event, void *stream) { return (void)event, (void)stream, ready(); }
int cuEventQuery(void *event) { return (void)event, ready(); }
int cuEventSynchronize(void *event) { return (void)event, ready(); }

#ifdef POOLS // as CUDA 11.2 has them, without graphs that have memory
int cuMemPoolCreate(void **pool, const void *props) { return props ? make(pool) : INVALID_VALUE; }
int cuMemPoolDestroy(void *pool) { return destroy(pool); }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return pool && attribute && value ? ready() : INVALID_VALUE; }
#endif
