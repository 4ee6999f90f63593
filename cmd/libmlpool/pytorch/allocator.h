// SPDX-FileCopyrightText: 2026 The mlpool authors
// SPDX-License-Identifier: MIT
// The pool as PyTorch's allocator of CUDA memory: a CUDAAllocator as PyTorch's own, over mlpool.h. It is compiled
// against the PyTorch that it serves, 2.5 or later.
//
// A signature that differs between versions of PyTorch is there in each of its forms, none of them marked override:
// the form that the version has overrides, and the others are functions that nobody calls. So a version whose interface
// has grown fails to compile, and the plugin interface serves instead.
#ifndef MLPOOL_TORCH_ALLOCATOR_H
#define MLPOOL_TORCH_ALLOCATOR_H

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <sched.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "mlpool.h"

extern "C" int mlpool_torch_pool(int device, mlpool_pool **pool);
extern "C" int mlpool_torch_find(int device, mlpool_pool **pool);
extern "C" int mlpool_torch_limit(mlpool_pool *pool, size_t bytes);
extern "C" int mlpool_torch_request(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream);

// Of Python, if the process has it, declared as Python.h does.
struct _ts;
extern "C" int Py_IsInitialized() __attribute__((weak));
extern "C" _ts *PyThreadState_GetUnchecked() __attribute__((weak)); // from Python 3.13 on
extern "C" _ts *_PyThreadState_UncheckedGet() __attribute__((weak));
extern "C" _ts *PyGILState_GetThisThreadState() __attribute__((weak));
extern "C" _ts *PyEval_SaveThread() __attribute__((weak));
extern "C" void PyEval_RestoreThread(_ts *) __attribute__((weak));

namespace c10::cuda {
struct MemPoolContext; // of 2.6 alone
}

namespace mlpool {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using c10::cuda::CUDAStream;
using Stack = std::shared_ptr<c10::GatheredContext>;
using Pool = c10::cuda::MempoolId_t; // of captures, or of a torch.cuda.MemPool
using Filter = std::function<bool(cudaStream_t)>;
using Actions = std::vector<std::string>;

constexpr int kDevices = 64;
constexpr Pool kNoPool = {0, 0};
constexpr const char *kTag = "torch"; // of all blocks of captures and MemPools

using ranges = std::map<size_t, size_t>; // bytes by address
using by_type = std::array<int64_t, 3>;  // of blocks: all, small ones and large ones

// A loan is memory that a MemPool got at once from the allocator that it was made with. The MemPool and all blocks hold it;
// the last one gives it back.
struct loan {
  loan(DeviceIndex device, Pool pool, cudaStream_t stream, size_t bytes, std::shared_ptr<CUDAAllocator> from, std::atomic<size_t> &lent);
  ~loan();
  void *take(size_t bytes); // returns null if no free range is as long
  void give(void *ptr, size_t bytes); // puts a block that was freed, once its users are done

  const DeviceIndex device;
  const Pool pool;
  const cudaStream_t stream;
  const size_t bytes;
  const std::shared_ptr<CUDAAllocator> from;
  std::atomic<size_t> &lent; // bytes of all loans of the device
  void *const base;
  std::unordered_map<void *, std::set<cudaStream_t>> users; // that recordStream named, beside stream; the device's mutex is for it

 private:
  void put(void *ptr, size_t bytes);

  struct waiting_block {
    void *ptr;
    size_t bytes;
    std::vector<cudaEvent_t> events; // of its users
  };
  std::vector<waiting_block> waiting_;
  ranges free_;
};

// A block is memory that PyTorch holds.
struct block {
  block() {} // not constexpr: GCC would clear the block by a slow memset

  size_t bytes = 0; // of which the program requested fewer
  size_t requested = 0;
  DeviceIndex device = 0;
  cudaStream_t stream = nullptr;
  Pool pool = kNoPool;
  enum { of_pool, of_driver, of_loan } from = of_pool;
  std::shared_ptr<mlpool::loan> loan;
  Stack stack;
};

// A spinlock is a mutex that threads rarely hold at the same time, and not for long.
class spinlock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire))
      for (int spins = 0; held_.load(std::memory_order_relaxed);)
        if (++spins > 100) sched_yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

// While a without_gil lives, other threads run Python: it is for a call that waits for the device, which may wait for
// what such a thread has yet to queue. Destructors of Python's objects call with its lock held.
class without_gil {
 public:
  without_gil() : state_(held() ? PyEval_SaveThread() : nullptr) {}
  ~without_gil() {
    if (state_) PyEval_RestoreThread(state_);
  }
  without_gil(const without_gil &) = delete;

 private:
  // held reports whether this thread runs Python. PyGILState_Check always returns 1 once there was a second interpreter.
  static bool held() {
    if (!Py_IsInitialized || !Py_IsInitialized()) return false;
    _ts *now = PyThreadState_GetUnchecked ? PyThreadState_GetUnchecked() : _PyThreadState_UncheckedGet ? _PyThreadState_UncheckedGet() : nullptr;
    return now && now == PyGILState_GetThisThreadState();
  }

  _ts *const state_;
};

