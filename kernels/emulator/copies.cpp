// Asynchronous work of a thread: copies by cp.async and by TMA, with their mbarriers, and wgmmas. And the
// shared memory of other CTAs of a cluster.
#include <sched.h>

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
  else self->groups.back().push_back(c);
}

// wait_groups does the work of committed groups, except for the last ones.
template <typename T, typename F>
static void wait_groups(std::vector<std::vector<T>> &groups, int left, F f) {
  int done = static_cast<int>(groups.size()) - 1 - left;
  if (done <= 0) return;
  auto end = groups.begin() + done;
  for (auto group = groups.begin(); group != end; group++)
    for (const T &t : *group) f(t);
  groups.erase(groups.begin(), end);
}

void cp_async_commit_group() { self->groups.emplace_back(); }
void cp_async_wait_group(int left) {
  progress = true, yield();  // other threads may write to shared memory before and after this thread's copies
  wait_groups(self->groups, left, [](const Copy &c) { copy(c); });
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

// each calls f(element, place in the tile) for a tile's elements, with nullptr for those outside the tensor.
template <typename F>
static void each(const CUtensorMap &map, const int (&at)[3], F f) {
  size_t place = 0;
  for (uint32_t z = 0; z < map.tile[2]; z++)
    for (uint32_t y = 0; y < map.tile[1]; y++)
      for (uint32_t x = 0; x < map.tile[0]; x++) {
        int64_t i[3] = {int64_t(at[0]) + x, int64_t(at[1]) + y, int64_t(at[2]) + z};
        bool inside = true;
        int64_t offset = 0;
        for (int d = 0; d < 3; d++) inside = inside && i[d] >= 0 && uint64_t(i[d]) < map.counts[d], offset += i[d] * int64_t(map.strides[d]);
        f(inside ? map.array + offset : nullptr, place++);
      }
}

void copy_tile(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t address, unsigned ctas) {
  size_t bytes = map->bytes * size_t(map->tile[0]) * map->tile[1] * map->tile[2];
  if (to % (map->swizzled ? 1024 : 128) || to + bytes > shared_bytes()) fail("loaded a tile to a wrong address in shared memory");
  for (unsigned rank = 0; rank < cluster_size(); rank++) {
    if (!(ctas >> rank & 1)) continue;
    come(other(rank), address, {int64_t(bytes), [to, map = *map, x, y, z](Cta &b) {
                                  char *async = async_memory(b);
                                  each(map, {x, y, z}, [&](const char *element, size_t i) {
                                    uint32_t at = to + uint32_t(map.bytes * i), v = 0;
                                    if (map.swizzled) at = swizzled(at);
                                    if (element) memcpy(&v, element, map.bytes);
                                    if (map.tf32) v = bits<uint32_t>(rounded(bits<float>(v)));
                                    for (char *memory : {b.shared, async}) memcpy(memory + at, &v, map.bytes);
                                  });
                                }});
  }
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

static void store(const TileStore &s) {
  const char *async = async_memory(*self->cta);
  if (s.to) {
    memcpy(s.to, async + s.from, size_t(s.bytes));
    return;
  }
  each(s.map, {s.x, s.y, 0}, [&](char *element, size_t i) {
    uint32_t at = s.from + uint32_t(sizeof(float) * i);
    float *f = reinterpret_cast<float *>(element), v;
    memcpy(&v, async + (s.map.swizzled ? swizzled(at) : at), sizeof v);
    if (f) *f = s.add ? *f + v : v;
  });
}

static void write_tile(const CUtensorMap &map, int x, int y, uint32_t from, bool add) {
  if (map.bytes != sizeof(float)) fail("writes a tile of elements that are not floats, which is not emulated");
  if (from % (map.swizzled ? 1024 : 128)) fail("writes a tile from an address in shared memory that is not aligned");
  if (from + sizeof(float) * map.tile[0] * map.tile[1] > shared_bytes()) fail("writes a tile from past its shared memory");
  TileStore s = {map, x, y, from, add, self->cta->copy_at_once};
  if (s.done) store(s);
  self->stores.back().push_back(s);
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
  come(*self->cta, mbarrier, {int64_t(bytes), [=](Cta &b) {
                                for (char *memory : {b.shared, async_memory(b)}) memcpy(memory + to, from, size_t(bytes));
                              }});
}

void cp_async_bulk_global_shared_cta_bulk_group(void *to, uint32_t from, int bytes) {
  check_bulk(from, to, bytes);
  TileStore s = {{}, 0, 0, from, false, self->cta->copy_at_once, to, bytes};
  if (s.done) store(s);
  self->stores.back().push_back(s);
}

void ld_acquire_sys_global_u32(uint32_t &v, const uint32_t *p) {
  progress = true, yield(), sched_yield();  // another thread may write it, or another process
  v = __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
void st_release_sys_global_u32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

void cp_async_bulk_commit_group() { self->stores.emplace_back(); }
void cp_async_bulk_wait_group_read_0() {
  progress = true, yield();
  wait_groups(self->stores, 0, [](const TileStore &s) {
    if (!s.done) store(s);
  });
}

char *async_memory(Cta &b) {
  if (!b.async) b.async = take_shared(b.grid->grid.shared);
  return b.async;
}

void fence_proxy_async_shared_cta() {
  Cta &b = *self->cta;
  Warp &w = b.warps[self->index / 32];
  w.fenced |= 1u << self->index % 32;
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
  self->wgmmas.back().push_back(w);
}

void wgmma_fence_sync_aligned() { self->wgmma_fenced = true; }
void wgmma_commit_group_sync_aligned() { self->wgmmas.emplace_back(), self->wgmma_fenced = false; }
void wgmma_wait_group_sync_aligned(int left) {
  wait_groups(self->wgmmas, left, [](const Wgmma &w) {
    if (changed(w)) fail("changed a register that a wgmma still reads");
    if (!w.done) multiply(w);
  });
}

}  // namespace emulator
