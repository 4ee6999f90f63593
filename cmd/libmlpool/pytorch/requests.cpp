// Requests, frees, and what installs the allocator.
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/PyInterpreter.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <pthread.h>

#include <cstring>
#if __has_include(<c10/cuda/CUDAAllocatorConfig.h>)
#include <c10/cuda/CUDAAllocatorConfig.h>
#endif

#include "allocator.h"

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocatorConfig; // which some version may lack
}

namespace mlpool {

allocator *instance;
std::atomic<bool> forked{false};

namespace {

constexpr size_t kUnit = 512;        // of the bytes of a block, as PyTorch counts them
constexpr size_t kPage = 2 << 20;    // of a block of a MemPool that is not split
constexpr size_t kMost = size_t{1} << 60;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t power_below(size_t n) { return size_t{1} << (63 - __builtin_clzll(n)); }

// divisions returns the setting roundup_power2_divisions for a request.
template <class Config>
auto divisions(size_t bytes, int) -> decltype(Config::roundup_power2_divisions(bytes)) {
  return Config::roundup_power2_divisions(bytes);
}
template <class Config>
size_t divisions(size_t, long) {
  return 0;
}

// block_bytes returns the bytes of a block for a request, as PyTorch rounds them.
size_t block_bytes(size_t bytes) {
  size_t n = bytes > kUnit ? divisions<CUDAAllocatorConfig>(bytes, 0) : 0;
  return round_up(bytes, n > 1 && bytes > kUnit * n ? power_below(bytes) / power_below(n) : kUnit);
}

// delete_block is the deleter of all tensors.
void delete_block(void *ptr) { instance->raw_delete(ptr); }

std::string size_text(size_t bytes) {
  const char *units[] = {"bytes", "KiB", "MiB", "GiB"};
  int unit = 0;
  double n = static_cast<double>(bytes);
  for (; n > 1024 && unit < 3; unit++) n /= 1024;
  char text[32];
  snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", n, units[unit]);
  return text;
}

// trace tells PyTorch's sanitizer of streams, if it is on, of a block.
template <class F>
void trace(F f) {
  if (const c10::impl::PyInterpreter *interpreter = c10::impl::GPUTrace::get_trace()) f(*interpreter);
}

} // namespace

table::slot &table::shard::find(void *ptr) {
  size_t place = hash(ptr) >> 32;
  while (at(place).ptr && at(place).ptr != ptr) place++;
  return at(place);
}

void table::put(void *ptr, const block &b) {
  shard &s = of(ptr);
  std::lock_guard<spinlock> lock(s.mutex);
  if (4 * (s.count + 1) > 3 * s.slots.size()) {
    std::vector<slot> before(2 * s.slots.size());
    before.swap(s.slots);
    for (slot &from : before)
      if (from.ptr) s.find(from.ptr) = std::move(from);
  }
  slot &to = s.find(ptr);
  s.count += !to.ptr;
  to = {ptr, b};
}

std::optional<block> table::take(void *ptr) {
  shard &s = of(ptr);
  std::lock_guard<spinlock> lock(s.mutex);
  slot &found = s.find(ptr);
  if (!found.ptr) return std::nullopt;
  std::optional<block> b(std::move(found.b));
  // Those after it that would not be found otherwise move.
  size_t hole = &found - s.slots.data(), mask = s.slots.size() - 1;
  for (size_t i = hole + 1; s.at(i).ptr; i++) {
    if (((i - (hash(s.at(i).ptr) >> 32)) & mask) < i - hole) continue;
    s.at(hole) = std::move(s.at(i));
    hole = i;
  }
  s.at(hole).ptr = nullptr;
  s.count--;
  return b;
}

bool table::get(void *ptr, block *b) {
  shard &s = of(ptr);
  std::lock_guard<spinlock> lock(s.mutex);
  slot &found = s.find(ptr);
  if (found.ptr) *b = found.b;
  return found.ptr;
}

std::unordered_map<void *, block> table::of(DeviceIndex device, const Pool *pool) {
  std::unordered_map<void *, block> all;
  for (shard &s : shards_) {
    std::lock_guard<spinlock> lock(s.mutex);
    for (auto &[ptr, b] : s.slots)
      if (ptr && b.device == device && (!pool || b.pool == *pool)) all.emplace(ptr, b);
  }
  return all;
}

void check(int code) { TORCH_CHECK(code == MLPOOL_OK, mlpool_error()); }

void warn(int code) {
  if (code != MLPOOL_OK && code != MLPOOL_ERROR_DRIVER) TORCH_WARN(mlpool_error());
}

// pool_at returns the pool of a device. Without create it never throws, and returns nullptr if there is none.
mlpool_pool *pool_at(DeviceIndex device, bool create) {
  mlpool_pool *pool = nullptr;
  check(create ? mlpool_torch_pool(device, &pool) : mlpool_torch_find(device, &pool));
  return pool;
}

uint64_t id_of(Pool pool) { return pool.second ? 2 * pool.second : 2 * pool.first + 1; }

Pool pool_of_id(uint64_t id) { return id == 0 ? kNoPool : id % 2 ? Pool(id / 2, 0) : Pool(0, id / 2); }

device_state &allocator::of(DeviceIndex device) {
  TORCH_CHECK(0 <= device && device < kDevices, "mlpool: device ", static_cast<int>(device), ": there can be ", kDevices);
  return devices_[device];
}

void allocator::init(int devices) {
  count_ = devices;
  initialized_ = true;
}

DataPtr allocator::allocate(size_t bytes) {
  DeviceIndex device = c10::cuda::current_device();
  void *ptr = bytes ? malloc(bytes, device, c10::cuda::getCurrentCUDAStream(device)) : nullptr;
  return {ptr, ptr, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr allocator::raw_deleter() const { return &delete_block; }

void allocator::copy_data(void *to, const void *from, size_t bytes) const { C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice)); }

void *allocator::raw_alloc(size_t bytes) { return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(c10::cuda::current_device())); }

