// Thread block clusters (compute capability 9): CTAs that run at the same time, on SMs of one GPC (up to 18
// neighbouring SMs), and reach each other's shared memory (DSMEM).
#pragma once

#include "launch.cuh"

namespace gemm {

constexpr int MAX_CLUSTER = 8;  // CTAs in a cluster; more are not portable
constexpr int CTA_PAIR = 2;     // CTAs in the cluster of a kernel that multicasts

// ctas_at_once returns how many CTAs, one on each SM, run at the same time in clusters of that many. Clusters
// of more than two do not fill a GPC: of 132 SMs they get 120.
inline int64_t ctas_at_once(int cluster) { return cluster > 2 ? device().sms * 10 / 11 : device().sms; }

// CLUSTERS says whether this pass of nvcc compiles for GPUs that have clusters.
#if __CUDA_ARCH__ >= 900
constexpr bool CLUSTERS = true;
#else
constexpr bool CLUSTERS = false;
#endif

// cluster_ctarank returns the rank of this CTA in its cluster, cluster_nctarank the cluster's size.
__device__ inline int cluster_ctarank() {
  int rank = 0;
  if constexpr (CLUSTERS) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline int cluster_nctarank() {
  int ranks = 1;
  if constexpr (CLUSTERS) asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(ranks));
  return ranks;
}

// The cluster barrier. Reads and writes before barrier_cluster_arrive, also to DSMEM, come before those after
// barrier_cluster_wait in any CTA. arrive_relaxed orders no memory and needs a fence. Whole warps call these.
__device__ inline void barrier_cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ inline void barrier_cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// mapa returns the address in another CTA of the cluster that corresponds to an address in this one.
__device__ inline unsigned mapa(const void *shared, int rank) {
  unsigned a;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(unsigned(__cvta_generic_to_shared(shared))), "r"(rank));
  return a;
}

__device__ inline void st_shared_cluster(unsigned to, float4 v) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

// st_async stores to DSMEM; an mbarrier of the receiving CTA counts the bytes.
__device__ inline void st_async(unsigned to, float4 v, unsigned mbarrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w), "r"(mbarrier)
               : "memory");
}

__device__ inline void barrier_cluster() {
  barrier_cluster_arrive();
  barrier_cluster_wait();
}

}  // namespace gemm
