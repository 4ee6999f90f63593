// The device side of the emulator: threads that wait for each other, shared memory, and the
// instructions that kernels write as assembly (see translate).
//
// It detects the absence of these fences: fence.proxy.async, fence.mbarrier_init, wgmma.fence; and of
// cp.async.bulk.wait_group.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda.h"

typedef struct CUstream_st *cudaStream_t;

namespace emulator {

// A Grid is one launch of a kernel.
struct Grid {
  unsigned ctas, threads;  // threads of a CTA
  size_t shared = 0;         // bytes of a CTA
  unsigned cluster = 1;      // CTAs of a cluster
  bool pdl = false;          // may begin while the kernel before it runs
  std::function<void()> kernel;
};

// submit queues a grid, which may not run before the next call of submit or finish. finish returns
// when all have run. Only one thread may call them at a time.
void submit(Grid grid);
void finish();

// The rest is for the running thread of a kernel.

// fail ends the process with a line that says which thread did what.
[[noreturn]] void fail(const char *what);

char *shared_memory();  // of this CTA
template <typename T>
T *dynamic_shared() {
  return reinterpret_cast<T *>(shared_memory());
}
// static_shared returns this CTA's memory for a variable, which site identifies.
void *static_shared(const void *site, size_t bytes);
template <typename T>
T &static_shared(const void *site) {
  return *static_cast<T *>(static_shared(site, sizeof(T)));
}
size_t shared_bytes();  // of dynamic_shared

void cta_barrier();
unsigned cluster_rank();
unsigned cluster_size();

// Words are the data that one thread of a warp gives to the others, or gets from them.
struct Words {
  uint32_t word[10] = {};
};
using Exchange = void (*)(const Words (&given)[32], Words (&got)[32]);
// given is where this thread puts its words before it calls exchange, which waits for the whole warp; one of
// its threads then calls f for all. The result stays until the next exchange.
Words &given();
const Words &exchange(Exchange f);

template <typename To, typename From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// shuffle returns the value of lane from(lane, argument).
template <typename T, uint32_t (*FROM)(uint32_t, uint32_t)>
T shuffle(T value, uint32_t argument) {
  static_assert(sizeof(T) <= 8, "two words");
  Words &mine = given();
  memcpy(mine.word, &value, sizeof value);
  mine.word[2] = argument;
  const Words &got = exchange([](const Words(&given)[32], Words(&got)[32]) {
    for (uint32_t lane = 0; lane < 32; lane++) memcpy(got[lane].word, given[FROM(lane, given[lane].word[2]) % 32].word, sizeof(T));
  });
  memcpy(&value, got.word, sizeof value);
  return value;
}

// The instructions, named as in PTX. Addresses in shared memory count from the
// beginning of the CTA's.

template <typename T>
T *at_shared(uint32_t address, size_t bytes) {
  if (address % bytes) fail("used an address in shared memory that is not aligned");
  if (address + bytes > shared_bytes()) fail("used an address past its shared memory");
  return reinterpret_cast<T *>(shared_memory() + address);
}

inline void mov_u32(uint32_t &d, uint32_t a) { d = a; }
void bar_sync(int barrier, int threads);
void bar_arrive(int barrier, int threads);
inline void st_shared_f32(uint32_t to, float v) { *at_shared<float>(to, 4) = v; }
inline void ld_shared_f32(float &a, uint32_t from) { a = *at_shared<float>(from, 4); }
inline void ld_shared_v2_f32(float &a, float &b, uint32_t from) {
  const float *v = at_shared<float>(from, 8);
  a = v[0], b = v[1];
}
inline void ld_shared_v4_f32(float &a, float &b, float &c, float &d, uint32_t from) {
  const float *v = at_shared<float>(from, 16);
  a = v[0], b = v[1], c = v[2], d = v[3];
}
inline void setp_ne_s32_0_st_global_v2_f32(float *to, float a, float b, int really) {
  if (!really) return;
  if (reinterpret_cast<uintptr_t>(to) % 8) fail("wrote to an address that is not aligned");
  to[0] = a, to[1] = b;
}

inline void red_global_add_v2_f32(float *to, float a, float b) {
  if (reinterpret_cast<uintptr_t>(to) % 8) fail("adds at an address that is not aligned");
  to[0] += a, to[1] += b;
}

// A copy happens when it is issued or when it is waited for. Each CTA draws one of the two at random, so
// that code that relies on either fails.
void copy(uint32_t to, const void *from, int size, int bytes);
void cp_async_commit_group();
void cp_async_wait_group(int left);
inline void cp_async_cg_shared_global_16(uint32_t to, const void *from, int bytes) { copy(to, from, 16, bytes); }
inline void cp_async_ca_shared_global(uint32_t to, const void *from, int size, int bytes) { copy(to, from, size, bytes); }
inline void setp_ne_s32_0_cp_async_cg_shared_global_16(uint32_t to, const void *from, int bytes, int really) {
  if (really) copy(to, from, 16, bytes);
}

// swizzled returns the place of 16 bytes of a tile in shared memory, with a swizzle of 128 bytes.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Tiles that TMA loads arrive when their mbarrier is waited for, or at once in CTAs that copy at once.
// An mbarrier is identified by its address.
inline void mov_u32_cluster_ctarank(int &rank) { rank = int(cluster_rank()); }
inline void mov_u32_cluster_nctarank(int &ranks) { ranks = int(cluster_size()); }
void mbarrier_init_shared_cta_b64(uint32_t mbarrier, int calls);
void fence_mbarrier_init_release_cluster();
void mbarrier_arrive_shared_cta_b64(uint32_t mbarrier);
void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t mbarrier, int bytes);
void mbarrier_try_wait_parity_shared_cta_b64_bra(uint32_t mbarrier, int parity);
// copy_tile copies to the CTAs of the cluster that are bits of ctas.
void copy_tile(uint32_t to, const CUtensorMap *, int x, int y, int z, uint32_t mbarrier, unsigned ctas);
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const CUtensorMap *map, int x, int y,
                                                                                     uint32_t mbarrier) {
  copy_tile(to, map, x, y, 0, mbarrier, 1u << cluster_rank());
}
inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(uint32_t to, const CUtensorMap *map, int x,
                                                                                                       int y, uint32_t mbarrier,
                                                                                                       unsigned short ctas) {
  copy_tile(to, map, x, y, 0, mbarrier, ctas);
}
inline void cp_async_bulk_tensor_3d_shared_cluster_global_mbarrier_complete_tx_bytes_multicast_cluster(uint32_t to, const CUtensorMap *map, int x,
                                                                                                       int y, int z, uint32_t mbarrier,
                                                                                                       unsigned short ctas) {
  copy_tile(to, map, x, y, z, mbarrier, ctas);
}
// An address in a CTA of the cluster, as mapa makes it, has the CTA's rank and one
// above the bits of an address; one without is in the CTA that uses it.
constexpr int RANK_SHIFT = 24;
inline void mapa_shared_cluster_u32(uint32_t &there, uint32_t address, uint32_t rank) {
  if (rank >= cluster_size()) fail("maps an address to a CTA that is not of its cluster");
  there = (rank + 1) << RANK_SHIFT | address;
}
void st_shared_cluster_v4_f32(uint32_t to, float a, float b, float c, float d);
void ld_shared_cluster_v4_f32(float &a, float &b, float &c, float &d, uint32_t from);
void st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_v4_f32(uint32_t to, float a, float b, float c, float d, uint32_t mbarrier);