// A table finds blocks by address.
class table {
 public:
  void put(void *ptr, const block &b);
  std::optional<block> take(void *ptr); // removes it
  bool get(void *ptr, block *b);
  std::unordered_map<void *, block> of(DeviceIndex device, const Pool *pool); // all pools if it is null

 private:
  struct slot {
    void *ptr = nullptr; // null: the slot is empty
    block b;
  };
  // A shard has the blocks whose addresses have one hash, by linear probing. At least a quarter of the slots are empty.
  struct alignas(128) shard {
    spinlock mutex;
    size_t count = 0;
    std::vector<slot> slots = std::vector<slot>(8);

    slot &at(size_t place) { return slots[place & (slots.size() - 1)]; }
    slot &find(void *ptr); // or the empty slot where it belongs
  };
  static size_t hash(void *ptr) { return (reinterpret_cast<uintptr_t>(ptr) >> 8) * 0x9E3779B97F4A7C15u; }
  shard &of(void *ptr) { return shards_[hash(ptr) >> 58]; }
  std::array<shard, 64> shards_;
};

// What is known of captures with one id, or of one MemPool.
struct private_pool {
  int uses = 0;
  std::shared_ptr<CUDAAllocator> other; // that the MemPool was made with
  std::vector<std::shared_ptr<loan>> loans;
  bool use_on_oom = false, no_split = false;
};

// An open capture, or a part of the program that uses a MemPool.
struct route {
  Pool pool;
  Filter filter;
};

struct device_state {
  spinlock counting; // of stats and fraction
  DeviceStats stats{};
  by_type waiting{}, waiting_bytes{}; // blocks that waited for other streams after their free at the last look
  mlpool_stats reset{}; // the pool's when resetAccumulatedStats was called
  by_type reset_waiting{}, reset_waiting_bytes{}; // likewise
  std::mutex mutex;
  std::map<Pool, private_pool> pools;
  std::shared_mutex filtering; // of routes, taken before mutex
  std::vector<route> routes;
  std::atomic<int> open{0};   // routes
  std::atomic<size_t> lent{0}; // bytes of loans
  double fraction = 1;
  std::atomic<bool> shared{false}, look{true}; // recordStream was called; statistics need the regions
};

// What recordHistory asked for.
struct history {
  std::mutex mutex;
  c10::ApproximateClockToUnixTimeConverter clock; // the earlier it begins, the more exact it is
  std::atomic<bool> on{false};
  std::atomic<RecordContext> stacks{RecordContext::NEVER};
  std::atomic<CreateContextFn> gather{nullptr};
  size_t most = 1;
  std::unordered_set<int> skipped; // actions
  std::array<std::deque<TraceEntry>, kDevices> events;
  std::array<std::array<ranges, 2>, kDevices> segments; // of cudaMalloc, and mapped, as far as events say
  std::array<int64_t, kDevices> changes{};
  std::deque<decltype(SnapshotInfo::external_annotations)::value_type> annotations;
};

// active_now returns the MemPool that the thread uses, of a version that does not pass it.
struct active_pool {
  Pool id = kNoPool;
  CUDAAllocator *other = nullptr;
};
template <class Context>
auto active_now(int) -> decltype(Context::getActiveMemPool()->id(), active_pool()) {
  auto *pool = Context::getActiveMemPool();
  return pool ? active_pool{pool->id(), pool->allocator()} : active_pool();
}
template <class Context>
active_pool active_now(long) {
  return {};
}

// later has the functions that only later versions of PyTorch declare with types that earlier ones lack.
template <class Base, class = void>
class later : public Base {};

template <class Base>
class later<Base, std::void_t<decltype(std::declval<Base &>().getExpandableSegmentSizes(DeviceIndex()))>> : public Base {
 public:
  decltype(std::declval<Base &>().getExpandableSegmentSizes(DeviceIndex())) getExpandableSegmentSizes(DeviceIndex) override { return {}; }
};

