// Statistics, snapshots and the history of calls.
#include <algorithm>
#include <stack>

#include "allocator.h"

namespace mlpool {

namespace {

constexpr size_t kSmall = 1 << 20; // bytes of the largest block that PyTorch counts as small
enum { kAll = 0, kSmallPool = 1, kLargePool = 2 };

thread_local std::stack<std::string> compile_contexts;
thread_local std::string user_metadata;

template <class Stat>
inline void add(Stat &stat, size_t amount, int sign) {
  if (sign > 0) stat.increase(amount);
  else stat.decrease(amount);
}

// set makes the current value of a statistic that nothing counts.
template <class Stat>
void set(Stat &stat, size_t now) {
  auto before = static_cast<size_t>(stat.current);
  if (now > before) stat.increase(now - before);
  if (now < before) stat.decrease(before - now);
}

template <class Stats>
void set_parts(Stats &stats, const size_t (&now)[2]) {
  set(stats[kAll], now[0] + now[1]);
  set(stats[kSmallPool], now[0]);
  set(stats[kLargePool], now[1]);
}

// active returns the statistics of blocks that are live, or wait for another stream after their free. reset is what waited
// when the accumulated ones began.
template <class Stats>
Stats active(Stats stats, const by_type &waiting, const by_type &reset) {
  for (int type : {kAll, kSmallPool, kLargePool}) {
    stats[type].current += waiting[type];
    stats[type].freed += reset[type] - waiting[type];
    stats[type].peak = std::max(stats[type].peak, stats[type].current);
  }
  return stats;
}

// keep_peaks sets kept to now, with the larger peaks.
template <class Stats>
void keep_peaks(Stats &kept, Stats now) {
  for (int type : {kAll, kSmallPool, kLargePool}) now[type].peak = std::max(now[type].peak, kept[type].peak);
  kept = now;
}

// entry makes a TraceEntry; versions differ in the arguments.
template <class Entry>
Entry entry(typename Entry::Action action, DeviceIndex device, size_t addr, size_t bytes, cudaStream_t stream, Pool pool, Stack stack) {
  auto time = c10::getApproximateTime();
  if constexpr (std::is_constructible_v<Entry, typename Entry::Action, DeviceIndex, size_t, size_t, cudaStream_t, Pool, decltype(time), Stack>)
    return Entry(action, device, addr, bytes, stream, pool, time, std::move(stack));
  else return Entry(action, device, addr, bytes, stream, time, std::move(stack));
}

// Fields that only some versions have.
template <class Entry>
auto set_texts(Entry &e, int) -> decltype(e.compile_context_ = "", void()) {
  if (!compile_contexts.empty()) e.compile_context_ = compile_contexts.top();
}
template <class Entry>
void set_texts(Entry &, long) {}
template <class Entry>
auto set_metadata(Entry &e, int) -> decltype(e.user_metadata_ = "", void()) {
  e.user_metadata_ = user_metadata;
}
template <class Entry>
void set_metadata(Entry &, long) {}

// A region is a mlpool_region.
struct region {
  mlpool_region_kind kind;
  int mapped;
  size_t addr, bytes;
  void *stream;
  Pool pool;
};

// see adds a region to a vector. No exception may cross the library.
void see(void *arg, const mlpool_region *r) noexcept {
  static_cast<std::vector<region> *>(arg)->push_back({r->kind, r->mapped, reinterpret_cast<size_t>(r->ptr), r->bytes, r->stream, pool_of_id(r->id)});
}

void append(SegmentInfo &s, const region &r, size_t bytes, const block *b) {
  BlockInfo i;
  i.size = bytes;
  i.allocated = b != nullptr;
  i.active = b || r.kind != MLPOOL_FREE; // live without a block: its free waits for the end of a capture
  if (b) {
    i.requested_size = b->requested;
    i.context_when_allocated = b->stack;
  }
  s.total_size += bytes;
  s.allocated_size += i.allocated ? bytes : 0;
  s.active_size += i.active ? bytes : 0;
  s.requested_size += i.requested_size;
  s.blocks.push_back(std::move(i));
}

// missing returns those of some ranges that others do not have, as they are.
ranges missing(const ranges &some, const ranges &others) {
  ranges rest;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(), std::inserter(rest, rest.end()));
  return rest;
}

// without returns the parts of some ranges that others do not have.
ranges without(const ranges &some, const ranges &others) {
  ranges rest;
  for (auto [from, bytes] : some) {
    size_t at = from, to = from + bytes;
    auto other = others.upper_bound(from);
    if (other != others.begin()) --other;
    for (; other != others.end() && other->first < to; ++other) {
      if (other->first > at) rest[at] = other->first - at;
      at = std::max(at, other->first + other->second);
    }
    if (at < to) rest[at] = to - at;
  }
  return rest;
}

} // namespace

