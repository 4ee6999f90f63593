// Asynchronous work of a thread: copies by cp.async and by TMA, with their mbarriers, and wgmmas. And the
// shared memory of other CTAs of a cluster.
#include <sched.h>

#include <algorithm>
#include <array>

#include "fibers.h"

namespace emulator {

static void copy(const Copy &c) {
  if (c.to % c.size || c.to + c.size > self->cta->grid->grid.shared) fail("copied to a wrong address in shared memory");
  if (c.bytes && reinterpret_cast<uintptr_t>(c.from) % c.size) fail("copied from an address that is not aligned");
  char *to = shared_memory() + c.to;
  memset(to, 0, c.size);
  if (c.bytes) memcpy(to, c.from, c.bytes);
}

void copy(uint32_t to, const void *from, int size, int bytes) {
  Copy c = {to, from, size, bytes};
  if (self->cta->copy_at_once) copy(c);
  else self->copies.add(c);
}

void cp_async_commit_group() { self->copies.commit(); }
void cp_async_wait_group(int left) {
  progress = true, yield();  // other threads may write to shared memory before and after this thread's copies
  self->copies.wait(left, [](const Copy &c) { copy(c); });
}

static Mbarrier &mbarrier_at(Cta &b, uint32_t address) {
  auto found = b.mbarriers.find(address);
  if (found == b.mbarriers.end()) fail("uses an mbarrier that was not initialized");
  return found->second;
}

void mbarrier_init_shared_cta_b64(uint32_t address, int calls) {
  at_shared<uint64_t>(address, 8);
  if (calls < 1) fail("initializes an mbarrier without calls");
  if (!self->cta->mbarriers.try_emplace(address, Mbarrier{calls}).second) fail("initializes an mbarrier twice");
}

void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t address, int bytes) {
  Mbarrier &a = mbarrier_at(*self->cta, address);
  if (!a.missing) fail("expects copies before the last ones have arrived");
  a.missing--, a.bytes += bytes, progress = true;
  a.check();
}

void mbarrier_arrive_shared_cta_b64(uint32_t address) { mbarrier_arrive_expect_tx_shared_cta_b64(address, 0); }

void fence_mbarrier_init_release_cluster() {
  for (auto &[address, a] : self->cta->mbarriers) a.fenced = true;
}

static void land(Cta &b, Mbarrier &a, const Mbarrier::Coming &c) {
  c.land(b);
  a.bytes -= c.bytes, progress = true;
  a.check();
}

// come performs a copy to a CTA, at once or later.
static void come(Cta &b, uint32_t address, Mbarrier::Coming c) {
  Mbarrier &a = mbarrier_at(b, address);
  if (!a.fenced) fail("has a copy signal an mbarrier that no fence.mbarrier_init made visible");
  if (b.copy_at_once) land(b, a, c);
  else a.under_way.push_back(std::move(c));
}

// rounded returns the nearest number of 11 bits, ties to even, or f if it is not finite.
static float rounded(float f) {
  constexpr uint32_t LOW = (1u << 13) - 1;
  uint32_t u = bits<uint32_t>(f);
  return std::isfinite(f) ? bits<float>((u + LOW / 2 + (u >> 13 & 1)) & ~LOW) : f;
}

constexpr uint32_t CHUNK = 16;  // bytes that lie together, in the tensor and swizzled

// each calls f(first element, begin, end, place in the tile) for a tile's chunks, in bytes: those from begin
// to end are inside the tensor.
template <typename F>
static void each(const CUtensorMap &map, const int (&at)[3], F f) {
  auto inside = [&](int d, int64_t i) { return i >= 0 && uint64_t(i) < map.counts[d]; };
  uint32_t place = 0;
  for (uint32_t z = 0; z < map.tile[2]; z++)
    for (uint32_t y = 0; y < map.tile[1]; y++) {
      int64_t row = int64_t(at[1]) + y, matrix = int64_t(at[2]) + z, from = int64_t(at[0]) * map.bytes;
      int64_t end = inside(1, row) && inside(2, matrix) ? int64_t(map.counts[0]) * map.bytes : 0;
      char *first = map.array + row * int64_t(map.strides[1]) + matrix * int64_t(map.strides[2]);
      for (uint32_t x = 0; x < map.tile[0] * map.bytes; x += CHUNK, from += CHUNK, place += CHUNK)
        f(first + from, std::clamp<int64_t>(-from, 0, CHUNK), std::clamp<int64_t>(end - from, 0, CHUNK), place);
    }
}