class allocator final : public later<CUDAAllocator> {
 public:
  // Requests and frees.
  DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void *to, const void *from, size_t bytes) const override;
  void *raw_alloc(size_t bytes) override;
  void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void *ptr) override;
  void recordStream(const DataPtr &ptr, CUDAStream stream) override;
  void emptyCache() { emptyCache(active_now<c10::cuda::MemPoolContext>(0).id); }
  void emptyCache(Pool pool);

  // The object.
  std::string name() override { return "native"; } // what programs that need more than the plugin interface ask for
  void init(int devices) override;
  bool initialized() override { return initialized_; }
  void enable(bool on) override { enabled_ = on; }
  bool isEnabled() const override { return enabled_; }

  // Limits, and other devices and processes.
  double getMemoryFraction(DeviceIndex device);
  void setMemoryFraction(double fraction, DeviceIndex device) override;
  void *getBaseAllocation(void *ptr, size_t *bytes) override;
  ShareableHandle shareIpcHandle(void *ptr) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;
  void enablePeerAccess(DeviceIndex device, DeviceIndex owner) override;
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream, bool p2p) override;

  // Captures, MemPools and checkpoints.
  void beginAllocateToPool(DeviceIndex device, Pool pool, Filter filter) override;
  void endAllocateToPool(DeviceIndex device, Pool pool) override;
  void releasePool(DeviceIndex device, Pool pool) override;
  int getPoolUseCount(DeviceIndex device, Pool pool);
  void ensureExistsAndIncrefPool(DeviceIndex device, Pool pool) { retain(device, pool, nullptr); }
  void createOrIncrefPool(DeviceIndex device, Pool pool, CUDAAllocator *other) { retain(device, pool, {std::shared_ptr<void>(), other}); }
  void createOrIncrefPool(DeviceIndex device, Pool pool, std::shared_ptr<CUDAAllocator> other) { retain(device, pool, std::move(other)); }
  void setUseOnOOM(DeviceIndex device, Pool pool) { setUseOnOOM(device, pool, true); }
  void setUseOnOOM(DeviceIndex device, Pool pool, bool use);
  void setNoSplit(DeviceIndex device, Pool pool);
  bool checkPoolLiveAllocations(DeviceIndex device, Pool pool, const std::unordered_set<void *> &expected) override;
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, Pool pool) override;
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override;

  // Reports.
  DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  void cacheInfo(DeviceIndex device, size_t *largest) override;
  SnapshotInfo snapshot() { return snapshot(active_now<c10::cuda::MemPoolContext>(0).id, true); }
  SnapshotInfo snapshot(Pool pool) { return snapshot(pool, true); }
  SnapshotInfo snapshot(Pool pool, bool events);
  bool isHistoryEnabled() override { return history_.on; }
  void recordHistory(bool on, CreateContextFn gather, size_t most, RecordContext stacks) { record(on, gather, most, stacks, false, {}); }
  void recordHistory(bool on, CreateContextFn gather, size_t most, RecordContext stacks, bool clear) { record(on, gather, most, stacks, clear, {}); }
  void recordHistory(bool on, CreateContextFn gather, size_t most, RecordContext stacks, bool clear, const Actions &skip) {
    record(on, gather, most, stacks, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &values) override;
  void pushCompileContext(std::string &text);
  void popCompileContext();
  void setUserMetadata(const std::string &text);
  std::string getUserMetadata();
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override;

 private:
  void *malloc(size_t bytes, DeviceIndex device, cudaStream_t stream);
  int request(block *b, const std::shared_ptr<CUDAAllocator> &other, void **ptr);
  void hold(void *ptr, const block &b);
  void free(void *ptr, const block &b);
  bool make_room();
  [[noreturn]] void out_of_memory(const block &b, const Stack &stack, std::string advice);
  Pool route_of(DeviceIndex device, cudaStream_t stream);
  void retain(DeviceIndex device, Pool pool, std::shared_ptr<CUDAAllocator> other);
  private_pool &pool_of(DeviceIndex device, Pool pool); // whose mutex is held
  void check_pool(DeviceIndex device, Pool pool);
  int lend(block *b, const std::shared_ptr<CUDAAllocator> &other, void **ptr);
  int borrow(block *b, void **ptr);
  void record(bool on, CreateContextFn gather, size_t most, RecordContext stacks, bool clear, const Actions &skip);
  Stack stack_for(RecordContext level) const;
  bool notes() const { return history_.on || tracked_; } // somebody wants to hear of events
  void note(TraceEntry::Action action, DeviceIndex device, size_t addr, size_t bytes, cudaStream_t stream, Pool pool, const Stack &stack);
  void begin_notes();
  void note_segments(DeviceIndex device, const Stack &stack, bool tell = true);
  std::vector<SegmentInfo> segments_of(DeviceIndex device, const Pool *pool); // all pools if it is null
  void add_loans(std::vector<SegmentInfo> &all, const std::unordered_map<void *, block> &live, DeviceIndex device, const Pool *pool);
  void count(const block &b, int sign);
  void report(void *ptr, const block &b, int sign);
  device_state &of(DeviceIndex device);

  std::array<device_state, kDevices> devices_;
  table blocks_;
  history history_;
  std::mutex observers_; // of the two lists
  std::mutex segments_;  // held while the pool's segments are compared with those before
  std::vector<OutOfMemoryObserver> oom_observers_;
  std::vector<AllocatorTraceTracker> trackers_;
  std::atomic<bool> tracked_{false};
  std::atomic<bool> initialized_{false}, enabled_{!getenv("PYTORCH_NO_CUDA_MEMORY_CACHING")};
  int count_ = 0; // of devices
};

// check throws the error of a call of mlpool.h. warn prints it, unless it comes from a driver that ended.
void check(int code);
void warn(int code);
// pool_at returns the pool of a device, or null if it has none and create is not set.
mlpool_pool *pool_at(DeviceIndex device, bool create);
// id_of makes one number of the two of a pool, of which one is 0; pool_of_id undoes it.
uint64_t id_of(Pool pool);
Pool pool_of_id(uint64_t id);

extern allocator *instance;
// forked says that this is a child of fork: the driver frees nothing there, and a lock may be held for good.
extern std::atomic<bool> forked;

} // namespace mlpool
#endif
