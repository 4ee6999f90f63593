// Launching a kernel, for every .cu file.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "kernels.h"

// done returns the result of a call to the runtime, and clears the thread's last error, which the
// call also set.
inline int done(cudaError_t result) {
  if (result != cudaSuccess) cudaGetLastError();
  return result;
}

// launched returns the result of the last launch.
inline int launched() { return cudaGetLastError(); }

// driver_function looks up a function of CUDA's driver, as of that version of CUDA, and reports
// whether it exists.
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

// CONSTANT parameters are not copied to local memory, where tensor maps must not be. CUDA 12 has
// __grid_constant__ from compute capability 7 on.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define CONSTANT
#else
#define CONSTANT __grid_constant__
#endif

inline cudaStream_t stream_of(uintptr_t s) { return reinterpret_cast<cudaStream_t>(s); }

template <typename T>
T *ptr(uintptr_t p) {
  return reinterpret_cast<T *>(p);
}

// ctas returns the number of CTAs of size threads for n elements, at most 2^30 so that it fits a
// grid: a kernel for more elements strides over them.
inline unsigned ctas(int64_t n, int64_t size) {
  int64_t b = (n + size - 1) / size;
  return b < (int64_t(1) << 30) ? unsigned(b) : 1u << 30;
}

// stand_in returns the compute capability that the environment variable MLPOOL_COMPUTE_CAPABILITY names, 86
// for 8.6; 0 if it names none, one older than 8.0, or 9.x. See the documentation of package kernels.
inline int stand_in() {
  const char *set = getenv("MLPOOL_COMPUTE_CAPABILITY");
  int major = 0, minor = 0;
  if (!set || sscanf(set, "%d.%d", &major, &minor) != 2 || major < 8 || major == 9) return 0;
  return 10 * major + minor;
}

// max_shared returns how many bytes of shared memory a CTA may have on GPUs of a compute capability from 8.0
// on.
constexpr int max_shared(int capability) {
  if (capability == 80 || capability == 87) return 163 << 10;
  return capability / 10 == 8 || capability / 10 == 12 ? 99 << 10 : 227 << 10;
}

// The properties of the device that launches depend on.
struct Device {
  int sms = 1, shared = 48 << 10;  // shared: bytes of shared memory that a CTA may opt in to
  int capability = 0;              // the compute capability, 90 for 9.0
  int major = 0;                   // major compute capability of the code that runs there
  Device() {
    int minor = 0;
    done(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    done(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    done(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    done(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    capability = 10 * major + minor;
#ifdef __CUDA_ARCH_LIST__
    // Code for an older device also runs on a newer one, without its features.
    major = 0;
    for (int arch : {__CUDA_ARCH_LIST__})
      if (arch / 10 <= capability) major = std::max(major, arch / 100);
#endif
    if (int other = capability >= 80 ? stand_in() : 0) {
      capability = other, major = std::min(major, other / 10);
      shared = std::min(shared, max_shared(other));
    }
  }
};

inline const Device &device() {
  static const Device d;
  return d;
}

__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Programmatic dependent launch, PDL (compute capability 9): a kernel starts while the one before it
// still runs, which hides the cost of a start. It must call pdl_wait, which waits until that one is
// done and its results are visible. The next kernel starts when all CTAs have called pdl_wait or
// ended. So before pdl_wait only the one kernel before may still be running: data that earlier
// kernels wrote may be read there, but nothing may be written.
__device__ inline void pdl_wait() {
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
}

// opt_in_shared allows a kernel this much dynamic shared memory. After a success it does nothing. A failure
// may be temporary: the driver may load the kernel only now, and lack memory. All kernels with much shared
// memory ask for the same carveout, the division of an SM's memory into shared memory and L1. It changes only
// when the SM is idle, so kernels with different carveouts could not overlap.
template <auto KERNEL>
int opt_in_shared(int bytes) {
  static std::atomic<bool> has;
  if (has) return cudaSuccess;
  if (int code = done(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))) return code;
  if (int code = done(cudaFuncSetAttribute(KERNEL, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared))) return code;
  has = true;
  return cudaSuccess;
}

struct Launch {
  unsigned grid, threads;  // CTAs, and threads of one
  size_t shared = 0;       // bytes of dynamic shared memory of a CTA
  unsigned cluster = 1;    // CTAs in a cluster
  bool pdl = true;
};

// pdl_off is set if launches with PDL cannot be captured into a graph.
inline std::atomic<bool> pdl_off{false};

template <typename... P, typename... A>
int launch(uintptr_t stream, const Launch &l, void (*kernel)(P...), A... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(l.grid);
  config.blockDim = dim3(l.threads);
  config.dynamicSmemBytes = l.shared;
  config.stream = stream_of(stream);
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (l.pdl && !pdl_off && device().major >= 9) {
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

// launch_elements launches a kernel on n elements that strides over them. It does not call pdl_wait.
template <typename... P, typename... A>
int launch_elements(uintptr_t stream, int64_t n, void (*kernel)(P...), A... args) {
  return launch(stream, {ctas(n, 256), 256, 0, 1, false}, kernel, args...);
}