void *allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return bytes ? malloc(bytes, c10::cuda::current_device(), stream) : nullptr;
}

void *allocator::malloc(size_t bytes, DeviceIndex device, cudaStream_t stream) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kMost, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  Stack stack = stack_for(RecordContext::STATE);
  device_state &d = of(device);
  block b;
  b.bytes = block_bytes(bytes);
  b.requested = bytes;
  b.device = device;
  b.stream = stream;
  b.stack = stack;
  std::shared_ptr<CUDAAllocator> other;
  if (d.open && (b.pool = route_of(device, stream)) != kNoPool) {
    std::lock_guard<std::mutex> lock(d.mutex);
    const private_pool &p = pool_of(device, b.pool);
    other = p.other;
    if (p.no_split) b.bytes = round_up(b.bytes, kPage);
  }
  void *ptr = nullptr;
  int code = request(&b, other, &ptr);
  if (code == MLPOOL_ERROR_OUT_OF_MEMORY && make_room()) {
    {
      std::lock_guard<spinlock> lock(d.counting);
      d.stats.num_alloc_retries++;
    }
    code = request(&b, other, &ptr);
  }
  if (code == MLPOOL_ERROR_OUT_OF_MEMORY) {
    std::string advice = b.from == block::of_pool ? mlpool_error() : "";
    if (b.pool == kNoPool) code = borrow(&b, &ptr);
    if (code == MLPOOL_ERROR_OUT_OF_MEMORY) out_of_memory(b, stack, advice);
  }
  check(code);
  if (notes()) note_segments(device, stack);
  hold(ptr, b);
  trace([&](const auto &python) { python->trace_gpu_memory_allocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(ptr)); });
  return ptr;
}

// hold makes ptr a block that PyTorch holds. Memory of the driver itself counts nowhere.
void allocator::hold(void *ptr, const block &b) {
  blocks_.put(ptr, b);
  if (b.from == block::of_driver) return;
  count(b, 1);
  if (notes()) note(TraceEntry::ALLOC, b.device, reinterpret_cast<size_t>(ptr), b.requested, b.stream, b.pool, b.stack);
  report(ptr, b, 1);
}

