//go:build linux

#include "nccl.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

// The parts of nccl.h that are used, declared by hand so that a build needs no NCCL. Layouts, and
// names without the prefix mlp_, are NCCL's: see the API section of its User Guide.
typedef struct mlp_comm *mlp_comm;
typedef struct {
  char internal[NCCL_ID_BYTES];
} mlp_unique_id;

// ncclConfig_t of 2.28. An older library reads only the fields that it knows, a newer one uses
// its defaults for later fields.
typedef struct {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
  const char *comm_name;
  int collnet, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric_scheduling;
} mlp_config;

enum { MLP_INT8 = 0, MLP_FLOAT32 = 7, MLP_SUM = 0, MLP_WINDOW_SYMMETRIC = 1, MLP_CONFIG_MAGIC = 0xcafebeef, MLP_VERSION = 22800 };

#define FUNCTIONS(F) \
  F(ncclGetVersion, int *version) \
  F(ncclGetUniqueId, mlp_unique_id *id) \
  F(ncclCommInitRankConfig, mlp_comm *comm, int size, mlp_unique_id id, int rank, mlp_config *config) \
  F(ncclCommGetAsyncError, mlp_comm comm, int *state) \
  F(ncclCommAbort, mlp_comm comm) \
  F(ncclCommFinalize, mlp_comm comm) \
  F(ncclCommDestroy, mlp_comm comm) \
  F(ncclAllReduce, const void *from, void *to, size_t n, int type, int op, mlp_comm comm, void *stream) \
  F(ncclReduceScatter, const void *from, void *to, size_t n, int type, int op, mlp_comm comm, void *stream) \
  F(ncclAllGather, const void *from, void *to, size_t n, int type, mlp_comm comm, void *stream) \
  /* from 2.19 on */ \
  F(ncclCommRegister, mlp_comm comm, void *addr, size_t bytes, void **handle) \
  F(ncclCommDeregister, mlp_comm comm, void *handle) \
  F(ncclMemAlloc, void **addr, size_t bytes) \
  F(ncclMemFree, void *addr) \
  /* from 2.27 on */ \
  F(ncclCommWindowRegister, mlp_comm comm, void *addr, size_t bytes, void **window, int flags) \
  F(ncclCommWindowDeregister, mlp_comm comm, void *window)

#define DECLARE(name, ...) int (*name)(__VA_ARGS__);
static struct {
  FUNCTIONS(DECLARE)
  const char *(*ncclGetErrorString)(int);
  const char *(*ncclGetLastError)(mlp_comm);
} nccl;

static char none[256];

// cudadriver_symbol exists in a program with an emulated driver: see allocator/cudadriver.
__attribute__((weak)) void *cudadriver_symbol(const char *name);

static void *library;

static void *symbol(const char *name) { return library ? dlsym(library, name) : cudadriver_symbol(name); }

static void load(void) {
  if (!cudadriver_symbol && !(library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))) {
    const char *why = dlerror();
    snprintf(none, sizeof none, "%s", why ? why : "libnccl.so.2 cannot be loaded");
    return;
  }
#define FIND(name, ...) *(void **)&nccl.name = symbol(#name);
  FUNCTIONS(FIND)
  FIND(ncclGetErrorString)
  FIND(ncclGetLastError)
}

static void ready(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
}

// CALL calls a function, or returns NCCL_NONE if the library lacks it.
#define CALL(function, ...) (ready(), nccl.function ? nccl.function(__VA_ARGS__) : NCCL_NONE)

#define COMM(c) ((mlp_comm)(c))

const char *nccl_none(void) {
  ready();
  return none;
}

const char *nccl_error(int code, uintptr_t comm) {
  ready();
  // The last error, of the calling thread or of the communicator, has more detail.
  const char *last = nccl.ncclGetLastError ? nccl.ncclGetLastError(COMM(comm)) : NULL;
  if (last && *last) return last;
  return nccl.ncclGetErrorString ? nccl.ncclGetErrorString(code) : "unknown error";
}

int nccl_version(int *version) { return CALL(ncclGetVersion, version); }

int nccl_id(char *id) {
  mlp_unique_id unique;
  int code = CALL(ncclGetUniqueId, &unique);
  memcpy(id, unique.internal, sizeof unique.internal);
  return code;
}

