// Choices of kernels by shape, which a program makes after it has timed them. Without one, the table in dispatch.cu
// decides.
#ifndef CHOICES_CUH
#define CHOICES_CUH

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "gemm.cuh"

namespace gemm {

class Choices {
  // All that the table's conditions depend on, but for t, whose presence depends on the choice.
  using Shape = std::array<int, 10>;
  struct Choice {
    Shape shape;
    int row;
  };

  std::mutex lock;
  std::vector<Choice> all;
  std::atomic<bool> some{false};  // so that programs without a choice take no lock

  static Shape shape_of(const Gemm &g) {
    return {g.layout, g.precision, g.epilogue, g.indices != nullptr, g.aligned_a, g.aligned_b, g.aligned_c, g.m, g.n, g.k};
  }

  std::vector<Choice>::iterator find(const Gemm &g) {
    return std::find_if(all.begin(), all.end(), [shape = shape_of(g)](const Choice &c) { return c.shape == shape; });
  }

 public:
  // row returns the row of the table that was chosen for GEMMs of g's shape; -1: none.
  int row(const Gemm &g) {
    if (!some) return -1;
    std::lock_guard<std::mutex> held(lock);
    auto found = find(g);
    return found == all.end() ? -1 : found->row;
  }

  // choose chooses a row; -1: none.
  void choose(const Gemm &g, int row) {
    std::lock_guard<std::mutex> held(lock);
    auto found = find(g);
    if (found != all.end()) all.erase(found);
    if (row >= 0) all.push_back({shape_of(g), row});
    some = !all.empty();
  }
};

}  // namespace gemm

#endif
