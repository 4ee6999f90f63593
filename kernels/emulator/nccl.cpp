// The part of NCCL that kernels/nccl uses, between emulated GPUs: processes of one host
// that share memory. As on a GPU, an all-reduce is work of a stream, which ends when its communicator
// is aborted. With EMULATED_NCCL=stale a captured all-gather mistakes the marks of the last one for its
// own.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>

#include "cuda.h"
#include "cuda_runtime.h"

namespace {

enum Result { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5 };
enum { FLOAT32 = 7, SUM = 0 };
constexpr size_t CHUNK = 1 << 18;  // floats that are added at a time

struct Id {
  char internal[128];
};

struct Shared {
  std::atomic<int> come, round;
  float *slot(int rank) { return reinterpret_cast<float *>(this + 1) + size_t(rank) * CHUNK; }
};

struct Comm {
  int rank, size;
  std::string name;
  Shared *shared;
  std::atomic<bool> aborted = false;

  // meet waits for all ranks, unless the communicator is aborted; copy engines wait even then.
  bool meet(bool copying = false) {
    int round = shared->round;
    if (shared->come.fetch_add(1) + 1 == size) {
      shared->come = 0;
      shared->round++;
      return true;
    }
    while (shared->round == round) {
      if (aborted && !copying) return false;
      usleep(20);
    }
    return true;
  }

  void reduce(float *to, const float *from, size_t n) {
    for (size_t at = 0; at < n && !aborted; at += CHUNK) {
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

  // gather copies each rank's part of x to the others. A stale one does not wait.
  void gather(float *x, size_t n, bool stale) {
    for (size_t at = 0; at < n; at += CHUNK) {
      size_t some = std::min(CHUNK, n - at);
      memcpy(shared->slot(rank), x + rank * n + at, some * sizeof(float));
      if (!stale) meet(true);
      for (int r = 0; r < size; r++) memcpy(x + r * n + at, shared->slot(r), some * sizeof(float));
      if (!stale) meet(true);
    }
  }
};

int version(int *v) { return *v = 22809, SUCCESS; }

int unique_id(Id *id) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  snprintf(id->internal, sizeof id->internal, "/emulated-nccl-%d-%ld-%ld", getpid(), long(now.tv_sec), now.tv_nsec);
  return SUCCESS;
}

int init(Comm **comm, int size, Id id, int rank, void *) {
  Comm *c = new Comm{rank, size, id.internal, nullptr};
  size_t bytes = sizeof(Shared) + size_t(size) * CHUNK * sizeof(float);
  int file = shm_open(c->name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, off_t(bytes))) return SYSTEM_ERROR;
  void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (p == MAP_FAILED) return SYSTEM_ERROR;
  c->shared = static_cast<Shared *>(p);
  *comm = c;
  if (!c->meet()) return SYSTEM_ERROR;
  shm_unlink(c->name.c_str());  // each rank does; the memory lives until the last unmaps it
  return SUCCESS;
}

int state(Comm *, int *v) { return *v = SUCCESS, SUCCESS; }
int abort_comm(Comm *c) { return c->aborted = true, SUCCESS; }
int finalize(Comm *) { return SUCCESS; }
int destroy(Comm *) { return SUCCESS; }  // graphs may still use it

int all_reduce(const float *from, float *to, size_t n, int type, int op, Comm *c, cudaStream_t stream) {
  if (type != FLOAT32 || op != SUM) return INVALID_USAGE;
  emulator::queue(stream, [=] { c->reduce(to, from, n); });
  return SUCCESS;
}

int all_gather(const float *from, float *to, size_t n, int type, Comm *c, cudaStream_t stream) {
  if (type != FLOAT32 || from != to + c->rank * n) return INVALID_USAGE;
  cudaStreamCaptureStatus capture;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) return SYSTEM_ERROR;
  bool stale = capture == cudaStreamCaptureStatusActive && getenv("EMULATED_NCCL") && !strcmp(getenv("EMULATED_NCCL"), "stale");
  emulator::queue(stream, [=] { c->gather(to, n, stale); });
  return SUCCESS;
}

// Like calls of the runtime, these give the thread a context.
int mem_alloc(CUdeviceptr *addr, size_t bytes) { return emulator::give_context(), cuMemAlloc(addr, bytes) ? SYSTEM_ERROR : SUCCESS; }
int mem_free(CUdeviceptr addr) { return emulator::give_context(), cuMemFree(addr) ? SYSTEM_ERROR : SUCCESS; }
int window(Comm *, void *addr, size_t, void **w, int) { return *w = addr, SUCCESS; }
int end_window(Comm *, void *) { return SUCCESS; }

const char *error_string(int) { return "an error of the emulated NCCL"; }
const char *last_error(Comm *) { return ""; }

}  // namespace

void *nccl_function(const char *name) {
#define FUNCTION(name, f) {name, reinterpret_cast<void *>(f)}
  static const std::map<std::string, void *> functions = {
      FUNCTION("ncclGetVersion", version), FUNCTION("ncclGetUniqueId", unique_id), FUNCTION("ncclCommInitRankConfig", init),
      FUNCTION("ncclCommGetAsyncError", state), FUNCTION("ncclCommAbort", abort_comm), FUNCTION("ncclCommFinalize", finalize),
      FUNCTION("ncclCommDestroy", destroy), FUNCTION("ncclAllReduce", all_reduce), FUNCTION("ncclAllGather", all_gather),
      FUNCTION("ncclMemAlloc", mem_alloc), FUNCTION("ncclMemFree", mem_free),
      FUNCTION("ncclCommWindowRegister", window), FUNCTION("ncclCommWindowDeregister", end_window), FUNCTION("ncclGetErrorString", error_string),
      FUNCTION("ncclGetLastError", last_error),
  };
#undef FUNCTION
  auto at = functions.find(name);
  return at == functions.end() ? nullptr : at->second;
}