// request gets the memory of b, from another allocator if its MemPool has one.
int allocator::request(block *b, const std::shared_ptr<CUDAAllocator> &other, void **ptr) {
  if (other) return lend(b, other, ptr);
  if (!enabled_) {
    b->from = block::of_driver;
    cudaError_t e = cudaMalloc(ptr, b->bytes);
    if (e != cudaErrorMemoryAllocation) C10_CUDA_CHECK(e);
    else (void)cudaGetLastError();
    return e == cudaSuccess ? MLPOOL_OK : MLPOOL_ERROR_OUT_OF_MEMORY;
  }
  mlpool_pool *pool = pool_at(b->device, true);
  if (b->pool != kNoPool) return mlpool_capture_alloc(pool, id_of(b->pool), ptr, b->bytes, b->stream, kTag);
  return mlpool_torch_request(pool, ptr, b->bytes, b->stream);
}

// lend gets memory of another allocator: of an earlier loan on that stream, or of a new one of whole pages.
int allocator::lend(block *b, const std::shared_ptr<CUDAAllocator> &other, void **ptr) {
  b->from = block::of_loan;
  device_state &d = of(b->device);
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    for (auto &l : pool_of(b->device, b->pool).loans) {
      if (l->stream != b->stream || !(*ptr = l->take(b->bytes))) continue;
      b->loan = l;
      return MLPOOL_OK;
    }
  }
  auto l = std::make_shared<mlpool::loan>(b->device, b->pool, b->stream, round_up(b->bytes, kPage), other, d.lent);
  if (!l->base) return MLPOOL_ERROR_OUT_OF_MEMORY;
  d.look = true;
  std::lock_guard<std::mutex> lock(d.mutex);
  pool_of(b->device, b->pool).loans.push_back(l);
  *ptr = l->take(b->bytes);
  b->loan = l;
  return MLPOOL_OK;
}

// borrow gets memory of a MemPool that lends its own when memory is short.
int allocator::borrow(block *b, void **ptr) {
  device_state &d = of(b->device);
  std::vector<Pool> lent;
  {
    std::lock_guard<std::mutex> lock(d.mutex);
    for (auto &[pool, p] : d.pools)
      if (p.use_on_oom && !p.other) lent.push_back(pool);
  }
  for (Pool pool : lent) {
    b->pool = pool;
    int code = request(b, nullptr, ptr);
    if (code != MLPOOL_ERROR_OUT_OF_MEMORY && code != MLPOOL_ERROR_INVALID) return code; // invalid: the MemPool has ended
  }
  b->pool = kNoPool;
  return MLPOOL_ERROR_OUT_OF_MEMORY;
}

// make_room lets others free memory, and reports whether they did.
bool allocator::make_room() {
  bool freed = false;
  for (const auto &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  return freed;
}

void allocator::out_of_memory(const block &b, const Stack &stack, std::string advice) {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  mlpool_stats s = {sizeof s};
  check(mlpool_get_stats(pool_at(b.device, true), &s));
  double fraction;
  {
    device_state &d = of(b.device);
    std::lock_guard<spinlock> lock(d.counting);
    d.stats.num_ooms++;
    fraction = d.fraction;
  }
  size_t allowed = static_cast<size_t>(fraction * static_cast<double>(total));
  note(TraceEntry::OOM, b.device, free, b.bytes, b.stream, b.pool, stack);
  c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(b.bytes), s.allocated, s.reserved, c10::Device(c10::DeviceType::CUDA, b.device));
  std::vector<OutOfMemoryObserver> observers;
  {
    std::lock_guard<std::mutex> lock(observers_);
    observers = oom_observers_;
  }
  for (auto &observer : observers) observer(b.device, b.bytes, fraction < 1 ? allowed : total, free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size_text(b.bytes), ". GPU ", static_cast<int>(b.device),
                   " has a total capacity of ", size_text(total), " of which ", size_text(free), " is free. ",
                   fraction < 1 ? size_text(allowed) + " allowed; " : "", "Of the allocated memory ", size_text(s.allocated),
                   " is allocated by PyTorch, and ", size_text(s.reserved - s.allocated), " is reserved by PyTorch but unallocated. ", advice);
}

