// A libnccl.so.2 for tests: every rank has what the others have, in host memory. FAKE_NCCL
// says what goes wrong. A call with a communicator that was freed ends the process, and so does
// one that frees it under ncclCommFinalize.
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct comm {
  int size, looks;
  volatile int freed, finalizing;
};
struct id {
  char internal[128];
};
struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
  const char *comm_name;
  int collnet, cta_policy;
};
#ifdef COPY_ENGINES
enum { VERSION = 22809, CTA_POLICY = 2 };
#else
enum { VERSION = 22703, CTA_POLICY = INT_MIN };
#endif
// What a test finds in its memory while an all-reduce waits, or is slow: until another number is there.
enum { INSIDE = -1 };
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };

static int goes(const char *wrong) {
  const char *is = getenv("FAKE_NCCL");
  return is && !strcmp(is, wrong);
}

static struct comm *alive(struct comm *c) { return c->freed ? abort(), c : c; }

int ncclGetVersion(int *v) { return *v = goes("old") ? 21705 : VERSION, SUCCESS; }
const char *ncclGetErrorString(int code) { return code == INVALID_USAGE ? "invalid usage" : "unhandled system error"; }
const char *ncclGetLastError(struct comm *c) { return goes("duplicate") ? "Duplicate GPU detected" : ""; }
int ncclGetUniqueId(struct id *id) { return memset(id, 42, sizeof *id), SUCCESS; }

int ncclCommInitRankConfig(struct comm **c, int size, struct id id, int rank, struct config *config) {
  if (id.internal[127] != 42 || config->magic != 0xcafebeef || config->blocking != 1 || config->cta_policy != CTA_POLICY || rank >= size) return INVALID_ARGUMENT;
  if (goes("duplicate")) return INVALID_USAGE;
  while (goes("never")) pause();
  *c = calloc(1, sizeof **c);
  return (*c)->size = size, SUCCESS;
}

int ncclCommGetAsyncError(struct comm *c, int *state) {
  *state = alive(c)->looks++ < 2 ? IN_PROGRESS : goes("fails") || goes("stuck") ? SYSTEM_ERROR : SUCCESS;
  return SUCCESS;
}

int ncclCommAbort(struct comm *c) {
  while (goes("stuck")) pause();
  if (alive(c)->finalizing) abort();
  return c->freed = 1, SUCCESS;
}
int ncclCommFinalize(struct comm *c) {
  alive(c)->finalizing = 1;
  while (goes("alone")) pause();
  return c->finalizing = 0, SUCCESS;
}
int ncclCommDestroy(struct comm *c) { return alive(c)->freed = 1, SUCCESS; }

int ncclAllReduce(const float *from, float *to, size_t n, int type, int op, struct comm *c, void *stream) {
  if (type != 7 || op || goes("refuses")) return INVALID_USAGE;
  if (goes("slow") || goes("waits")) {
    float at = INSIDE;
    for (__atomic_store(to, &at, __ATOMIC_SEQ_CST); goes("slow") ? at == INSIDE : !c->freed; usleep(1000)) __atomic_load(to, &at, __ATOMIC_SEQ_CST);
    if (goes("waits")) return SYSTEM_ERROR;
  }
  for (size_t i = 0; i < n; i++) to[i] = from[i] * alive(c)->size;
  return SUCCESS;
}

#ifdef REGISTERS
int ncclAllGather(const float *from, float *to, size_t n, int type, struct comm *c, void *stream) {
  if (type != 7 || from < to || from >= to + c->size * n || goes("refuses")) return INVALID_USAGE;
  for (int r = 0; r < alive(c)->size; r++) memmove(to + r * n, from, n * sizeof *to);
  return SUCCESS;
}
int ncclCommRegister(struct comm *c, void *addr, size_t bytes, void **handle) { return alive(c), *handle = addr, SUCCESS; }
int ncclCommDeregister(struct comm *c, void *handle) { return alive(c), handle ? SUCCESS : INVALID_ARGUMENT; }
int ncclCommWindowRegister(struct comm *c, void *addr, size_t bytes, void **w, int flags) { return alive(c), *w = goes("windowless") ? NULL : goes("registered") ? addr : (char *)addr + 1, flags == 1 ? SUCCESS : INVALID_ARGUMENT; }
int ncclCommWindowDeregister(struct comm *c, void *w) { return alive(c), w ? SUCCESS : INVALID_ARGUMENT; }
int ncclMemAlloc(void **addr, size_t bytes) { return (*addr = malloc(bytes)) ? SUCCESS : SYSTEM_ERROR; }
int ncclMemFree(void *addr) { return free(addr), SUCCESS; }
#endif
