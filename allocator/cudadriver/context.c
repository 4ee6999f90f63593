//go:build linux

#include "context.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

// A program may define cudadriver_symbol to replace libcuda.so.1 by an emulated driver.
__attribute__((weak)) void *cudadriver_symbol(const char *name);

cudadriver_functions cudadriver_library;

// The result of begin.
static struct {
  int code;       // why the driver cannot be called
  char none[256]; // why there is no driver
  int count;      // of devices
  device_state *devices;
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
#define FIND(name, ...) *(void **)&cudadriver_library.name = symbol(#name);
  CD_FUNCTIONS(FIND)
  return CD_SUCCESS;
}

// A child of fork has the memory of its parent, but not what the driver keeps elsewhere: calls
// would crash or wait for ever.
static volatile int forked;

static void in_child(void) { forked = 1; }

static void begin(void) {
  state.code = find();
  if (!state.code && pthread_atfork(NULL, NULL, in_child)) state.code = CD_ERROR_OUT_OF_MEMORY;
  if (!state.code) state.code = TRY(cuInit, 0);
  if (!state.code) state.code = TRY(cuDeviceGetCount, &state.count);
  if (!state.code && !(state.devices = calloc((size_t)state.count + 1, sizeof *state.devices))) {
    state.code = CD_ERROR_OUT_OF_MEMORY;
  }
}

static int ready(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (forked) return CUDADRIVER_FORKED;
  pthread_once(&once, begin);
  return state.code;
}

// supports returns whether the device has an attribute. A driver that does not know it has not.
static int supports(const device_state *d, int attribute) {
  int value = 0;
  return !TRY(cuDeviceGetAttribute, &value, attribute, d->id) && value;
}

// find_kind fills kind. A driver without pages does not know the attribute of a device either.
static void find_kind(const device_state *d, memory_kind *kind, int attribute, int handle_type) {
  kind->prop.type = CD_MEM_ALLOCATION_TYPE_PINNED;
  kind->prop.location = (cd_location){CD_MEM_LOCATION_TYPE_DEVICE, d->id};
  kind->prop.requestedHandleTypes = handle_type;
  kind->code = CD_ERROR_NOT_SUPPORTED;
  if (!cudadriver_library.cuMemGetAllocationGranularity || !supports(d, attribute)) return;
  // NCCL registers shared memory for network cards that read it without the host.
  int shared = handle_type && supports(d, CD_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  kind->prop.allocFlags.gpuDirectRDMACapable = (unsigned char)shared;
  kind->code = TRY(cuMemGetAllocationGranularity, &kind->page, &kind->prop, CD_MEM_ALLOC_GRANULARITY_MINIMUM);
}

static void begin_device(device_state *d, int ordinal) {
  d->code = TRY(cuDeviceGet, &d->id, ordinal);
  if (!d->code) d->code = TRY(cuDevicePrimaryCtxRetain, &d->context, d->id);
  if (d->code) return;
  find_kind(d, &d->pages, CD_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  find_kind(d, &d->shareable, CD_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, CD_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (d->pages.code) d->shareable.code = d->pages.code;
}

// use sets d to a device whose context is retained.
static int use(int ordinal, const device_state **d) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  int code = ready();
  if (code) return code;
  if (ordinal < 0 || ordinal >= state.count) return CD_ERROR_INVALID_DEVICE;
  device_state *found = &state.devices[ordinal];
  if (!__atomic_load_n(&found->begun, __ATOMIC_ACQUIRE)) {
    pthread_mutex_lock(&one_at_a_time);
    if (!found->begun) {
      begin_device(found, ordinal);
      __atomic_store_n(&found->begun, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&one_at_a_time);
  }
  *d = found;
  return found->code;
}

// exchange exchanges the capture mode of the thread. A driver without captures has none.
static int exchange(int *mode) {
  if (!cudadriver_library.cuThreadExchangeStreamCaptureMode) return CD_SUCCESS;
  return cudadriver_library.cuThreadExchangeStreamCaptureMode(mode);
}

static int restore(const visit *v) {
  int keep = v->before == v->device->context || (!v->before && v->device == state.devices);
  return keep ? CD_SUCCESS : TRY(cuCtxSetCurrent, v->before);
}

int cudadriver_enter(int ordinal, visit *v) {
  int code = use(ordinal, &v->device);
  if (!code) code = TRY(cuCtxGetCurrent, &v->before);
  if (!code && v->before != v->device->context) code = TRY(cuCtxSetCurrent, v->device->context);
  if (code) return code;
  v->mode = CD_STREAM_CAPTURE_MODE_RELAXED;
  code = exchange(&v->mode);
  if (code) (void)restore(v);  // the first error says more
  return code;
}

int cudadriver_leave(const visit *v, int code) {
  int mode = v->mode, put_back = exchange(&mode), restored = restore(v);
  return code ? code : put_back ? put_back : restored;
}

const char *cudadriver_none(void) { return state.none; }

cudadriver_value cudadriver_device_count(void) {
  int code = ready();
  return (cudadriver_value){code ? 0 : (uintptr_t)state.count, code};
}