// fence_proxy_async_shared_cta counts once all threads of a warp have called it.
void fence_proxy_async_shared_cta();
void cp_reduce_async_bulk_tensor_2d_global_shared_cta_add_tile_bulk_group(const CUtensorMap *, int x, int y, uint32_t from);
void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const CUtensorMap *, int x, int y, uint32_t from);
void cp_async_bulk_commit_group();
void cp_async_bulk_wait_group_read_0();
void cp_async_bulk_wait_group_0();
void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to, const void *from, int bytes, uint32_t mbarrier);
void cp_async_bulk_global_shared_cta_bulk_group(void *to, uint32_t from, int bytes);
void fence_proxy_async_global();

// Memory that other processes write too. TMA may read what they wrote before a flag that a thread reads, once
// that thread has called fence.proxy.async.global. A thread may release a flag once the stores by TMA of all
// threads are complete, which cp.async.bulk.wait_group.read does not wait for, and then fenced.
void ld_acquire_sys_global_u32(uint32_t &v, const uint32_t *p);
void st_release_sys_global_u32(uint32_t *p, uint32_t v);

// A prefetch to L2 changes nothing, but it must be of whole chunks of 16 bytes.
inline void cp_async_bulk_prefetch_L2_global(const void *from, int bytes) {
  if (reinterpret_cast<uintptr_t>(from) % 16 || bytes <= 0 || bytes % 16) fail("prefetches what is not whole chunks of 16 bytes");
}

void griddepcontrol_wait();
void griddepcontrol_launch_dependents();

void barrier_cluster_arrive_aligned();
void barrier_cluster_wait_aligned();
// The relaxed one orders no memory. It is only for the first barrier, before any CTA uses another's memory.
void barrier_cluster_arrive_relaxed_aligned();

// d[16,8] += a[16,8]·b[8,8], of operands whose last 13 bits are ignored.
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                                        uint32_t a3, uint32_t b0, uint32_t b1);

