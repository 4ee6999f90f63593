//go:build linux

#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "declarations.h"

// A program may define cudadriver_symbol to replace libcuda.so.1 by an emulated driver.
__attribute__((weak)) void *cudadriver_symbol(const char *name);

// The driver's functions; NULL for those that it lacks.
#define DECLARE(name, ...) int (*name)(__VA_ARGS__);
static struct {
  CD_FUNCTIONS(DECLARE)
} cu;

// The result of begin.
static struct {
  int code;       // why the driver cannot be called
  char none[256]; // why there is no driver
  int device;
  cd_context context;

  cd_allocation_prop memory; // of pages
  size_t page;               // bytes of one
  int page_code;             // why there are none
} state;

static void *library;

static void *symbol(const char *name) { return library ? dlsym(library, name) : cudadriver_symbol(name); }

// find fills cu, or sets state.none.
static int find(void) {
  if (!cudadriver_symbol && !(library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) {
    const char *why = dlerror();
    snprintf(state.none, sizeof state.none, "%s", why ? why : "libcuda.so.1 cannot be loaded");
    return CUDADRIVER_NONE;
  }
#define FIND(name, ...) *(void **)&cu.name = symbol(#name);
  CD_FUNCTIONS(FIND)
  return CD_SUCCESS;
}

// TRY calls a function if the driver has it.
#define TRY(function, ...) (cu.function ? cu.function(__VA_ARGS__) : CD_ERROR_NOT_SUPPORTED)

static int find_pages(void) {
  int supported = 0;
  // A driver without pages does not know the attribute either.
  if (!cu.cuMemGetAllocationGranularity) return CD_ERROR_NOT_SUPPORTED;
  state.memory.type = CD_MEM_ALLOCATION_TYPE_PINNED;
  state.memory.location.type = CD_MEM_LOCATION_TYPE_DEVICE;
  state.memory.location.id = state.device;
  int code = TRY(cuDeviceGetAttribute, &supported, CD_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, state.device);
  if (code) return code;
  if (!supported) return CD_ERROR_NOT_SUPPORTED;
  return TRY(cuMemGetAllocationGranularity, &state.page, &state.memory, CD_MEM_ALLOC_GRANULARITY_MINIMUM);
}

static void begin(void) {
  state.code = find();
  if (!state.code) state.code = TRY(cuInit, 0);
  if (!state.code) state.code = TRY(cuDeviceGet, &state.device, 0);
  if (!state.code) state.code = TRY(cuDevicePrimaryCtxRetain, &state.context, state.device);
  if (!state.code) state.page_code = find_pages();
}

// enter makes the primary context current and returns the previous one in before. Go
// starts threads at any time, which have no context; another library may have left the
// context of another device.
static int enter(cd_context *before) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, begin);
  if (state.code) return state.code;
  int code = TRY(cuCtxGetCurrent, before);
  return code || *before == state.context ? code : TRY(cuCtxSetCurrent, state.context);
}

// leave restores the context that enter found, if any, and returns the first error.
static int leave(cd_context before, int code) {
  int put_back = before && before != state.context ? TRY(cuCtxSetCurrent, before) : CD_SUCCESS;
  return code ? code : put_back;
}

static int ready(void) {
  cd_context before = NULL;
  int code = enter(&before);
  return leave(before, code);
}

// IN_CONTEXT calls a function in the primary context, unless refusal is an error. It
// evaluates refusal and the arguments in the context.
#define IN_CONTEXT(refusal, function, ...)                         \
  ({                                                               \
    cd_context before_ = NULL;                                     \
    int code_ = enter(&before_);                                   \
    if (!code_) code_ = (refusal);                                 \
    leave(before_, code_ ? code_ : TRY(function, __VA_ARGS__));    \
  })

#define VALID(valid) ((valid) ? CD_SUCCESS : CD_ERROR_INVALID_VALUE)

// CALL calls a function if the arguments are valid, PAGES if the device also has pages.
#define CALL(valid, function, ...) IN_CONTEXT(VALID(valid), function, __VA_ARGS__)
#define PAGES(valid, function, ...) IN_CONTEXT(state.page_code ? state.page_code : VALID(valid), function, __VA_ARGS__)

