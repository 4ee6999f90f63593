// A driver library, not a device: allocatortest.Fake cannot replace it, as it tests how
// cudadriver loads a libcuda.so.1 that lacks functions. It is that of CUDA 10.1, or 11.2 with
// -DNEWER, and needs no GPU. Like the real one it refuses threads without a context, unknown
// attributes and, while a stream captures, waits for the device, and calls for memory of threads in another mode than relaxed.
// It has two devices. With OTHER_CONTEXT in the environment each thread has a context other than the
// primary ones, and every call must restore it. REFUSE in the environment names a call that fails.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600 };
enum { CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED, UNKNOWN = 999 };
enum { DEVICES = 2, RELAXED = 2 };
enum { ALIGNMENT = 256 };
static const size_t CARD = 1 << 30;

static int refuses(const char *call) {
  const char *refused = getenv("REFUSE");
  return refused && !strcmp(refused, call);
}

static int initialised, pools;
static char primary[DEVICES], other_context;
static _Thread_local void *current;
static _Thread_local int mode;  // of captures
static void *capturing;         // the stream that captures
static int invalid;             // the capture

static int is_primary(void *context) { return context == &primary[0] || context == &primary[1]; }
static int ready(void) { return !initialised ? 3 : is_primary(current) ? SUCCESS : INVALID_CONTEXT; }

// unsafe is ready for calls that a capture does not allow.
static int unsafe(void) {
  if (capturing && mode != RELAXED) return invalid = 1, CAPTURE_UNSUPPORTED;
  return ready();
}

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
int cuDeviceGetCount(int *count) { return *count = DEVICES, SUCCESS; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal < DEVICES ? SUCCESS : INVALID_DEVICE; }
int cuDeviceCanAccessPeer(int *can, int device, int peer) { return *can = 0, device == peer ? INVALID_VALUE : SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
#ifdef NEWER
  const int attributes = 103;
#else
  const int attributes = 102;
#endif
  *value = attribute == 102 && !refuses("pages");
  return attribute > 0 && attribute < attributes && device < DEVICES ? SUCCESS : INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &primary[device], SUCCESS; }
int cuCtxGetCurrent(void **context) {
  if (getenv("OTHER_CONTEXT")) {
    if (!current) current = &other_context;
    if (current != &other_context) return INVALID_CONTEXT;
  }
  return *context = current, SUCCESS;
}
int cuCtxSetCurrent(void *context) { return current = context, SUCCESS; }
int cuCtxSynchronize(void) { return capturing ? invalid = 1, CAPTURE_UNSUPPORTED : ready(); }

int cuThreadExchangeStreamCaptureMode(int *exchanged) {
  int before = mode;
  mode = *exchanged, *exchanged = before;
  return SUCCESS;
}

int cuStreamBeginCapture_v2(void *stream, int in) { return (void)in, capturing = stream, invalid = 0, ready(); }
int cuStreamIsCapturing(void *stream, int *status) { return *status = capturing && capturing == stream, ready(); }
int cuStreamEndCapture(void *stream, void **graph) {
  int matches = capturing == stream;
  capturing = *graph = NULL;
  return !matches ? INVALID_VALUE : invalid ? CAPTURE_INVALIDATED : SUCCESS;
}

int cuMemAlloc_v2(unsigned long long *addr, size_t bytes) {
  int code = unsafe();
  if (code) return code;
  if (bytes > CARD) return OUT_OF_MEMORY;
  *addr = (unsigned long long)aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  return *addr ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFree_v2(unsigned long long addr) {
  int code = unsafe();
  return code ? code : destroy((void *)addr);
}
int cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = CARD / 2 - pools, *total = CARD, ready(); }

// The streams that were destroyed last are no other's memory. The real driver may crash like this.
static void *destroyed[16];
static int destroyed_count;
static int use(void *stream) {
  for (int i = 0; i < 16; i++)
    if (stream && destroyed[i] == stream) abort();
  return ready();
}

int cuStreamCreate(void **stream, unsigned flags) { return flags == 1 ? make(stream) : INVALID_VALUE; }
int cuStreamDestroy_v2(void *stream) {
  void **at = &destroyed[destroyed_count++ % 16];
  free(*at);
  return *at = stream, ready();
}
int cuStreamSynchronize(void *stream) { return use(stream); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return (void)event, flags ? INVALID_VALUE : use(stream); }

int cuEventCreate(void **event, unsigned flags) { return flags == 2 ? make(event) : INVALID_VALUE; }
int cuEventDestroy_v2(void *event) { return destroy(event); }
int cuEventRecord(void *event, void *stream) { return (void)event, use(stream); }
int cuEventQuery(void *event) { return (void)event, refuses("event query") ? NOT_READY : unsafe(); }
int cuEventSynchronize(void *event) { return (void)event, ready(); }

#ifdef NEWER // pools as in CUDA 11.2, without memory of graphs, and at most one mapped page
int cuMemPoolCreate(void **pool, const void *props) { return pools++, props ? make(pool) : INVALID_VALUE; }
int cuMemPoolDestroy(void *pool) { return pools--, destroy(pool); }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
  static const char *const names[] = {"", "follow events", "opportunistic", "internal dependencies", "threshold"};
  if (!pool || attribute < 1 || attribute > 4) return INVALID_VALUE;
  if (*(int *)value && refuses(names[attribute])) return UNKNOWN;
  return ready();
}

static unsigned long long mapped;
int cuMemGetAllocationGranularity(size_t *bytes, const void *prop, int option) { return *bytes = 2 << 20, prop && !option ? SUCCESS : INVALID_VALUE; }
int cuMemMap(unsigned long long addr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags) {
  if (mapped || !bytes || offset || !handle || flags) return INVALID_VALUE;
  return mapped = addr, ready();
}
int cuMemUnmap(unsigned long long addr, size_t bytes) {
  if (mapped != addr || !bytes) return INVALID_VALUE;
  return mapped = 0, ready();
}
int cuMemSetAccess(unsigned long long addr, size_t bytes, const void *access, size_t count) {
  if (mapped != addr || !bytes || !access || count != 1) return INVALID_VALUE;
  return refuses("access") ? UNKNOWN : ready();
}
#endif