nccl_value nccl_comm_new(const char *id, int rank, int size) {
  mlp_unique_id unique;
  memcpy(unique.internal, id, sizeof unique.internal);
  mlp_config config = {sizeof config, MLP_CONFIG_MAGIC, MLP_VERSION};
  config.blocking = 1;  // else a thread of NCCL would queue each call
  config.cga_cluster_size = config.min_ctas = config.max_ctas = config.split_share = config.traffic_class = INT_MIN;
  config.collnet = config.cta_policy = config.shrink_share = config.nvls_ctas = INT_MIN;
  config.channels_per_net_peer = config.nvlink_centric_scheduling = INT_MIN;
  mlp_comm comm = NULL;
  int code = CALL(ncclCommInitRankConfig, &comm, size, unique, rank, &config);
  return (nccl_value){(uintptr_t)comm, code};
}

int nccl_comm_state(uintptr_t comm, int *state) { return CALL(ncclCommGetAsyncError, COMM(comm), state); }
int nccl_comm_abort(uintptr_t comm) { return CALL(ncclCommAbort, COMM(comm)); }
int nccl_comm_finalize(uintptr_t comm) { return CALL(ncclCommFinalize, COMM(comm)); }
int nccl_comm_free(uintptr_t comm) { return CALL(ncclCommDestroy, COMM(comm)); }

int nccl_all_reduce(uintptr_t comm, uintptr_t x, size_t n, uintptr_t stream) {
  return CALL(ncclAllReduce, (void *)x, (void *)x, n, MLP_FLOAT32, MLP_SUM, COMM(comm), (void *)stream);
}

int nccl_reduce_scatter(uintptr_t comm, uintptr_t x, uintptr_t part, size_t n, uintptr_t stream) {
  return CALL(ncclReduceScatter, (void *)x, (void *)part, n, MLP_FLOAT32, MLP_SUM, COMM(comm), (void *)stream);
}

int nccl_all_gather(uintptr_t comm, uintptr_t part, uintptr_t x, size_t bytes, uintptr_t stream) {
  return CALL(ncclAllGather, (void *)part, (void *)x, bytes, MLP_INT8, COMM(comm), (void *)stream);
}

nccl_value nccl_register(uintptr_t comm, uintptr_t addr, size_t bytes) {
  void *handle = NULL;
  int code = CALL(ncclCommRegister, COMM(comm), (void *)addr, bytes, &handle);
  return (nccl_value){(uintptr_t)handle, code};
}

int nccl_deregister(uintptr_t comm, uintptr_t handle) { return CALL(ncclCommDeregister, COMM(comm), (void *)handle); }

// If there can be no window, some versions return none and no error; 2.28 only registers the memory,
// and returns the handle of that.
nccl_value nccl_window_new(uintptr_t comm, uintptr_t addr, size_t bytes) {
  void *window = NULL, *registered = NULL;
  int code = CALL(ncclCommWindowRegister, COMM(comm), (void *)addr, bytes, &window, MLP_WINDOW_SYMMETRIC);
  if (code != NCCL_SUCCESS || !window || CALL(ncclCommRegister, COMM(comm), (void *)addr, bytes, &registered) != NCCL_SUCCESS || !registered)
    return (nccl_value){(uintptr_t)window, code};
  code = CALL(ncclCommDeregister, COMM(comm), registered);
  if (code == NCCL_SUCCESS && registered != window) return (nccl_value){(uintptr_t)window, NCCL_SUCCESS};
  int ended = CALL(ncclCommWindowDeregister, COMM(comm), window);
  return (nccl_value){0, code != NCCL_SUCCESS ? code : ended};
}

int nccl_window_free(uintptr_t comm, uintptr_t window) { return window ? CALL(ncclCommWindowDeregister, COMM(comm), (void *)window) : NCCL_SUCCESS; }

nccl_value nccl_alloc(size_t bytes) {
  void *addr = NULL;
  int code = CALL(ncclMemAlloc, &addr, bytes);
  return (nccl_value){(uintptr_t)addr, code};
}

int nccl_free(uintptr_t addr) { return CALL(ncclMemFree, (void *)addr); }