#define STREAM(s) ((cd_stream)(s))
#define EVENT(e) ((cd_event)(e))
#define POOL(p) ((cd_pool)(p))

const char *cudadriver_none(void) { return state.none; }

const char *cudadriver_error_name(int code) {
  const char *name = NULL;
  return TRY(cuGetErrorName, code, &name) || !name ? "unknown error" : name;
}

int cudadriver_available(void) { return ready(); }

cudadriver_value cudadriver_malloc(int64_t bytes) {
  cd_deviceptr addr = 0;
  int code = CALL(bytes > 0, cuMemAlloc_v2, &addr, (size_t)bytes);
  return (cudadriver_value){(uintptr_t)addr, code};
}

int cudadriver_free(uintptr_t addr) { return CALL(addr, cuMemFree_v2, addr); }

cudadriver_pair cudadriver_mem_info(void) {
  size_t available = 0, total = 0;
  int code = CALL(1, cuMemGetInfo_v2, &available, &total);
  return (cudadriver_pair){(int64_t)available, (int64_t)total, code};
}

cudadriver_value cudadriver_stream_new(void) {
  cd_stream stream = NULL;
  int code = CALL(1, cuStreamCreate, &stream, CD_STREAM_NON_BLOCKING);
  return (cudadriver_value){(uintptr_t)stream, code};
}

int cudadriver_stream_sync(uintptr_t stream) { return CALL(1, cuStreamSynchronize, STREAM(stream)); }

int cudadriver_stream_free(uintptr_t stream) { return CALL(stream, cuStreamDestroy_v2, STREAM(stream)); }

cudadriver_value cudadriver_event_new(void) {
  cd_event event = NULL;
  int code = CALL(1, cuEventCreate, &event, CD_EVENT_DISABLE_TIMING);
  return (cudadriver_value){(uintptr_t)event, code};
}

int cudadriver_event_record(uintptr_t event, uintptr_t stream) {
  return CALL(event, cuEventRecord, EVENT(event), STREAM(stream));
}

cudadriver_value cudadriver_event_query(uintptr_t event) {
  int code = CALL(event, cuEventQuery, EVENT(event));
  return (cudadriver_value){code == CD_SUCCESS, code == CD_ERROR_NOT_READY ? CD_SUCCESS : code};
}

int cudadriver_event_wait(uintptr_t stream, uintptr_t event) {
  return CALL(event, cuStreamWaitEvent, STREAM(stream), EVENT(event), 0);
}

int cudadriver_event_sync(uintptr_t event) { return CALL(event, cuEventSynchronize, EVENT(event)); }

int cudadriver_event_free(uintptr_t event) { return CALL(event, cuEventDestroy_v2, EVENT(event)); }

cudadriver_value cudadriver_page_size(void) {
  int code = ready();
  if (!code) code = state.page_code;
  return (cudadriver_value){code ? 0 : state.page, code};
}

cudadriver_value cudadriver_range_reserve(int64_t bytes) {
  cd_deviceptr addr = 0;
  int code = PAGES(bytes > 0, cuMemAddressReserve, &addr, (size_t)bytes, state.page, 0, 0);
  return (cudadriver_value){(uintptr_t)addr, code};
}

int cudadriver_range_release(uintptr_t addr, int64_t bytes) {
  return PAGES(bytes > 0, cuMemAddressFree, addr, (size_t)bytes);
}

cudadriver_value cudadriver_pages_create(int64_t bytes) {
  cd_allocation handle = 0;
  int code = PAGES(bytes > 0, cuMemCreate, &handle, (size_t)bytes, &state.memory, 0);
  return (cudadriver_value){(uintptr_t)handle, code};
}

int cudadriver_pages_release(uintptr_t handle) { return PAGES(1, cuMemRelease, handle); }