void allocator::count(const block &b, int sign) {
  device_state &d = of(b.device);
  DeviceStats &s = d.stats;
  std::lock_guard<spinlock> lock(d.counting);
  for (int type : {static_cast<int>(kAll), static_cast<int>(b.bytes <= kSmall ? kSmallPool : kLargePool)}) {
    add(s.allocation[type], 1, sign);
    add(s.allocated_bytes[type], b.bytes, sign);
    add(s.requested_bytes[type], b.requested, sign);
  }
}

// report tells PyTorch's profiler of a block.
void allocator::report(void *ptr, const block &b, int sign) {
  if (!c10::memoryProfilingEnabled()) return;
  mlpool_stats now = {sizeof now};
  if (mlpool_pool *p = pool_at(b.device, false)) (void)mlpool_get_stats(p, &now); // a free must not throw
  int64_t allocated;
  {
    device_state &d = of(b.device);
    std::lock_guard<spinlock> lock(d.counting);
    allocated = d.stats.allocated_bytes[kAll].current;
  }
  c10::reportMemoryUsageToProfiler(ptr, sign * static_cast<int64_t>(b.bytes), allocated, now.reserved, c10::Device(c10::DeviceType::CUDA, b.device));
}

// segments_of returns the memory of a device as PyTorch's segments: ranges without a gap, whose live blocks are all small
// or all large. Memory that no small block has counts as large.
std::vector<SegmentInfo> allocator::segments_of(DeviceIndex device, const Pool *pool) {
  std::vector<SegmentInfo> all;
  std::vector<region> regions;
  mlpool_pool *p = pool_at(device, false);
  if (!p) return all;
  auto live = blocks_.of(device, nullptr);
  check(mlpool_visit(p, see, &regions));
  bool fresh = true, mapped = false;
  for (const region &r : regions) {
    if (r.kind == MLPOOL_SEGMENT) {
      fresh = true;
      mapped = r.mapped != 0;
      continue;
    }
    if (r.kind == MLPOOL_UNMAPPED || r.kind == MLPOOL_ELSEWHERE || (pool && r.pool != *pool)) continue;
    auto found = r.kind == MLPOOL_LIVE ? live.find(reinterpret_cast<void *>(r.addr)) : live.end();
    const block *b = found == live.end() ? nullptr : &found->second;
    size_t bytes = b ? std::min(b->bytes, r.bytes) : r.bytes;
    bool large = !b || bytes > kSmall;
    if (fresh || (mapped && (all.back().is_large != large || all.back().address + all.back().total_size != r.addr))) {
      SegmentInfo s;
      s.device = device;
      s.address = r.addr;
      s.stream = static_cast<decltype(s.stream)>(r.stream);
      s.is_large = large;
      s.is_expandable = mapped;
      s.owner_private_pool_id = r.pool;
      all.push_back(std::move(s));
      fresh = false;
    }
    append(all.back(), r, bytes, b);
    if (bytes < r.bytes) { // more than the request needed
      region rest = r;
      rest.addr += bytes, rest.bytes -= bytes, rest.kind = MLPOOL_FREE;
      SegmentInfo s = all.back();
      if (!large && mapped) {
        s.address = rest.addr, s.total_size = s.allocated_size = s.active_size = s.requested_size = 0;
        s.is_large = true, s.blocks.clear();
        all.push_back(std::move(s));
      }
      append(all.back(), rest, rest.bytes, nullptr);
    }
  }
  add_loans(all, live, device, pool);
  return all;
}