// d[16,8] += a[16,16]·b[16,8], of bf16; a register holds two neighbouring k.
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                                                         uint32_t a3, uint32_t b0, uint32_t b1);

// Two floats, rounded to the nearest bf16, of two equally near to the even one; NaN becomes 0x7fff.
inline void cvt_rn_bf16x2_f32(uint32_t &two, float upper, float lower) {
  auto round = [](float f) {
    uint32_t word = bits<uint32_t>(f);
    return f != f ? 0x7fffu : (word + 0x7fff + (word >> 16 & 1)) >> 16;
  };
  two = round(upper) << 16 | round(lower);
}

// Matrices of 8×8 halves: lane 8i + r has the address of row r of the i-th, and lane 4g + t gets elements 2t
// and 2t+1 of row g of each, or of column g if transposed. Of two matrices, the addresses of lanes from 16 on
// are ignored.
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row);
void ldmatrix_sync_aligned_m8n8_x2_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t row);
void ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16(uint32_t &r0, uint32_t &r1, uint32_t row);

// Registers of warpgroups: there are enough.
inline void setmaxnreg_dec_sync_aligned_u32(int registers) {
  if (registers < 24 || registers > 256 || registers % 8) fail("wants a wrong number of registers");
}
inline void setmaxnreg_inc_sync_aligned_u32(int registers) { setmaxnreg_dec_sync_aligned_u32(registers); }

// A Wgmma is a warp's part of d[64,n] += a·b: a[64,8] in registers and b[8,n] in tf32, a[64,16] and b[16,n]
// in bf16. Like a copy, it happens when it is issued or when it is waited for, so a thread that reads d too
// early, changes a, or frees an operand in shared memory fails. So does a thread that begins a group without
// wgmma.fence.
struct Wgmma {
  int n;
  float *d;    // n/2 of them
  uint64_t b;  // the descriptor
  bool bf16;
  const void *registers[4];  // of a, in tf32; in bf16 they are null
  uint32_t a[4];             // values of the registers; in bf16 the descriptor of a, its lower half first
  bool overwrites, transposed_a, transposed_b;  // d = a·b; in bf16, the operand is MN-major in shared memory
  bool done;
};
void wgmma(Wgmma);
void multiply(const Wgmma &);  // when it happens
void wgmma_fence_sync_aligned();
void wgmma_commit_group_sync_aligned();
void wgmma_wait_group_sync_aligned(int left);

// wgmma_of takes the operands of the instruction: all of d, the four of a, b, and scale-d.
template <int N, typename... Operands>
void wgmma_of(Operands &&...operands) {
  static_assert(sizeof...(operands) == N / 2 + 6, "d, a, b and scale-d");
  auto all = std::forward_as_tuple(std::forward<Operands>(operands)...);
  static_assert(std::is_lvalue_reference_v<std::tuple_element_t<N / 2, decltype(all)>>, "a is in registers");
  wgmma({N,
         &std::get<0>(all),
         std::get<N / 2 + 4>(all),
         false,
         {&std::get<N / 2>(all), &std::get<N / 2 + 1>(all), &std::get<N / 2 + 2>(all), &std::get<N / 2 + 3>(all)},
         {},
         std::get<N / 2 + 5>(all) == 0});
}

// bf16_wgmma_of takes all of d, the descriptors of a and b, scale-d, and which of a and b are transposed.
template <int N, typename... Operands>
void bf16_wgmma_of(Operands &&...operands) {
  static_assert(sizeof...(operands) == N / 2 + 5, "d, a, b, scale-d, imm-trans-a and imm-trans-b");
  auto all = std::forward_as_tuple(std::forward<Operands>(operands)...);
  uint64_t a = std::get<N / 2>(all);
  wgmma({N,
         &std::get<0>(all),
         std::get<N / 2 + 1>(all),
         true,
         {},
         {uint32_t(a), uint32_t(a >> 32)},
         std::get<N / 2 + 2>(all) == 0,
         std::get<N / 2 + 3>(all) != 0,
         std::get<N / 2 + 4>(all) != 0});
}
#define WGMMA(N) \
  template <typename... Operands> \
  void setp_ne_b32_0_wgmma_mma_async_sync_aligned_m64n##N##k8_f32_tf32_tf32_1_1(Operands &&...operands) { \
    wgmma_of<N>(std::forward<Operands>(operands)...); \
  } \
  template <typename... Operands> \
  void setp_ne_b32_0_wgmma_mma_async_sync_aligned_m64n##N##k16_f32_bf16_bf16_1_1(Operands &&...operands) { \
    bf16_wgmma_of<N>(std::forward<Operands>(operands)...); \
  }
WGMMA(64)
WGMMA(128)
WGMMA(160)
WGMMA(192)
WGMMA(256)
#undef WGMMA

}  // namespace emulator
