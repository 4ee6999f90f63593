// What every .cu file needs to launch a kernel.
#ifndef LAUNCH_CUH
#define LAUNCH_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "kernels.h"

// done is the result of a call to the runtime, which also left it as the
// thread's last error: clear that.
inline int done(cudaError_t result) {
  if (result != cudaSuccess) cudaGetLastError();
  return result;
}

// launched is the result of the launch before it.
inline int launched() { return cudaGetLastError(); }

// driver_function looks up a function of CUDA's driver, as it was in the CUDA of that
// version, and says whether there is one.
template <typename F>
bool driver_function(F &function, const char *name, int version) {
  void *found = nullptr;
#if CUDART_VERSION >= 12000
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
#if CUDART_VERSION >= 12050
  int code = done(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
#else
  int code = done(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result));
#endif
  bool known = code == cudaSuccess && result == cudaDriverEntryPointSuccess;
#else
  bool known = done(cudaGetDriverEntryPoint(name, &found, cudaEnableDefault)) == cudaSuccess;
#endif
  function = known ? reinterpret_cast<F>(found) : nullptr;
  return function;
}

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

// What a launch needs to know of the device.
struct Device {
  int sms = 1, shared = 48 << 10;  // shared: bytes a block may have
  int capability = 0;              // the compute capability, 90 for 9.0
  int major = 0;                   // that of the code which runs there
  Device() {
    int minor = 0;
    done(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    done(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    done(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    done(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    capability = 10 * major + minor;
#ifdef __CUDA_ARCH_LIST__
    // Code for an older device runs on a newer one too, without what came between.
    major = 0;
    for (int arch : {__CUDA_ARCH_LIST__})
      if (arch / 10 <= capability) major = std::max(major, arch / 100);
#endif
  }
};

inline const Device &device() {
  static const Device d;
  return d;
}

// A kernel launched early comes to the device while the one before it still runs
// (compute capability 9), which hides what a start costs. It must call follow,
// which waits until that one is done and its results are visible: from there on
// all is as in any other stream order. Only then may the next one come, when all
// blocks have called follow or ended. So all kernels but the one before are done even
// before follow: what they wrote can be read there, but nothing can be written.
__device__ inline void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// allow prepares a kernel for so many bytes of dynamic shared memory. All that want much
// ask for the same division of a multiprocessor's memory into shared memory and cache:
// it is changed only when the multiprocessor is idle, so that a kernel could not start
// beside one with another division.
template <typename K>
int allow(K *kernel, int bytes) {
  int code = done(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  return code ? code : done(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
}

struct Launch {
  unsigned grid, block;
  size_t shared = 0;
  unsigned cluster = 1;  // blocks in a cluster
  bool early = true;
};

// late_launches is set where early ones cannot be captured into a graph.
inline std::atomic<bool> late_launches{false};

template <typename... P, typename... A>
int launch(uintptr_t stream, const Launch &l, void (*kernel)(P...), A... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(l.grid);
  config.blockDim = dim3(l.block);
  config.dynamicSmemBytes = l.shared;
  config.stream = stream_of(stream);
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (l.early && !late_launches && device().major >= 9) {
    cudaLaunchAttribute &a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
  }
  if (l.cluster > 1) {
    cudaLaunchAttribute &a = attributes[config.numAttrs++];
    a.id = cudaLaunchAttributeClusterDimension;
    a.val.clusterDim = {l.cluster, 1, 1};
  }
  return done(cudaLaunchKernelEx(&config, kernel, P(args)...));
}

#endif