// load copies a tile to the shared memory of a CTA.
static void load(Cta &b, uint32_t to, const CUtensorMap &map, const int (&at)[3]) {
  char *async = async_memory(b);
  each(map, at, [&](const char *from, int64_t begin, int64_t end, uint32_t place) {
    alignas(CHUNK) char chunk[CHUNK] = {};
    if (end - begin == CHUNK) memcpy(chunk, from, CHUNK);
    else if (begin < end) memcpy(chunk + begin, from + begin, size_t(end - begin));
    if (map.tf32)
      for (uint32_t i = 0; i < CHUNK; i += sizeof(float)) {
        float v;
        memcpy(&v, chunk + i, sizeof v);
        v = rounded(v);
        memcpy(chunk + i, &v, sizeof v);
      }
    place = map.swizzled ? swizzled(to + place) : to + place;
    for (char *memory : {b.shared, async}) memcpy(memory + place, chunk, CHUNK);
  });
}

void copy_tile(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t address, unsigned ctas) {
  size_t bytes = map->bytes * size_t(map->tile[0]) * map->tile[1] * map->tile[2];
  if (to % (map->swizzled ? 1024 : 128) || to + bytes > shared_bytes()) fail("loaded a tile to a wrong address in shared memory");
  for (unsigned rank = 0; rank < cluster_size(); rank++)
    if (ctas >> rank & 1) come(other(rank), address, {int64_t(bytes), [to, map = *map, x, y, z](Cta &b) { load(b, to, map, {x, y, z}); }});
}

// A Remote is 16 bytes of shared memory in a CTA of this cluster, at an address of mapa.
struct Remote {
  Cta &cta;
  uint32_t place;

  static constexpr uint32_t ADDRESS = (1u << RANK_SHIFT) - 1;
  static constexpr size_t BYTES = 16;
  explicit Remote(uint32_t to) : cta(other(to >> RANK_SHIFT ? (to >> RANK_SHIFT) - 1 : cluster_rank())), place(to & ADDRESS) {
    if (place % BYTES || place + BYTES > shared_bytes()) fail("used a wrong address in shared memory of its cluster");
  }
};

void st_shared_cluster_v4_f32(uint32_t to, float a, float b, float c, float d) {
  Remote r(to);
  std::array<float, 4> v = {a, b, c, d};
  memcpy(r.cta.shared + r.place, v.data(), sizeof v);
}

void ld_shared_cluster_v4_f32(float &a, float &b, float &c, float &d, uint32_t from) {
  Remote r(from);
  float v[4];
  memcpy(v, r.cta.shared + r.place, sizeof v);
  a = v[0], b = v[1], c = v[2], d = v[3];
}

void st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(uint32_t to, float a, float b, float c, float d, uint32_t mbarrier) {
  if (to >> RANK_SHIFT != mbarrier >> RANK_SHIFT) fail("writes to one CTA and signals another");
  Remote r(to);
  std::array<float, 4> v = {a, b, c, d};
  come(r.cta, mbarrier & Remote::ADDRESS,
       {int64_t(Remote::BYTES), [place = r.place, v](Cta &cta) { memcpy(cta.shared + place, v.data(), sizeof v); }});
}

void mbarrier_try_wait_parity_shared_cta_b64_bra(uint32_t address, int parity) {
  Cta &b = *self->cta;
  Mbarrier &a = mbarrier_at(b, address);
  wait_until([&] {
    for (const Mbarrier::Coming &c : std::exchange(a.under_way, {})) land(b, a, c);
    return int(a.phase % 2) != parity;
  });
}

// store does a store by TMA, now or later.
static void store(std::function<void()> work) {
  if (self->cta->copy_at_once) std::exchange(work, nullptr)();
  self->stores.add(work);
}

static void write_tile(const CUtensorMap &map, int x, int y, uint32_t from, bool add) {
  if (map.bytes != sizeof(float)) fail("writes a tile of elements that are not floats, which is not emulated");
  if (from % (map.swizzled ? 1024 : 128)) fail("writes a tile from an address in shared memory that is not aligned");
  if (from + sizeof(float) * map.tile[0] * map.tile[1] > shared_bytes()) fail("writes a tile from past its shared memory");
  store([=] {
    const char *async = async_memory(*self->cta);
    each(map, {x, y, 0}, [&](char *to, int64_t begin, int64_t end, uint32_t place) {
      place += from;
      if (map.swizzled) place = swizzled(place);
      if (!add && begin < end) end = CHUNK;  // an H200 stores whole chunks, also past the end of a line
      for (int64_t i = begin; i < end; i += int64_t(sizeof(float))) {
        float v, old;
        memcpy(&v, async + place + i, sizeof v), memcpy(&old, to + i, sizeof old);
        if (add) v += old;
        memcpy(to + i, &v, sizeof v);
      }
    });
  });
}