void allocator::raw_delete(void *ptr) {
  if (!ptr || forked) return;
  std::optional<block> b = blocks_.take(ptr);
  TORCH_CHECK(b, "invalid device pointer: ", ptr);
  free(ptr, *b);
}

// free frees a block that the table no longer has.
void allocator::free(void *ptr, const block &b) {
  trace([&](const auto &python) { python->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, reinterpret_cast<uintptr_t>(ptr)); });
  if (b.from == block::of_driver) return (void)cudaFree(ptr); // it may be the end of the process
  count(b, -1);
  if (notes()) {
    Stack stack = stack_for(RecordContext::ALL);
    if (!stack) stack = b.stack;
    for (auto action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED})
      note(action, b.device, reinterpret_cast<size_t>(ptr), b.requested, b.stream, b.pool, stack);
  }
  report(ptr, b, -1);
  if (b.from == block::of_loan) {
    std::lock_guard<std::mutex> lock(of(b.device).mutex);
    return b.loan->give(ptr, b.bytes);
  }
  std::optional<without_gil> waits;
  if (b.pool != kNoPool && getPoolUseCount(b.device, b.pool) == 0) waits.emplace(); // for the device, if b is the last block
  warn(mlpool_free(pool_at(b.device, false), ptr, b.stream)); // at the end of the process the driver frees nothing
}

void allocator::recordStream(const DataPtr &ptr, CUDAStream stream) {
  if (!ptr.get() || ptr.get_deleter() != &delete_block) return; // memory of another process
  block b;
  TORCH_CHECK(blocks_.get(ptr.get(), &b), "No allocated block can be found");
  if (b.stream == stream.stream() || b.from == block::of_driver) return;
  device_state &d = of(b.device);
  if (b.from == block::of_loan) {
    std::lock_guard<std::mutex> lock(d.mutex);
    b.loan->users[ptr.get()].insert(stream.stream());
    return;
  }
  {
    std::lock_guard<spinlock> lock(d.counting);
    d.shared = d.look = true;
  }
  check(mlpool_record_stream(pool_at(b.device, true), ptr.get(), stream.stream()));
}

void allocator::emptyCache(Pool pool) {
  if (forked) return;
  for (int i = 0; i < kDevices; i++) {
    mlpool_pool *p = pool_at(static_cast<DeviceIndex>(i), false);
    if (!p) continue;
    if (pool == kNoPool) {
      check(mlpool_trim(p, 0));
    } else { // a destructor calls
      without_gil waits;
      warn(mlpool_capture_trim(p, id_of(pool)));
    }
    if (notes()) note_segments(static_cast<DeviceIndex>(i), stack_for(RecordContext::ALL));
  }
}

double allocator::getMemoryFraction(DeviceIndex device) {
  device_state &d = of(device);
  std::lock_guard<spinlock> lock(d.counting);
  return d.fraction;
}

void allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
  c10::cuda::CUDAGuard guard(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  size_t limit = fraction < 1 ? std::max(static_cast<size_t>(fraction * static_cast<double>(total)), kPage) : 0;
  check(mlpool_torch_limit(pool_at(device, true), limit));
  device_state &d = of(device);
  std::lock_guard<spinlock> lock(d.counting);
  d.fraction = fraction;
}