// add_loans adds the loans of the MemPools, each as a segment.
void allocator::add_loans(std::vector<SegmentInfo> &all, const std::unordered_map<void *, block> &live, DeviceIndex device, const Pool *pool) {
  std::map<std::shared_ptr<loan>, std::map<size_t, const block *>> loans;
  {
    device_state &d = of(device);
    std::lock_guard<std::mutex> lock(d.mutex);
    for (auto &[id, p] : d.pools)
      for (auto &l : p.loans) loans[l];
  }
  for (auto &[ptr, b] : live)
    if (b.loan) loans[b.loan][reinterpret_cast<size_t>(ptr)] = &b;
  for (auto &[l, blocks] : loans) {
    if (pool && l->pool != *pool) continue;
    SegmentInfo s;
    s.device = device;
    s.address = reinterpret_cast<size_t>(l->base);
    s.stream = static_cast<decltype(s.stream)>(l->stream);
    s.is_large = blocks.empty() || blocks.begin()->second->bytes > kSmall;
    s.owner_private_pool_id = l->pool;
    region free{};
    free.kind = MLPOOL_FREE;
    for (auto [addr, b] : blocks) {
      if (addr < s.address + s.total_size) continue; // it was freed, and another took its memory, while live was gathered
      if (size_t before = addr - s.address - s.total_size) append(s, free, before, nullptr);
      append(s, free, b->bytes, b);
    }
    if (size_t rest = l->bytes - s.total_size) append(s, free, rest, nullptr);
    all.push_back(std::move(s));
  }
}

// getDeviceStats adds what the pool counts to what count counts. Memory that no small block has counts as large.
DeviceStats allocator::getDeviceStats(DeviceIndex device) {
  mlpool_stats now = {sizeof now};
  device_state &d = of(device);
  std::vector<SegmentInfo> segments;
  if (mlpool_pool *p = pool_at(device, false)) {
    check(mlpool_get_stats(p, &now));
    if (d.look) segments = segments_of(device, nullptr);
  }
  size_t whole[2] = {}, split[2] = {}, split_bytes[2] = {}, small_segments = 0;
  by_type waiting{}, waiting_bytes{};
  bool look = false;
  for (const SegmentInfo &seg : segments) {
    look |= !seg.is_expandable;
    whole[seg.is_large] += !seg.is_expandable;
    small_segments += seg.is_large ? 0 : seg.total_size;
    for (const BlockInfo &b : seg.blocks) {
      bool free = !b.active && !seg.is_expandable && seg.blocks.size() > 1;
      split[seg.is_large] += free;
      split_bytes[seg.is_large] += free ? b.size : 0;
      if (!b.active || b.allocated) continue;
      for (int type : {kAll, seg.is_large ? kLargePool : kSmallPool}) waiting[type]++, waiting_bytes[type] += static_cast<int64_t>(b.size);
    }
  }
  std::lock_guard<spinlock> lock(d.counting);
  DeviceStats &s = d.stats;
  auto small = static_cast<size_t>(s.allocated_bytes[kSmallPool].current), reserved = static_cast<size_t>(now.reserved) + d.lent;
  set(s.reserved_bytes[kAll], reserved);
  s.reserved_bytes[kAll].peak = std::max(s.reserved_bytes[kAll].peak, now.reserved_peak);
  if (d.look && !segments.empty()) {
    d.look = look || d.shared || d.lent; // as they are now, not as segments were
    small = small_segments;
  }
  set(s.reserved_bytes[kSmallPool], std::min(small, reserved));
  set(s.reserved_bytes[kLargePool], reserved - std::min(small, reserved));
  set_parts(s.segment, whole);
  set_parts(s.inactive_split, split);
  set_parts(s.inactive_split_bytes, split_bytes);
  s.num_sync_all_streams = now.host_waits - d.reset.host_waits;
  s.num_device_alloc = now.driver_mallocs - d.reset.driver_mallocs;
  s.num_device_free = now.driver_frees - d.reset.driver_frees;
  s.max_split_size = -1;
  d.waiting = waiting, d.waiting_bytes = waiting_bytes;
  keep_peaks(s.active, active(s.allocation, waiting, d.reset_waiting));
  keep_peaks(s.active_bytes, active(s.allocated_bytes, waiting_bytes, d.reset_waiting_bytes));
  return s;
}

namespace {

template <class F>
void each_stat(DeviceStats &s, F f) {
  for (auto *stats : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes, &s.reserved_bytes, &s.active_bytes,
                      &s.inactive_split_bytes, &s.requested_bytes})
    for (auto &stat : *stats) f(stat);
}

} // namespace

void allocator::resetAccumulatedStats(DeviceIndex device) {
  mlpool_stats now = {sizeof now};
  if (mlpool_pool *p = pool_at(device, false)) check(mlpool_get_stats(p, &now));
  (void)getDeviceStats(device);
  device_state &d = of(device);
  std::lock_guard<spinlock> lock(d.counting);
  each_stat(d.stats, [](auto &stat) { stat.reset_accumulated(); });
  d.reset_waiting = d.waiting, d.reset_waiting_bytes = d.waiting_bytes;
  d.stats.num_alloc_retries = d.stats.num_ooms = 0;
  d.reset = now;
}

