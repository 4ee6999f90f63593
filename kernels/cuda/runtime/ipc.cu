// Memory that other processes of this host use too, by their GPUs (CUDA IPC), and flags of the host that
// kernels read.
#include <cstring>

#include "launch.cuh"

static_assert(sizeof(cudaIpcMemHandle_t) == KERNELS_HANDLE_BYTES);

// kernels_ipc_new returns memory filled with zeros. A handle is of a whole allocation, and small ones may
// share one.
kernels_value kernels_ipc_new(int64_t bytes, char *handle) {
  constexpr int64_t WHOLE = 2 << 20;
  cudaIpcMemHandle_t exported;
  void *p = nullptr;
  if (bytes <= 0) return {0, cudaErrorInvalidValue};
  size_t whole = size_t((bytes + WHOLE - 1) / WHOLE * WHOLE);
  if (int code = done(cudaMalloc(&p, whole))) return {0, code};
  int code = done(cudaMemsetAsync(p, 0, whole, nullptr));
  if (!code) code = done(cudaStreamSynchronize(nullptr));
  if (!code) code = done(cudaIpcGetMemHandle(&exported, p));
  if (code) {
    done(cudaFree(p));  // the first error says more
    return {0, code};
  }
  memcpy(handle, &exported, sizeof exported);
  return {reinterpret_cast<uintptr_t>(p), cudaSuccess};
}

int kernels_ipc_free(uintptr_t addr) { return done(cudaFree(ptr<void>(addr))); }

kernels_value kernels_ipc_open(const char *handle) {
  cudaIpcMemHandle_t exported;
  void *p = nullptr;
  memcpy(&exported, handle, sizeof exported);
  int code = done(cudaIpcOpenMemHandle(&p, exported, cudaIpcMemLazyEnablePeerAccess));
  return {reinterpret_cast<uintptr_t>(p), code};
}

int kernels_ipc_close(uintptr_t addr) { return done(cudaIpcCloseMemHandle(ptr<void>(addr))); }

kernels_value kernels_abort_flag_new(void) {
  void *p = nullptr;
  if (int code = done(cudaHostAlloc(&p, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped))) return {0, code};
  memset(p, 0, sizeof(uint32_t));
  return {reinterpret_cast<uintptr_t>(p), cudaSuccess};
}

int kernels_abort_flag_free(uintptr_t addr) { return done(cudaFreeHost(ptr<void>(addr))); }
