// Memory of captures and of torch.cuda.MemPool, and its checkpoints.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "allocator.h"

namespace mlpool {

namespace {

// A checkpoint is the live blocks of a pool.
struct checkpoint : AllocatorState {
  Pool pool;
  std::unordered_map<void *, block> live;
};

} // namespace

loan::loan(DeviceIndex device, Pool pool, cudaStream_t stream, size_t bytes, std::shared_ptr<CUDAAllocator> from, std::atomic<size_t> &lent)
    : device(device), pool(pool), stream(stream), bytes(bytes), from(std::move(from)), lent(lent),
      base(this->from->raw_alloc_with_stream(bytes, stream)) {
  if (base) {
    lent += bytes;
    put(base, bytes);
  }
}

// ~loan frees the memory after all work of the device. It may be the end of the process.
loan::~loan() {
  if (!base) return;
  lent -= bytes;
  try {
    without_gil waits;
    c10::cuda::CUDAGuard guard(device);
    (void)cudaDeviceSynchronize(); // a later call reports what failed
    for (auto &w : waiting_)
      for (cudaEvent_t e : w.events) (void)cudaEventDestroy(e);
    from->raw_delete(base);
  } catch (const std::exception &e) {
    TORCH_WARN("mlpool: memory of a MemPool was not freed: ", e.what());
  }
}

void *loan::take(size_t size) {
  c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed); // a query ends no capture
  auto done = [this](waiting_block &w) {
    for (; !w.events.empty() && cudaEventQuery(w.events.back()) == cudaSuccess; w.events.pop_back()) (void)cudaEventDestroy(w.events.back());
    if (w.events.empty()) put(w.ptr, w.bytes);
    return w.events.empty();
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), done), waiting_.end());
  if (!waiting_.empty()) (void)cudaGetLastError(); // not ready
  auto found = free_.begin();
  while (found != free_.end() && found->second < size) ++found;
  if (found == free_.end()) return nullptr;
  auto [addr, length] = *found;
  free_.erase(found);
  if (length > size) free_[addr + size] = length - size;
  return reinterpret_cast<void *>(addr);
}

// give gives up a block whose users cannot say that they are done, such as one that is captured: it may be the end of the
// process.
void loan::give(void *ptr, size_t size) {
  auto found = users.find(ptr);
  if (found == users.end()) return put(ptr, size);
  auto on = std::move(found->second);
  users.erase(found);
  waiting_block w{ptr, size, {}};
  bool all = true;
  try {
    c10::cuda::CUDAGuard guard(device);
    for (cudaStream_t s : on) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      cudaEvent_t e = nullptr;
      all = all && cudaStreamIsCapturing(s, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone &&
            cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess;
      if (e) w.events.push_back(e);
      all = all && cudaEventRecord(e, s) == cudaSuccess;
    }
  } catch (const c10::Error &) {
    all = false;
  }
  if (all) return waiting_.push_back(std::move(w));
  for (cudaEvent_t e : w.events) (void)cudaEventDestroy(e);
  (void)cudaGetLastError();
}

void loan::put(void *ptr, size_t size) {
  auto addr = reinterpret_cast<size_t>(ptr);
  auto after = free_.lower_bound(addr);
  if (after != free_.end() && after->first == addr + size) {
    size += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == addr) std::prev(after)->second += size;
  else free_[addr] = size;
}

private_pool &allocator::pool_of(DeviceIndex device, Pool pool) {
  device_state &d = of(device);
  auto found = d.pools.find(pool);
  TORCH_CHECK(found != d.pools.end(), "mlpool: there is no memory pool with id (", pool.first, ", ", pool.second, ")");
  return found->second;
}

void allocator::check_pool(DeviceIndex device, Pool pool) {
  std::lock_guard<std::mutex> lock(of(device).mutex);
  (void)pool_of(device, pool);
}

// route_of returns the pool of the innermost route that takes a request, or kNoPool. Filters may call CUDA, and throw.
Pool allocator::route_of(DeviceIndex device, cudaStream_t stream) {
  device_state &d = of(device);
  std::shared_lock<std::shared_mutex> lock(d.filtering); // a filter is part of its graph, which may be destroyed after end
  for (auto r = d.routes.rbegin(); r != d.routes.rend(); ++r)
    if (r->filter(stream)) return r->pool;
  return kNoPool;
}

void allocator::beginAllocateToPool(DeviceIndex device, Pool pool, Filter filter) {
  check(mlpool_capture_begin(pool_at(device, true), id_of(pool), nullptr, nullptr));
  device_state &d = of(device);
  active_pool active = active_now<c10::cuda::MemPoolContext>(0);
  std::unique_lock<std::shared_mutex> filtering(d.filtering);
  std::lock_guard<std::mutex> lock(d.mutex);
  private_pool &p = d.pools[pool];
  p.uses++;
  if (active.id == pool && active.other && active.other != this) p.other = {std::shared_ptr<void>(), active.other};
  d.routes.push_back({pool, std::move(filter)});
  d.open++;
}