void allocator::resetPeakStats(DeviceIndex device) {
  if (mlpool_pool *p = pool_at(device, false)) check(mlpool_reset_peaks(p));
  (void)getDeviceStats(device);
  device_state &d = of(device);
  std::lock_guard<spinlock> lock(d.counting);
  each_stat(d.stats, [](auto &stat) { stat.reset_peak(); });
}

void allocator::cacheInfo(DeviceIndex device, size_t *largest) {
  if (!*largest) { // as PyTorch's own begins, for cuDNN, which takes no larger workspace
    c10::cuda::CUDAGuard guard(device);
    size_t total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
  for (const SegmentInfo &s : segments_of(device, nullptr))
    for (const BlockInfo &b : s.blocks)
      if (!b.active) *largest = std::max(*largest, b.size);
}

void *allocator::getBaseAllocation(void *ptr, size_t *bytes) {
  block b;
  TORCH_CHECK(blocks_.get(ptr, &b), "invalid device pointer: ", ptr);
  auto addr = reinterpret_cast<size_t>(ptr);
  for (const SegmentInfo &s : segments_of(b.device, nullptr))
    if (s.address <= addr && addr < s.address + s.total_size) {
      if (bytes) *bytes = s.total_size;
      return reinterpret_cast<void *>(s.address);
    }
  if (bytes) *bytes = b.bytes;
  return ptr;
}

SnapshotInfo allocator::snapshot(Pool pool, bool events) {
  SnapshotInfo all{};
  all.config_metadata.last_allocator_settings = "mlpool";
  auto unix_time = history_.clock.makeConverter();
  auto microseconds = [&](auto &time) { time.t_ = unix_time(time.approx_t_) / 1000; };
  for (int i = 0; i < std::min(count_, kDevices); i++) {
    auto device = static_cast<DeviceIndex>(i);
    size_t active = 0;
    for (SegmentInfo &s : segments_of(device, pool == kNoPool ? nullptr : &pool)) {
      active += s.active_size;
      all.segments.push_back(std::move(s));
    }
    auto &trace = all.device_traces.emplace_back();
    if (!events) continue;
    {
      std::lock_guard<std::mutex> lock(history_.mutex);
      for (const TraceEntry &e : history_.events[i]) trace.push_back(e);
    }
    for (TraceEntry &e : trace) microseconds(e.time_);
    if (history_.on) note(TraceEntry::SNAPSHOT, device, 0, active, nullptr, kNoPool, nullptr);
  }
  std::lock_guard<std::mutex> lock(history_.mutex);
  for (const auto &a : history_.annotations) all.external_annotations.push_back(a);
  for (auto &a : all.external_annotations) microseconds(a.time_);
  return all;
}

void allocator::record(bool on, CreateContextFn gather, size_t most, RecordContext stacks, bool clear, const Actions &skip) {
  TORCH_CHECK(stacks == RecordContext::NEVER || gather, "mlpool: recordHistory needs a function that gathers stacks");
  static const std::pair<const char *, TraceEntry::Action> names[] = {{"alloc", TraceEntry::ALLOC},
                                                                      {"free_requested", TraceEntry::FREE_REQUESTED},
                                                                      {"free_completed", TraceEntry::FREE_COMPLETED},
                                                                      {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
                                                                      {"segment_free", TraceEntry::SEGMENT_FREE},
                                                                      {"segment_map", TraceEntry::SEGMENT_MAP},
                                                                      {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
                                                                      {"snapshot", TraceEntry::SNAPSHOT},
                                                                      {"oom", TraceEntry::OOM}};
  std::unordered_set<int> skipped;
  for (const std::string &action : skip) {
    auto known = std::find_if(std::begin(names), std::end(names), [&](auto &n) { return action == n.first; });
    if (known != std::end(names)) skipped.insert(known->second);
  }
  if (on) begin_notes();
  std::lock_guard<std::mutex> lock(history_.mutex);
  history_.gather = on ? gather : nullptr;
  history_.most = std::max<size_t>(most, 1);
  history_.stacks = on ? stacks : RecordContext::NEVER;
  history_.skipped = std::move(skipped);
  if (!on || clear) {
    for (auto &events : history_.events) events.clear();
    history_.annotations.clear();
  }
  history_.on = on;
}

// begin_notes makes the segments of now those that events tell of from then on, unless somebody wants to hear of events
// already.
void allocator::begin_notes() {
  for (int i = 0; !notes() && i < std::min(count_, kDevices); i++) note_segments(static_cast<DeviceIndex>(i), nullptr, false);
}

// stack_for gathers a stack if recordHistory wants one for events of a level. No lock is held: it may take Python's.
Stack allocator::stack_for(RecordContext level) const {
  CreateContextFn gather = history_.gather;
  return gather && history_.stacks.load() >= level ? gather() : nullptr;
}

// note records an event and tells the trackers.
void allocator::note(TraceEntry::Action action, DeviceIndex device, size_t addr, size_t bytes, cudaStream_t stream, Pool pool, const Stack &stack) {
  bool with_stack = history_.stacks.load() >= RecordContext::ALLOC;
  auto e = entry<TraceEntry>(action, device, addr, bytes, stream, pool, with_stack ? stack : nullptr);
  set_texts(e, 0);
  set_metadata(e, 0);
  std::vector<AllocatorTraceTracker> trackers;
  {
    std::lock_guard<std::mutex> lock(observers_);
    trackers = trackers_;
  }
  for (auto &tracker : trackers) tracker(e);
  std::lock_guard<std::mutex> lock(history_.mutex);
  if (!history_.on || history_.skipped.count(action)) return;
  auto &events = history_.events[device];
  events.push_back(std::move(e));
  while (events.size() > history_.most) events.pop_front();
}

// note_segments records what the pool mapped and unmapped since its last call, and tells of it if tell is set.
void allocator::note_segments(DeviceIndex device, const Stack &stack, bool tell) {
  mlpool_pool *p = pool_at(device, false);
  mlpool_stats s = {sizeof s};
  if (!p) return;
  // Two visits at once could end in the order in which they did not begin.
  std::unique_lock<std::mutex> one(segments_);
  check(mlpool_get_stats(p, &s));
  int64_t changes = s.driver_mallocs + s.mappings - s.reserved; // a release lowers reserved alone
  if (std::exchange(history_.changes[device], changes) == changes) return;
  std::vector<region> regions;
  check(mlpool_visit(p, see, &regions));
  ranges now[2]; // of cudaMalloc, and mapped
  for (const region &r : regions) {
    if ((r.kind == MLPOOL_SEGMENT) != (r.mapped == 0) || r.kind == MLPOOL_UNMAPPED || r.mapped > 1) continue;
    ranges &of = now[r.mapped];
    auto last = of.empty() ? of.end() : std::prev(of.end());
    if (r.mapped && last != of.end() && last->first + last->second == r.addr) last->second += r.bytes;
    else of[r.addr] = r.bytes;
  }
  ranges before[2];
  for (int mapped : {0, 1}) before[mapped] = std::exchange(history_.segments[device][mapped], now[mapped]);
  one.unlock();
  if (!tell) return;
  for (int mapped : {0, 1}) {
    auto difference = mapped ? without : missing;
    for (auto [addr, bytes] : difference(before[mapped], now[mapped]))
      note(mapped ? TraceEntry::SEGMENT_UNMAP : TraceEntry::SEGMENT_FREE, device, addr, bytes, nullptr, kNoPool, stack);
    for (auto [addr, bytes] : difference(now[mapped], before[mapped]))
      note(mapped ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_ALLOC, device, addr, bytes, nullptr, kNoPool, stack);
  }
}

void allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &values) {
  if (!history_.on) return;
  typename decltype(history_.annotations)::value_type a(c10::cuda::current_device(), c10::getApproximateTime());
  for (const auto &[key, value] : values) a.recordUserMetadata(key, value);
  std::lock_guard<std::mutex> lock(history_.mutex);
  history_.annotations.push_back(std::move(a));
  while (history_.annotations.size() > history_.most) history_.annotations.pop_front();
}

void allocator::pushCompileContext(std::string &text) { compile_contexts.push(text); }

void allocator::popCompileContext() {
  if (!compile_contexts.empty()) compile_contexts.pop();
}

void allocator::setUserMetadata(const std::string &text) { user_metadata = text; }

std::string allocator::getUserMetadata() { return user_metadata; }

void allocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  std::lock_guard<std::mutex> lock(observers_);
  oom_observers_.push_back(std::move(observer));
}

void allocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) {
  begin_notes();
  std::lock_guard<std::mutex> lock(observers_);
  trackers_.push_back(std::move(tracker));
  tracked_ = true;
}

} // namespace mlpool