int cudadriver_pages_map(uintptr_t addr, uintptr_t handle, int64_t bytes) {
  int code = PAGES(bytes > 0, cuMemMap, addr, (size_t)bytes, 0, handle, 0);
  if (code) return code;
  cd_access_desc access = {state.memory.location, CD_MEM_ACCESS_FLAGS_PROT_READWRITE};
  code = PAGES(1, cuMemSetAccess, addr, (size_t)bytes, &access, 1);
  // If cuMemUnmap fails too, the first error says more.
  if (code) (void)PAGES(1, cuMemUnmap, addr, (size_t)bytes);
  return code;
}

int cudadriver_pages_unmap(uintptr_t addr, int64_t bytes) {
  return PAGES(bytes > 0, cuMemUnmap, addr, (size_t)bytes);
}

cudadriver_value cudadriver_pool_new(int64_t threshold, int follow_events, int opportunistic, int internal) {
  cd_pool pool = NULL;
  int code = ready();
  if (code) return (cudadriver_value){0, code};
  cd_pool_props props = {.allocType = CD_MEM_ALLOCATION_TYPE_PINNED,
                         .location = {CD_MEM_LOCATION_TYPE_DEVICE, state.device}};
  uint64_t bytes = (uint64_t)threshold;
  code = CALL(threshold >= 0, cuMemPoolCreate, &pool, &props);
  if (code) return (cudadriver_value){0, code};
  code = CALL(1, cuMemPoolSetAttribute, pool, CD_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
  if (!code) code = CALL(1, cuMemPoolSetAttribute, pool, CD_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow_events);
  if (!code) code = CALL(1, cuMemPoolSetAttribute, pool, CD_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &opportunistic);
  if (!code) code = CALL(1, cuMemPoolSetAttribute, pool, CD_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &internal);
  // If cuMemPoolDestroy fails too, the first error says more.
  if (code) (void)CALL(1, cuMemPoolDestroy, pool);
  return (cudadriver_value){code ? 0 : (uintptr_t)pool, code};
}

int cudadriver_pool_free(uintptr_t pool) { return CALL(pool, cuMemPoolDestroy, POOL(pool)); }

cudadriver_value cudadriver_pool_malloc(uintptr_t pool, int64_t bytes, uintptr_t stream) {
  cd_deviceptr addr = 0;
  int code = CALL(pool && bytes > 0, cuMemAllocFromPoolAsync, &addr, (size_t)bytes, POOL(pool), STREAM(stream));
  return (cudadriver_value){(uintptr_t)addr, code};
}

int cudadriver_pool_give_back(uintptr_t addr, uintptr_t stream) {
  return CALL(addr, cuMemFreeAsync, addr, STREAM(stream));
}

cudadriver_pair cudadriver_pool_reserved(uintptr_t pool) {
  uint64_t now = 0, peak = 0;
  int code = CALL(pool, cuMemPoolGetAttribute, POOL(pool), CD_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &now);
  if (!code) code = CALL(1, cuMemPoolGetAttribute, POOL(pool), CD_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &peak);
  return (cudadriver_pair){(int64_t)now, (int64_t)peak, code};
}

int cudadriver_pool_reset_peak(uintptr_t pool) {
  uint64_t zero = 0;
  return CALL(pool, cuMemPoolSetAttribute, POOL(pool), CD_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero);
}

int cudadriver_pool_trim(uintptr_t pool, int64_t keep) {
  return CALL(pool && keep >= 0, cuMemPoolTrimTo, POOL(pool), (size_t)keep);
}

cudadriver_pair cudadriver_graph_reserved(void) {
  uint64_t now = 0, peak = 0;
  int code = CALL(1, cuDeviceGetGraphMemAttribute, state.device, CD_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now);
  if (!code) code = CALL(1, cuDeviceGetGraphMemAttribute, state.device, CD_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &peak);
  return (cudadriver_pair){(int64_t)now, (int64_t)peak, code};
}

int cudadriver_graph_reset_peak(void) {
  uint64_t zero = 0;
  return CALL(1, cuDeviceSetGraphMemAttribute, state.device, CD_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero);
}

int cudadriver_graph_trim(void) { return CALL(1, cuDeviceGraphMemTrim, state.device); }