void allocator::endAllocateToPool(DeviceIndex device, Pool pool) {
  device_state &d = of(device);
  {
    std::unique_lock<std::shared_mutex> filtering(d.filtering);
    auto r = d.routes.rbegin();
    while (r != d.routes.rend() && r->pool != pool) ++r;
    TORCH_CHECK(r != d.routes.rend(), "endAllocatePool: not currently recording to mempool_id");
    d.routes.erase(std::next(r).base());
    d.open--;
  }
  without_gil waits;
  check(mlpool_capture_end(pool_at(device, true), id_of(pool)));
}

void allocator::retain(DeviceIndex device, Pool pool, std::shared_ptr<CUDAAllocator> other) {
  check(mlpool_capture_retain(pool_at(device, true), id_of(pool)));
  device_state &d = of(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  private_pool &p = d.pools[pool];
  p.uses++;
  if (other && other.get() != this) p.other = std::move(other);
}

// releasePool is called by destructors, so it does not throw for what ends a process.
void allocator::releasePool(DeviceIndex device, Pool pool) {
  if (forked) return;
  private_pool last; // its loans end without the lock
  {
    device_state &d = of(device);
    std::lock_guard<std::mutex> lock(d.mutex);
    private_pool &p = pool_of(device, pool);
    if (--p.uses == 0) {
      last = std::move(p);
      d.pools.erase(pool);
    }
  }
  without_gil waits;
  warn(mlpool_capture_release(pool_at(device, true), id_of(pool)));
}

int allocator::getPoolUseCount(DeviceIndex device, Pool pool) {
  device_state &d = of(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  auto found = d.pools.find(pool);
  return found == d.pools.end() ? 0 : found->second.uses;
}

void allocator::setUseOnOOM(DeviceIndex device, Pool pool, bool use) {
  std::lock_guard<std::mutex> lock(of(device).mutex);
  pool_of(device, pool).use_on_oom = use;
}

void allocator::setNoSplit(DeviceIndex device, Pool pool) {
  std::lock_guard<std::mutex> lock(of(device).mutex);
  pool_of(device, pool).no_split = true;
}

bool allocator::checkPoolLiveAllocations(DeviceIndex device, Pool pool, const std::unordered_set<void *> &expected) {
  check_pool(device, pool);
  auto live = blocks_.of(device, &pool);
  for (auto &[ptr, b] : live)
    if (!expected.count(ptr)) return false;
  return live.size() == expected.size();
}

std::shared_ptr<AllocatorState> allocator::getCheckpointState(DeviceIndex device, Pool pool) {
  check_pool(device, pool);
  auto state = std::make_shared<checkpoint>();
  state->pool = pool;
  state->live = blocks_.of(device, &pool);
  return state;
}

// setCheckpointPoolState makes exactly the blocks of a checkpoint live. PyTorch wants to hear that every block was freed,
// and every one of the checkpoint allocated, though the blocks of both stay as they are.
CheckpointDelta allocator::setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) {
  auto to = std::dynamic_pointer_cast<checkpoint>(state);
  TORCH_CHECK(to, "mlpool: the checkpoint is of another allocator");
  check_pool(device, to->pool);
  CheckpointDelta delta;
  auto stays = [](const block &a, const block &b) { return a.bytes == b.bytes && a.stream == b.stream && a.from == b.from; };
  auto live = blocks_.of(device, &to->pool);
  for (auto &[ptr, b] : live) {
    delta.ptrs_freed.push_back(ptr);
    auto then = to->live.find(ptr);
    if (then != to->live.end() && stays(b, then->second)) continue;
    if (auto taken = blocks_.take(ptr)) free(ptr, *taken);
  }
  Stack stack = stack_for(RecordContext::STATE);
  for (auto &[ptr, b] : to->live) {
    auto now = live.find(ptr);
    if (now != live.end() && stays(now->second, b)) continue;
    TORCH_CHECK(b.from == block::of_pool, "mlpool: a checkpoint of a MemPool with an allocator of its own cannot be restored");
    check(mlpool_capture_alloc_at(pool_at(device, true), id_of(to->pool), ptr, b.bytes, b.stream, kTag));
    block again = b;
    again.stack = stack;
    hold(ptr, again);
  }
  // An error above must destroy no owner of a block.
  for (auto &[ptr, b] : to->live) delta.dataptrs_allocd.emplace_back(ptr, ptr, raw_deleter(), c10::Device(c10::DeviceType::CUDA, device));
  return delta;
}

} // namespace mlpool
