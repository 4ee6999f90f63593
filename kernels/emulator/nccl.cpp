// The fake NCCL of all tests: the part that kernels/nccl uses. The emulator has it between processes
// of one host, which share memory: a collective is work of a stream, which ends when its communicator
// is aborted. Compiled with -DALONE it is a libnccl.so.2 that needs no GPU, in which every rank has
// what this one has: 2.27.3, and with registration with -DREGISTERS.
//
// FAKE_NCCL in the environment says what goes wrong. A call with a communicator that was freed ends
// the process, and so does one that frees it under ncclCommFinalize.
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#ifdef ALONE
enum { VERSION = 22703 };
namespace {
template <typename F>
void queue(void *, F work) {
  work();
}
void *allocate(size_t bytes) { return malloc(bytes); }
bool release(void *addr) { return free(addr), true; }
}  // namespace
#else
#include "cuda.h"
#include "cuda_runtime.h"
#define REGISTERS
enum { VERSION = 22809 };
namespace {
template <typename F>
void queue(void *stream, F work) {
  emulator::queue(static_cast<cudaStream_t>(stream), work);
}
// As calls of the runtime do, these give the thread a context.
void *allocate(size_t bytes) {
  CUdeviceptr addr = 0;
  emulator::give_context();
  return cuMemAlloc(&addr, bytes) ? nullptr : reinterpret_cast<void *>(addr);
}
bool release(void *addr) { return emulator::give_context(), !cuMemFree(reinterpret_cast<CUdeviceptr>(addr)); }
}  // namespace
#endif

namespace {

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { INT8 = 0, FLOAT32 = 7, SUM = 0, SYMMETRIC = 1 };
constexpr float INSIDE = -1;  // what a test finds in its memory while an all-reduce waits, or is slow, until it writes another number
constexpr size_t CHUNK = 1 << 18;  // floats that are added up at once, and bytes that are gathered

bool goes(const char *wrong) {
  const char *is = getenv("FAKE_NCCL");
  return is && !strcmp(is, wrong);
}

struct Id {
  char internal[128];  // the name of the shared memory; the last is a mark
};

struct Config {  // of 2.28, as far as it is looked at
  size_t size;
  unsigned magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
  const char *comm_name;
  int collnet, cta_policy;
};

struct Shared {
  std::atomic<int> come, round;
  float *slot(int rank) { return reinterpret_cast<float *>(this + 1) + size_t(rank) * CHUNK; }
};

struct Comm {
  int rank, size, looks = 0;
  Shared *shared = nullptr;  // none where a process stands for all ranks
  std::atomic<bool> aborted = false, freed = false, finalizing = false;

  Comm *alive() { return freed ? abort(), this : this; }

  // connect maps the memory that ranks share, and waits for them.
  bool connect(const char *name) {
    size_t bytes = sizeof(Shared) + size_t(size) * CHUNK * sizeof(float);
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0) return false;
    void *p = ftruncate(file, off_t(bytes)) ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (p == MAP_FAILED) return false;
    shared = static_cast<Shared *>(p);
    if (!meet()) return false;
    shm_unlink(name);  // by all of them; it lives while they have it
    return true;
  }

  // meet waits for all ranks, unless the communicator is aborted.
  bool meet() {
    int round = shared->round;
    if (shared->come.fetch_add(1) + 1 == size) {
      shared->come = 0;
      shared->round++;
      return true;
    }
    while (shared->round == round) {
      if (aborted) return false;
      usleep(20);
    }
    return true;
  }

  void reduce(float *to, const float *from, size_t n) {
    for (size_t i = 0; !shared && i < n; i++) to[i] = from[i] * size;
    for (size_t at = 0; shared && at < n && !aborted; at += CHUNK) {
      size_t some = std::min(CHUNK, n - at);
      memcpy(shared->slot(rank), from + at, some * sizeof(float));
      if (!meet()) return;
      for (size_t i = 0; i < some; i++) {
        float sum = 0;
        for (int r = 0; r < size; r++) sum += shared->slot(r)[i];
        to[at + i] = sum;
      }
      if (!meet()) return;
    }
  }

  // scatter leaves the sums of this rank's part, of n, at to, which may be that part of from.
  void scatter(float *to, const float *from, size_t n) {
    std::vector<float> other(n);
    for (int r = 0; r < size; r++) reduce(r == rank ? to : other.data(), from + r * n, n);
  }

  void gather(char *to, const char *from, size_t bytes) {
    for (int r = 0; !shared && r < size; r++) memmove(to + r * bytes, from, bytes);
    for (size_t at = 0; shared && at < bytes && !aborted; at += CHUNK) {
      size_t some = std::min(CHUNK, bytes - at);
      memcpy(shared->slot(rank), from + at, some);
      if (!meet()) return;
      for (int r = 0; r < size; r++) memcpy(to + r * bytes + at, shared->slot(r), some);
      if (!meet()) return;
    }
  }
};

// linger is an all-reduce that does not come to its end: until the test writes another number, or
// until the communicator is freed.
void linger(Comm *c, float *x) {
  float at = INSIDE;
  __atomic_store(x, &at, __ATOMIC_SEQ_CST);
  while (goes("slow") ? at == INSIDE : !c->freed) {
    usleep(1000);
    __atomic_load(x, &at, __ATOMIC_SEQ_CST);
  }
}

}  // namespace