void cp_reduce_async_bulk_tensor_2d_global_shared_cta_add_tile_bulk_group(const CUtensorMap *map, int x, int y, uint32_t from) {
  write_tile(*map, x, y, from, true);
}

void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const CUtensorMap *map, int x, int y, uint32_t from) {
  write_tile(*map, x, y, from, false);
}

// check_bulk checks the arguments of a copy of bytes.
static void check_bulk(uint32_t shared, const void *global, int bytes) {
  if (shared % 16 || reinterpret_cast<uintptr_t>(global) % 16 || bytes <= 0 || bytes % 16) fail("copies what is not whole chunks of 16 bytes");
  if (shared + size_t(bytes) > shared_bytes()) fail("copies past its shared memory");
}

void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const void *from, int bytes, uint32_t mbarrier) {
  check_bulk(to, from, bytes);
  if (self->cta->acquired) fail("reads by TMA behind a flag without fence.proxy.async.global");
  come(*self->cta, mbarrier, {int64_t(bytes), [=](Cta &b) {
                                for (char *memory : {b.shared, async_memory(b)}) memcpy(memory + to, from, size_t(bytes));
                              }});
}

void cp_async_bulk_global_shared_cta_bulk_group(void *to, uint32_t from, int bytes) {
  check_bulk(from, to, bytes);
  store([=] { memcpy(to, async_memory(*self->cta) + from, size_t(bytes)); });
}

void ld_acquire_sys_global_u32(uint32_t &v, const uint32_t *p) {
  progress = true, yield(), sched_yield();  // another thread may write it, or another process
  v = __atomic_load_n(p, __ATOMIC_ACQUIRE);
  if (!std::exchange(self->acquired, true)) self->cta->acquired++;
}

void st_release_sys_global_u32(uint32_t *p, uint32_t v) {
  if (self->cta->grid->storing) fail("releases a flag before stores by TMA are complete, or without fence.proxy.async.global behind them");
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

void fence_proxy_async_global() {
  if (std::exchange(self->acquired, false)) self->cta->acquired--;
  if (std::exchange(self->complete, false)) self->storing = false, self->cta->grid->storing--;
}

void cp_async_bulk_commit_group() {
  self->stores.commit(), self->complete = false;
  if (!std::exchange(self->storing, true)) self->cta->grid->storing++;
}
void cp_async_bulk_wait_group_read_0() {
  progress = true, yield();
  self->stores.wait(0, [](const std::function<void()> &work) {
    if (work) work();
  });
}

void cp_async_bulk_wait_group_0() {
  cp_async_bulk_wait_group_read_0();
  self->complete = self->storing;
}

char *async_memory(Cta &b) {
  if (!b.async) b.async = take_shared(b.grid->grid.shared);
  return b.async;
}

void fence_proxy_async_shared_cta() {
  Cta &b = *self->cta;
  Warp &w = *self->warp;
  w.fenced |= 1u << self->lane;
  if (w.fenced != ~0u >> (32 - w.size)) return;
  w.fenced = 0;
  memcpy(async_memory(b), b.shared, b.grid->grid.shared);
}

// changed reports whether a register has another value than when the wgmma was issued.
static bool changed(const Wgmma &w) {
  bool is = false;
  for (int i = 0; i < 4 && w.registers[i]; i++) is = is || memcmp(&w.a[i], w.registers[i], sizeof w.a[i]);
  return is;
}

void wgmma(Wgmma w) {
  if (!self->wgmma_fenced) fail("begins a group of wgmmas without wgmma.fence");
  for (int i = 0; i < 4 && w.registers[i]; i++) memcpy(&w.a[i], w.registers[i], sizeof w.a[i]);
  w.done = self->cta->copy_at_once;
  if (w.done) multiply(w);
  self->wgmmas.add(w);
}

void wgmma_fence_sync_aligned() { self->wgmma_fenced = true; }
void wgmma_commit_group_sync_aligned() { self->wgmmas.commit(), self->wgmma_fenced = false; }
void wgmma_wait_group_sync_aligned(int left) {
  self->wgmmas.wait(left, [](const Wgmma &w) {
    if (changed(w)) fail("changed a register that a wgmma still reads");
    if (!w.done) multiply(w);
  });
}

}  // namespace emulator
