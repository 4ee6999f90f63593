// Clusters, as far as the kernels use them.
#pragma once
#include "emulator.h"

namespace cooperative_groups {

struct cluster_group {
  unsigned block_rank() const { return emulator::cluster_rank(); }
  unsigned num_blocks() const { return emulator::cluster_size(); }
  template <typename T>
  T *map_shared_rank(T *p, unsigned rank) const {
    return reinterpret_cast<T *>(emulator::shared_memory(rank) + (reinterpret_cast<char *>(p) - emulator::shared_memory()));
  }
  void sync() const {
    emulator::barrier_cluster_arrive_aligned();
    emulator::barrier_cluster_wait_aligned();
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