extern "C" {

int ncclGetVersion(int *v) { return *v = goes("old") ? 21705 : VERSION, SUCCESS; }
const char *ncclGetErrorString(int code) { return code == INVALID_USAGE ? "invalid usage" : "unhandled system error"; }
const char *ncclGetLastError(Comm *) { return goes("duplicate") ? "Duplicate GPU detected" : ""; }

int ncclGetUniqueId(Id *id) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(id->internal, sizeof id->internal, "/emulated-nccl-%d-%ld-%ld", getpid(), long(now.tv_sec), now.tv_nsec);
  return id->internal[sizeof id->internal - 1] = 42, SUCCESS;
}

int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, Config *config) {
  if (id.internal[sizeof id.internal - 1] != 42 || rank >= size) return INVALID_ARGUMENT;
  if (config->magic != 0xcafebeef || config->blocking != 1 || config->cta_policy != INT_MIN) return INVALID_ARGUMENT;
  if (goes("duplicate")) return INVALID_USAGE;
  while (goes("never")) pause();
  *comm = new Comm{rank, size};
#ifndef ALONE
  if (!(*comm)->connect(id.internal)) return SYSTEM_ERROR;
#endif
  return SUCCESS;
}

int ncclCommGetAsyncError(Comm *c, int *state) {
  *state = c->alive()->looks++ < 2 ? IN_PROGRESS : goes("fails") || goes("stuck") ? SYSTEM_ERROR : SUCCESS;
  return SUCCESS;
}

// A communicator that was freed is kept: queued work, and graphs, may have it still.
int ncclCommAbort(Comm *c) {
  while (goes("stuck")) pause();
  if (c->alive()->finalizing) abort();
  return c->freed = c->aborted = true, SUCCESS;
}

int ncclCommFinalize(Comm *c) {
  c->alive()->finalizing = true;
  while (goes("alone")) pause();
  return c->finalizing = false, SUCCESS;
}

int ncclCommDestroy(Comm *c) { return c->alive()->freed = true, SUCCESS; }

int ncclAllReduce(const float *from, float *to, size_t n, int type, int op, Comm *c, void *stream) {
  if (type != FLOAT32 || op != SUM || goes("refuses")) return INVALID_USAGE;
  c->alive();
  if (goes("slow") || goes("waits")) linger(c, to);
  if (goes("waits")) return SYSTEM_ERROR;
  if (c->alive()) queue(stream, [=] { c->reduce(to, from, n); });
  return SUCCESS;
}

int ncclReduceScatter(const float *from, float *to, size_t n, int type, int op, Comm *c, void *stream) {
  if (type != FLOAT32 || op != SUM) return INVALID_USAGE;
  if (c->alive()) queue(stream, [=] { c->scatter(to, from, n); });
  return SUCCESS;
}

int ncclAllGather(const char *from, char *to, size_t n, int type, Comm *c, void *stream) {
  if (type != INT8) return INVALID_USAGE;
  if (c->alive()) queue(stream, [=] { c->gather(to, from, n); });
  return SUCCESS;
}

#ifdef REGISTERS
int ncclCommRegister(Comm *c, void *addr, size_t, void **handle) { return c->alive(), *handle = addr, SUCCESS; }
int ncclCommDeregister(Comm *c, void *handle) { return c->alive(), handle ? SUCCESS : INVALID_ARGUMENT; }

int ncclCommWindowRegister(Comm *c, void *addr, size_t, void **window, int flags) {
  c->alive();
  *window = goes("windowless") ? nullptr : goes("registered") ? addr : static_cast<char *>(addr) + 1;
  return flags == SYMMETRIC ? SUCCESS : INVALID_ARGUMENT;
}

int ncclCommWindowDeregister(Comm *c, void *window) { return c->alive(), window ? SUCCESS : INVALID_ARGUMENT; }
int ncclMemAlloc(void **addr, size_t bytes) { return (*addr = allocate(bytes)) ? SUCCESS : SYSTEM_ERROR; }
int ncclMemFree(void *addr) { return release(addr) ? SUCCESS : SYSTEM_ERROR; }
#endif

}  // extern "C"

#ifndef ALONE
const Functions nccl_functions = {
    FUNCTION(ncclGetVersion),     FUNCTION(ncclGetUniqueId),    FUNCTION(ncclCommInitRankConfig), FUNCTION(ncclCommGetAsyncError),
    FUNCTION(ncclCommAbort),      FUNCTION(ncclCommFinalize),   FUNCTION(ncclCommDestroy),        FUNCTION(ncclAllReduce),
    FUNCTION(ncclCommRegister),   FUNCTION(ncclCommDeregister), FUNCTION(ncclMemAlloc),           FUNCTION(ncclMemFree),
    FUNCTION(ncclReduceScatter),  FUNCTION(ncclAllGather),      FUNCTION(ncclCommWindowRegister), FUNCTION(ncclCommWindowDeregister),
    FUNCTION(ncclGetErrorString), FUNCTION(ncclGetLastError),
};
#endif