void allocator::enablePeerAccess(DeviceIndex device, DeviceIndex owner) {
  c10::cuda::CUDAGuard guard(device);
  cudaError_t e = cudaDeviceEnablePeerAccess(owner, 0);
  if (e == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
  else C10_CUDA_CHECK(e);
  int code = mlpool_add_peer(pool_at(owner, true), device);
  if (code != MLPOOL_ERROR_UNSUPPORTED) check(code); // a device that maps no pages has memory of cudaMalloc
}

cudaError_t allocator::memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream, bool p2p) {
  if (p2p || to_device == from_device) return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

// Memory of other processes. A handle is that of mlpool_export, or for a segment of cudaMalloc, which segments=malloc and
// other allocators have, that of CUDA. PyTorch's own allocator puts two bytes before the latter.

ShareableHandle allocator::shareIpcHandle(void *ptr) {
  block b;
  std::string why;
  if (blocks_.get(ptr, &b) && b.from == block::of_pool) {
    mlpool_ipc_handle handle;
    int code = mlpool_export(pool_at(b.device, true), ptr, &handle);
    if (code == MLPOOL_OK) return {0, std::string(reinterpret_cast<char *>(handle.bytes), sizeof handle.bytes)};
    if (code != MLPOOL_ERROR_UNSUPPORTED) check(code);
    why = mlpool_error();
  }
  size_t bytes = 0;
  char *base = static_cast<char *>(getBaseAllocation(ptr, &bytes));
  cudaIpcMemHandle_t handle;
  cudaError_t e = cudaIpcGetMemHandle(&handle, base);
  if (e != cudaSuccess) (void)cudaGetLastError();
  TORCH_CHECK(e == cudaSuccess, why.empty() ? cudaGetErrorString(e) : why);
  return {static_cast<char *>(ptr) - base, std::string(reinterpret_cast<char *>(&handle), sizeof handle)};
}

std::shared_ptr<void> allocator::getIpcDevPtr(std::string text) {
  static auto &mutex = *new std::mutex; // tensors may be freed after everything else
  static auto &open = *new std::unordered_map<std::string, std::weak_ptr<void>>; // CUDA opens a handle once
  std::lock_guard<std::mutex> lock(mutex);
  auto known = open.find(text);
  if (known != open.end())
    if (auto memory = known->second.lock()) return memory;
  DeviceIndex device = c10::cuda::current_device();
  void *ptr = nullptr;
  mlpool_ipc_handle ours;
  cudaIpcMemHandle_t handle;
  bool is_ours = text.size() == sizeof ours;
  if (is_ours) {
    size_t bytes = 0;
    std::memcpy(&ours, text.data(), sizeof ours);
    check(mlpool_import(device, &ours, &ptr, &bytes));
  } else {
    size_t before = text.size() == sizeof handle + 2 && text[1] == 'c' ? 2 : 0;
    TORCH_CHECK(text.size() == before + sizeof handle,
                "mlpool: a CUDA tensor comes from a process with PyTorch's expandable segments: call mlpool.install() there too");
    std::memcpy(&handle, text.data() + before, sizeof handle);
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&ptr, handle, cudaIpcMemLazyEnablePeerAccess));
  }
  std::shared_ptr<void> memory(ptr, [device, is_ours](void *p) {
    if (forked) return;
    c10::cuda::CUDAGuard guard(device);
    if (is_ours) {
      without_gil waits;
      (void)cudaDeviceSynchronize(); // of other streams; a later call reports what failed
      warn(mlpool_close_received(p));
    } else {
      (void)cudaIpcCloseMemHandle(p); // it may be the end of the process
    }
  });
  for (auto it = open.begin(); it != open.end();) it = it->second.expired() ? open.erase(it) : std::next(it);
  open[std::move(text)] = memory;
  return memory;
}

} // namespace mlpool

// make_current makes an allocator PyTorch's. Tensors may be freed after everything else, so it is never destroyed.
static void make_current(mlpool::CUDAAllocator *a) {
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(std::shared_ptr<mlpool::CUDAAllocator>(a, [](auto *) {}));
  c10::SetAllocator(c10::DeviceType::CUDA, a, 1); // torch.accelerator reads it; PyTorch's own has priority 0
}

// mlpool_torch_install makes the pool PyTorch's allocator. It returns null, or an error.
extern "C" __attribute__((visibility("default"))) const char *mlpool_torch_install() {
  static std::string error;
  try {
    static mlpool::CUDAAllocator *const native = c10::cuda::CUDACachingAllocator::get();
    pthread_atfork(nullptr, nullptr, [] {
      mlpool::forked = true;
      if (!mlpool::instance->initialized()) make_current(native); // CUDA works in this child, but Go does not
    });
    mlpool::instance = new mlpool::allocator;
    make_current(mlpool::instance);
    return nullptr;
  } catch (const std::exception &e) {
    error = e.what();
    return error.c_str();
  }
}
