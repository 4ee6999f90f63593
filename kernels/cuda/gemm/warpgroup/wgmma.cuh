// Warpgroup MMA, wgmma (compute capability 9.0, target sm_90a): d[64,N] += a·b by the four warps of a
// warpgroup, of 8 k in tf32 and 16 k in bf16. It is asynchronous: a warpgroup issues several, commits them as
// a group, and waits for older groups. Lane 4g + t of warp q owns, and in tf32 gives,
//
//           k=t   k=t+4                     n=8j+2t   8j+2t+1
//   m=g     a[0]  a[2]           d  m=g     d[4j]     d[4j+1]        m from 16q on
//   m=g+8   a[1]  a[3]              m=g+8   d[4j+2]   d[4j+3]
//
// b, and in bf16 also a, is in shared memory, in lines of 128 bytes in TMA's 128-byte swizzle:
//
//   K-major   a line is 32 k of tf32, or 64 k of bf16, of one row of a or column of b; eight lines are 1024 bytes
//   MN-major  only bf16: a line is 64 rows of a, or columns of b, of one k; a slab of 64 has its lines one after the other
//
// In tf32 the tensor cores ignore the last 13 bits of an operand, which must be rounded before.
#pragma once

#include "gemm/pipeline.cuh"
#include "gemm/tma.cuh"

namespace gemm {

// descriptor describes an operand in shared memory, on a 1024-byte boundary: groups of eight lines, one after
// the other. PTX ISA, matrix descriptor of wgmma: address/16 in bits 0-13, leading byte offset/16 in 16-29,
// stride byte offset/16 in 32-45, swizzle 128B in 62-63. The stride is between groups of eight lines: eight
// rows or columns if K-major, eight k if MN-major. The leading offset is between the slabs of an MN-major
// operand. It is 1 if K-major, and unused.
template <bool MN_MAJOR>
__device__ uint64_t descriptor(const void *shared, int slab = 0) {
  constexpr uint64_t SWIZZLE_128B = uint64_t(1) << 62, GROUP = 1024;
  return SWIZZLE_128B | GROUP >> 4 << 32 | uint64_t(MN_MAJOR ? slab >> 4 : 1) << 16 | (address(shared) & 0x3ffff) >> 4;
}

// NEXT_K, added to a descriptor, is the next k that an instruction takes: 32 bytes of each line, or 16 lines.
template <bool MN_MAJOR>
constexpr uint64_t NEXT_K = (MN_MAJOR ? 16 * 128 : 32) >> 4;

__device__ inline float truncated(float f) { return __uint_as_float(__float_as_uint(f) & ~0u << 13); }

// rounded returns the nearest float in tf32. See split_tf32 in mma.cuh.
__device__ inline float rounded(float f) { return truncated(__uint_as_float(__float_as_uint(f) + (1u << 12))); }

// wgmma_fence must come between writes to registers of d or a and the next wgmma.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int GROUPS>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}

// ldmatrix reads a warp's fragment of a: lane 8i + r has the address of row r of a[i], 16 bytes.
__device__ inline void ldmatrix(float (&a)[4], const void *row) {
  unsigned r[4];
  ldmatrix<false>(r, address(row));
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = __uint_as_float(r[i]);
}

__device__ inline float4 ld_shared_cluster(unsigned from) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
  return v;
}

// red_add adds to two neighbouring floats in global memory, on an 8-byte boundary.
__device__ inline void red_add(float *to, float x, float y) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

// setmaxnreg moves registers from the warpgroup that loads to those that multiply.
template <int COUNT>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64 \
  NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60," \
           "%61,%62,%63"
#define NAMES_80 NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NAMES_96 NAMES_80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_128 \
  NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120," \
           "%121,%122,%123,%124,%125,%126,%127"
#define A4 "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3]))

// wgmma issues d += a·bᵀ, or d = a·bᵀ if add is 0. Until its group has ended, the registers of a must not
// change, nor those of d be read.
__device__ inline void wgmma(float (&d)[32], const float (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" NAMES_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1;\n}"
               : D32(0)
               : A4, "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[64], const float (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" NAMES_64 "}, {%64,%65,%66,%67}, %68, p, 1, 1;\n}"
               : D32(0), D32(32)
               : A4, "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[80], const float (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %85, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n160k8.f32.tf32.tf32 {" NAMES_80 "}, {%80,%81,%82,%83}, %84, p, 1, 1;\n}"
               : D32(0), D32(32), D8(64), D8(72)
               : A4, "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[96], const float (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %101, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n192k8.f32.tf32.tf32 {" NAMES_96 "}, {%96,%97,%98,%99}, %100, p, 1, 1;\n}"
               : D32(0), D32(32), D32(64)
               : A4, "l"(b), "r"(add));
}
__device__ inline void wgmma(float (&d)[128], const float (&a)[4], uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {" NAMES_128 "}, {%128,%129,%130,%131}, %132, p, 1, 1;\n}"
               : D32(0), D32(32), D32(64), D32(96)
               : A4, "l"(b), "r"(add));
}

// wgmma_bf16 issues d += a·b of descriptors, or d = a·b if add is 0. Until its group has ended, d must not be
// read, nor the operands be overwritten.
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
__device__ inline void wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NAMES_32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
               : D32(0)
               : "l"(a), "l"(b), "r"(add), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR)));
}
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
__device__ inline void wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NAMES_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
               : D32(0), D32(32)
               : "l"(a), "l"(b), "r"(add), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR)));
}
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
__device__ inline void wgmma_bf16(float (&d)[80], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {" NAMES_80 "}, %80, %81, p, 1, 1, %83, %84;\n}"
               : D32(0), D32(32), D8(64), D8(72)
               : "l"(a), "l"(b), "r"(add), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR)));
}
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
__device__ inline void wgmma_bf16(float (&d)[96], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" NAMES_96 "}, %96, %97, p, 1, 1, %99, %100;\n}"
               : D32(0), D32(32), D32(64)
               : "l"(a), "l"(b), "r"(add), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR)));
}
template <bool A_MN_MAJOR, bool B_MN_MAJOR>
__device__ inline void wgmma_bf16(float (&d)[128], uint64_t a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" NAMES_128 "}, %128, %129, p, 1, 1, %131, %132;\n}"
               : D32(0), D32(32), D32(64), D32(96)
               : "l"(a), "l"(b), "r"(add), "n"(int(A_MN_MAJOR)), "n"(int(B_MN_MAJOR)));
}

#undef D8
#undef D32
#undef NAMES_32
#undef NAMES_64
#undef NAMES_80
#undef NAMES_96
#undef NAMES_128
#undef A4

}  // namespace gemm
