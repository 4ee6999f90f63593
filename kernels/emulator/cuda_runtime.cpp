// CUDA's runtime (streams, events, graphs) and the memory and pools of its driver. It is one file, since
// all of them share the order of work.
//
// All streams are one: work is done in the order in which it was queued. So every wait finds its work
// done, and only a grid that was just launched may not have run yet.
#include "cuda_runtime.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct CUgraph_st;

struct CUevent_st {
  std::chrono::steady_clock::time_point at;
  std::weak_ptr<CUgraph_st> captured;  // with the work that it marks
};

struct CUgraph_st {
  std::vector<std::function<void()>> work;
  std::vector<void *> memory;
  bool spoilt = false;
  CUgraph_st() = default;
  CUgraph_st(CUgraph_st &&) = default;
  ~CUgraph_st();
};

struct CUgraphExec_st {
  CUgraph_st graph;
};

struct CUstream_st {
  std::shared_ptr<CUgraph_st> captured;  // during a capture
  std::weak_ptr<CUgraph_st> joined;      // of another stream that this one has waited for
};

struct CUmemPool_st {
  int device;
  std::multimap<size_t, void *> idle;
  uint64_t threshold = 0, reserved = 0, high = 0;
};

namespace {

constexpr size_t PAGE = 4096, CARD = size_t(32) << 30, MAX_FILLED = 64 << 20;

std::mutex one_at_a_time;
using Lock = std::lock_guard<std::mutex>;

struct Allocation {
  int device;
  size_t bytes;
  CUmemPool_st *pool;
  bool idle = false;
  int file = -1;  // of memory that has a handle
};
std::map<void *, Allocation> allocations;
size_t used[emulator::MAX_DEVICES];  // bytes

size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// allocate returns memory filled with NaN, up to a size, before a page without access.
void *allocate(size_t bytes, CUmemPool_st *pool) {
  int device = pool ? pool->device : emulator::device();
  if (!emulator::take(device, pages(bytes))) return nullptr;
  void *p = mmap(nullptr, pages(bytes) + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return emulator::give(device, pages(bytes)), nullptr;
  mprotect(static_cast<char *>(p) + pages(bytes), PAGE, PROT_NONE);
  if (bytes <= MAX_FILLED) memset(p, 0xff, pages(bytes));
  allocations[p] = {device, bytes, pool};
  return p;
}

void release(void *p) {
  size_t bytes = pages(allocations.at(p).bytes);
  munmap(p, bytes + PAGE);
  if (allocations.at(p).file >= 0) close(allocations.at(p).file);
  emulator::give(allocations.at(p).device, bytes);
  allocations.erase(p);
}

CUdeviceptr address(void *p) { return reinterpret_cast<CUdeviceptr>(p); }
void *pointer(CUdeviceptr addr) { return reinterpret_cast<void *>(addr); }

// capture_of returns the graph that the stream captures, or null.
std::shared_ptr<CUgraph_st> capture_of(cudaStream_t s) { return !s ? nullptr : s->captured ? s->captured : s->joined.lock(); }

// enqueue does work now, or adds it to the graph that the stream captures.
template <typename Work>
void enqueue(cudaStream_t s, Work work) {
  if (auto graph = capture_of(s)) graph->work.push_back(work);
  else work();
}

void trim(CUmemPool_st &pool, size_t keep) {
  while (pool.reserved > keep && !pool.idle.empty()) {
    auto largest = --pool.idle.end();
    pool.reserved -= largest->first;
    release(largest->second);
    pool.idle.erase(largest);
  }
}

std::set<CUmemPool_st *> pools;
size_t graph_memory, graph_memory_high;

constexpr unsigned MAX_THREADS = 1024, MAX_CLUSTER = 8;
constexpr size_t SHARED_UNASKED = 48 << 10;
std::map<const void *, size_t> allowed_shared;
thread_local cudaError_t last_error;

}  // namespace

CUgraph_st::~CUgraph_st() {
  for (void *p : memory) {
    graph_memory -= allocations.at(p).bytes;
    release(p);
  }
}

// setting returns the value of an environment variable, or that of an H200 if it is not set.
static int setting(const char *name, int h200) {
  const char *set = getenv(name);
  return set ? atoi(set) : h200;
}
static int sms() { return setting("EMULATOR_SMS", 132); }
static int compute_major() { return setting("EMULATOR_MAJOR", 9); }
int emulator::compiled_for() { return setting("EMULATOR_COMPILED_FOR", 100 * compute_major()); }
size_t emulator::max_shared() { return std::min(size_t(setting("EMULATOR_SHARED", int(MAX_SHARED))), MAX_SHARED); }

// loaded loads a kernel at its first use, and reports whether the card had memory for it.
static bool loaded(const void *kernel) {
  static std::set<const void *> kernels;
  if (CARD - used[emulator::device()] < PAGE && !kernels.count(kernel)) return false;
  return kernels.insert(kernel), true;
}

cudaError_t emulator::allow(const void *kernel, int bytes) {
  Lock lock(one_at_a_time);
  if (bytes < 0 || size_t(bytes) > max_shared()) return cudaErrorInvalidValue;
  give_context();
  if (!loaded(kernel)) return cudaErrorMemoryAllocation;
  allowed_shared[kernel] = bytes;
  return cudaSuccess;
}

static thread_local int current = -1;
int emulator::device() { return current; }
void emulator::set_device(int device) { current = device; }
int emulator::devices() { return std::clamp(setting("EMULATOR_DEVICES", 1), 1, MAX_DEVICES); }

std::unique_lock<std::mutex> emulator::lock() { return std::unique_lock(one_at_a_time); }

bool emulator::take(int device, size_t bytes) {
  if (bytes > CARD - used[device]) return false;
  used[device] += bytes;
  return true;
}

void emulator::give(int device, size_t bytes) { used[device] -= bytes; }

cudaError_t emulator::launch(cudaStream_t s, const void *kernel, Grid grid) {
  Lock lock(one_at_a_time);
  give_context();
  bool fits = grid.ctas && grid.threads && grid.threads <= MAX_THREADS && grid.cluster && grid.cluster <= MAX_CLUSTER;
  bool shared = grid.shared <= std::max(SHARED_UNASKED, allowed_shared[kernel]);
  if (!fits || !shared || grid.ctas % grid.cluster) return last_error = cudaErrorInvalidValue;
  if (!loaded(kernel)) return last_error = cudaErrorMemoryAllocation;
  enqueue(s, [grid] { submit(grid); });
  return cudaSuccess;
}

void emulator::queue(cudaStream_t s, std::function<void()> work) {
  Lock lock(one_at_a_time);
  enqueue(s, [work] {
    emulator::finish();
    work();
  });
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char *cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorDeviceUninitialized: return "cudaErrorDeviceUninitialized";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int *n) { return *n = emulator::devices(), cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  *p = {};
  snprintf(p->name, sizeof p->name, "emulated GPU");
  // Each visible GPU has its own UUID.
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  p->uuid.bytes[15] = char((visible ? atoi(visible) : 0) + device);
  p->totalGlobalMem = CARD, p->major = compute_major(), p->multiProcessorCount = sms();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int) {
  switch (a) {
    case cudaDevAttrMultiProcessorCount: *v = sms(); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = int(emulator::max_shared()); break;
    case cudaDevAttrComputeCapabilityMajor: *v = compute_major(); break;
    case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *v) { return *v = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulator::devices()) return cudaErrorInvalidDevice;
  return emulator::set_device(device), cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **f, unsigned long long, cudaDriverEntryPointQueryResult *result) {
  *f = cudadriver_symbol(name);
  *result = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, int type, cuuint32_t rank, void *array, const cuuint64_t *counts, const cuuint64_t *strides,
                                const cuuint32_t *tile, const cuuint32_t *steps, int, int swizzle, int, int) {
  bool tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, swizzled = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
  uint32_t bytes = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2 : 4;
  if (swizzled && tile[0] * bytes != 128) return CUDA_ERROR_NOT_SUPPORTED;  // narrower tiles would do
  bool valid =
      rank && rank <= 3 && reinterpret_cast<uintptr_t>(map) % 64 == 0 && reinterpret_cast<uintptr_t>(array) % 16 == 0 && tile[0] * bytes % 16 == 0;
  *map = {static_cast<char *>(array), rank, {1, 1, 1}, {1, 1, 1}, {}, tf32, swizzled, bytes};
  for (unsigned i = 0; i < rank && valid; i++) {
    map->counts[i] = counts[i], map->tile[i] = tile[i], map->strides[i] = i ? strides[i - 1] : bytes;
    valid = counts[i] && counts[i] <= uint64_t(1) << 32 && tile[i] && tile[i] <= 256 && steps[i] == 1 && (!i || strides[i - 1] % 16 == 0);
  }
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) { return *s = new CUstream_st, cudaSuccess; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int) { return cudaStreamCreateWithFlags(s, flags); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -1, cudaSuccess; }

cudaError_t cudaStreamDestroy(cudaStream_t s) {
  Lock lock(one_at_a_time);
  emulator::finish();
  delete s;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  Lock lock(one_at_a_time);
  if (s && s->captured) return s->captured->spoilt = true, cudaErrorStreamCaptureUnsupported;
  emulator::finish();
  for (CUmemPool_st *pool : pools) trim(*pool, pool->threshold);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { return *e = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  Lock lock(one_at_a_time);
  e->captured = capture_of(s);
  enqueue(s, [e] {
    emulator::finish();
    e->at = std::chrono::steady_clock::now();
  });
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned) { return cudaEventRecord(e, s); }

// Nothing to wait for: work is done in the order of the calls, whatever their streams.
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  Lock lock(one_at_a_time);
  if (s && !s->captured) s->joined = e->captured;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
  Lock lock(one_at_a_time);
  *status = capture_of(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return cudaSuccess;
}

CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes) {
  Lock lock(one_at_a_time);
  void *found = bytes ? allocate(bytes, nullptr) : nullptr;
  *p = address(found);
  return found ? CUDA_SUCCESS : bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree(CUdeviceptr addr) {
  Lock lock(one_at_a_time);
  if (!allocations.count(pointer(addr))) return CUDA_ERROR_INVALID_VALUE;
  emulator::finish();
  release(pointer(addr));
  return CUDA_SUCCESS;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
  emulator::give_context();
  CUdeviceptr addr = 0;
  CUresult code = cuMemAlloc(&addr, bytes);
  return *p = pointer(addr), cudaError_t(code);
}

cudaError_t cudaFree(void *p) { return emulator::give_context(), cudaError_t(cuMemFree(address(p))); }

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
  *p = bytes && bytes <= PTRDIFF_MAX - PAGE ? std::aligned_alloc(PAGE, pages(bytes)) : nullptr;
  return *p ? cudaSuccess : bytes ? cudaErrorMemoryAllocation : cudaErrorInvalidValue;
}
cudaError_t cudaFreeHost(void *p) { return free(p), cudaSuccess; }

namespace {
struct Handle {
  pid_t process;
  int file;
  size_t bytes;
};
std::map<void *, size_t> opened;
}  // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *p) {
  Lock lock(one_at_a_time);
  if (!allocations.count(p) || allocations.at(p).pool) return cudaErrorInvalidValue;
  Allocation &a = allocations.at(p);
  size_t bytes = pages(a.bytes);
  if (a.file < 0) {
    emulator::finish();
    a.file = memfd_create("emulated shared memory", MFD_CLOEXEC);
    if (a.file < 0 || pwrite(a.file, p, bytes, 0) != ssize_t(bytes)) return cudaErrorMemoryAllocation;
    if (mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a.file, 0) == MAP_FAILED) return cudaErrorMemoryAllocation;
  }
  Handle h = {getpid(), a.file, bytes};
  return memcpy(handle, &h, sizeof h), cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t handle, unsigned) {
  Lock lock(one_at_a_time);
  Handle h;
  memcpy(&h, &handle, sizeof h);
  if (h.process == getpid() || getenv("EMULATOR_WITHOUT_PEERS")) return cudaErrorInvalidValue;
  int file = open(("/proc/" + std::to_string(h.process) + "/fd/" + std::to_string(h.file)).c_str(), O_RDWR);
  if (file < 0) return cudaErrorInvalidValue;
  *p = mmap(nullptr, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (*p == MAP_FAILED) return cudaErrorMemoryAllocation;
  return opened[*p] = h.bytes, cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *p) {
  Lock lock(one_at_a_time);
  if (!opened.count(p)) return cudaErrorInvalidValue;
  emulator::finish();
  munmap(p, opened.at(p));
  return opened.erase(p), cudaSuccess;
}

CUresult cuMemGetInfo(size_t *available, size_t *total) {
  Lock lock(one_at_a_time);
  *available = CARD - used[emulator::device()], *total = CARD;
  return CUDA_SUCCESS;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
  emulator::queue(s, [=] { memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s) {
  emulator::queue(s, [=] { memset(to, value, bytes); });
  return cudaSuccess;
}

CUresult cuMemPoolCreate(CUmemoryPool *p, const CUmemPoolProps *props) {
  Lock lock(one_at_a_time);
  bool on_device = props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!on_device || props->location.id >= emulator::devices()) return CUDA_ERROR_INVALID_VALUE;
  pools.insert(*p = new CUmemPool_st{props->location.id});
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool p) {
  Lock lock(one_at_a_time);
  emulator::finish();
  trim(*p, 0);
  pools.erase(p);
  delete p;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *v) {
  Lock lock(one_at_a_time);
  *static_cast<uint64_t *>(v) = a == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? p->reserved : p->high;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *v) {
  Lock lock(one_at_a_time);
  if (a == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) p->threshold = *static_cast<uint64_t *>(v);
  if (a == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) p->high = p->reserved;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep) {
  Lock lock(one_at_a_time);
  emulator::finish();
  trim(*p, keep);
  return CUDA_SUCCESS;
}

// allocate_async is cuMemAllocFromPoolAsync, or nullptr.
static void *allocate_async(size_t bytes, CUmemoryPool pool, CUstream s) {
  if (s && s->captured) {
    void *p = allocate(bytes, nullptr);
    if (!p) return nullptr;
    s->captured->memory.push_back(p);
    graph_memory += bytes;
    graph_memory_high = std::max(graph_memory_high, graph_memory);
    return p;
  }
  auto after = pool->idle.upper_bound(pages(bytes));
  if (after != pool->idle.begin() && (--after)->first == pages(bytes)) {  // the range freed last
    void *p = after->second;
    pool->idle.erase(after);
    allocations.at(p).idle = false;
    return p;
  }
  void *p = allocate(bytes, pool);
  if (!p) {
    emulator::finish();
    trim(*pool, 0);
    p = allocate(bytes, pool);
  }
  if (!p) return nullptr;
  pool->reserved += pages(bytes);
  pool->high = std::max(pool->high, pool->reserved);
  return p;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *addr, size_t bytes, CUmemoryPool pool, CUstream s) {
  Lock lock(one_at_a_time);
  *addr = address(allocate_async(bytes, pool, s));
  return *addr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFreeAsync(CUdeviceptr addr, CUstream) {
  Lock lock(one_at_a_time);
  void *p = pointer(addr);
  auto at = allocations.find(p);
  if (at == allocations.end() || at->second.idle) return CUDA_ERROR_INVALID_VALUE;
  // The memory of a graph goes with the graph.
  if (CUmemPool_st *pool = at->second.pool) {
    pool->idle.emplace(pages(at->second.bytes), p);
    at->second.idle = true;
  }
  return CUDA_SUCCESS;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  Lock lock(one_at_a_time);
  s->captured = std::make_shared<CUgraph_st>();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
  Lock lock(one_at_a_time);
  *g = nullptr;
  if (!s->captured) return cudaErrorIllegalState;
  std::shared_ptr<CUgraph_st> graph = std::move(s->captured);
  if (graph->spoilt) return cudaErrorStreamCaptureInvalidated;
  *g = new CUgraph_st(std::move(*graph));
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long) {
  *e = new CUgraphExec_st{std::move(*g)};
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  Lock lock(one_at_a_time);
  delete g;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t) {
  Lock lock(one_at_a_time);
  for (auto &work : e->graph.work) work();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
  Lock lock(one_at_a_time);
  emulator::finish();
  delete e;
  return cudaSuccess;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute a, void *v) {
  Lock lock(one_at_a_time);
  *static_cast<uint64_t *>(v) = a == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graph_memory : graph_memory_high;
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice, CUgraphMem_attribute, void *) {
  Lock lock(one_at_a_time);
  graph_memory_high = graph_memory;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice) { return CUDA_SUCCESS; }

const Functions memory_functions = {
    {"cuMemAlloc_v2", emulator::with_context<cuMemAlloc>()},
    {"cuMemFree_v2", emulator::with_context<cuMemFree>()},
    {"cuMemGetInfo_v2", emulator::with_context<cuMemGetInfo>()},
    {"cuMemPoolCreate", emulator::with_context<cuMemPoolCreate>()},
    FUNCTION(cuMemPoolDestroy),
    FUNCTION(cuMemPoolSetAttribute),
    FUNCTION(cuMemPoolGetAttribute),
    FUNCTION(cuMemPoolTrimTo),
    {"cuMemAllocFromPoolAsync", emulator::with_context<cuMemAllocFromPoolAsync>()},
    {"cuMemFreeAsync", emulator::with_context<cuMemFreeAsync>()},
    FUNCTION(cuDeviceGetGraphMemAttribute),
    FUNCTION(cuDeviceSetGraphMemAttribute),
    FUNCTION(cuDeviceGraphMemTrim),
};
