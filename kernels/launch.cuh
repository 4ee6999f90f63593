// What every .cu file needs to launch a kernel.
#ifndef LAUNCH_CUH
#define LAUNCH_CUH

#include <cuda_runtime.h>

#include "kernels.h"

// done is the result of a call to the runtime, which also left it as the
// thread's last error: clear that.
inline int done(cudaError_t result) {
  if (result != cudaSuccess) cudaGetLastError();
  return result;
}

// launched is the result of the launch before it.
inline int launched() { return cudaGetLastError(); }

inline cudaStream_t stream_of(uintptr_t s) { return reinterpret_cast<cudaStream_t>(s); }

template <typename T>
T *ptr(uintptr_t p) {
  return reinterpret_cast<T *>(p);
}

// blocks is how many blocks of size threads do n elements, at most 2^30 so that
// it fits a grid: a kernel that may be given more strides over them.
inline unsigned blocks(int64_t n, int64_t size) {
  int64_t b = (n + size - 1) / size;
  return b < (int64_t(1) << 30) ? unsigned(b) : 1u << 30;
}

#endif
