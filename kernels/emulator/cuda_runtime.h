// The part of CUDA that the kernels and their launchers use, for a C++ compiler. The
// device is like an H200, compute capability 9.0.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <type_traits>

#include "emulator.h"

#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_LIST__ emulator::compiled_for()
#define __CUDA_ARCH_FEAT_SM90_ALL
#define HAVE_WARPGROUP 1  // see kernels.mk
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 3
#define CUDART_VERSION 12030
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__

// Vectors.

struct alignas(4) uchar4 {
  unsigned char x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

// Functions of the device.

template <typename A, typename B>
constexpr auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return std::min<C>(a, b);
}
template <typename A, typename B>
constexpr auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return std::max<C>(a, b);
}
inline uint32_t __float_as_uint(float &&v) { return emulator::bits<uint32_t>(v); }
// For a variable it returns the variable itself, since a wgmma reads its registers later.
using Bits __attribute__((may_alias)) = uint32_t;
inline const Bits &__float_as_uint(const float &v) { return reinterpret_cast<const Bits &>(v); }
inline float __uint_as_float(uint32_t v) { return emulator::bits<float>(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(int(v)); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  uint64_t bytes = uint64_t(high) << 32 | low;
  uint32_t v = 0;
  for (int i = 0; i < 4; i++) v |= uint32_t(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return v;
}
template <typename T>
T __ldcg(const T *p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) emulator::fail("read from an address that is not aligned");
  return *p;
}
template <typename T>
void __stcg(T *p, T v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) emulator::fail("wrote to an address that is not aligned");
  *p = v;
}
inline size_t __cvta_generic_to_shared(const void *p) { return static_cast<const char *>(p) - emulator::shared_memory(); }
template <typename T, typename V>
T atomicAdd(T *p, V v) {
  T old = *p;
  *p += v;
  return old;
}
inline long long clock64() {
  static long long now = 0;
  return now += 1 << 20;
}

inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __syncthreads() { emulator::cta_barrier(); }
inline void __syncwarp() {
  emulator::exchange([](const emulator::Words(&)[32], emulator::Words(&)[32]) {});
}
namespace emulator {
inline uint32_t lane_xor(uint32_t lane, uint32_t mask) { return lane ^ mask; }
inline uint32_t lane_of(uint32_t, uint32_t of) { return of; }
}  // namespace emulator
template <typename T>
T __shfl_xor_sync(unsigned, T v, int mask) {
  return emulator::shuffle<T, emulator::lane_xor>(v, mask);
}
template <typename T>
T __shfl_sync(unsigned, T v, int lane) {
  return emulator::shuffle<T, emulator::lane_of>(v, lane);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  using emulator::Words;
  emulator::given().word[0] = vote;
  return emulator::exchange([](const Words(&given)[32], Words(&got)[32]) {
           uint32_t votes = 0;
           for (int lane = 0; lane < 32; lane++) votes |= given[lane].word[0] << lane;
           for (Words &w : got) w.word[0] = votes;
         })
      .word[0];
}

// Functions of the host. They return what the CUDA function of that name does.

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorIllegalState = 401,
  cudaErrorNotSupported = 801,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
const char *cudaGetErrorName(cudaError_t);
cudaError_t cudaGetLastError();

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor
};
struct cudaDeviceProp {
  char name[256];
  struct {
    char bytes[16];
  } uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int device);
cudaError_t cudaDeviceGetAttribute(int *, cudaDeviceAttr, int device);
cudaError_t cudaSetDevice(int);
cudaError_t cudaDriverGetVersion(int *);
cudaError_t cudaRuntimeGetVersion(int *);

// A function of the driver, from cudadriver_symbol.
enum { cudaEnableDefault };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
cudaError_t cudaGetDriverEntryPoint(const char *name, void **, unsigned long long flags, cudaDriverEntryPointQueryResult *);

enum { cudaStreamNonBlocking = 1 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);

typedef struct CUevent_st *cudaEvent_t;
enum { cudaEventDefault = 0, cudaEventDisableTiming = 2 };
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
enum { cudaEventRecordDefault = 0, cudaEventRecordExternal = 1 };
cudaError_t cudaEventRecordWithFlags(cudaEvent_t, cudaStream_t, unsigned flags);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned flags);
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t);

enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaFree(void *);
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
cudaError_t cudaHostAlloc(void **, size_t, unsigned flags);
cudaError_t cudaFreeHost(void *);
// A handle names an allocation by its process and a file, to which it moves.
struct cudaIpcMemHandle_t {
  char reserved[64];
};
enum { cudaIpcMemLazyEnablePeerAccess = 1 };
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *);
cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *);
template <typename T>
cudaError_t cudaGetSymbolAddress(void **p, T &symbol) {
  *p = &symbol;
  return cudaSuccess;
}

typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
enum { cudaGraphInstantiateFlagUseNodePriority = 8 };
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum { cudaSharedmemCarveoutMaxShared = 100 };
struct cudaFuncAttributes {};
namespace emulator {
constexpr size_t MAX_SHARED = 227 << 10;
int compiled_for();  // the newest compute capability with compiled code, 900 for 9.0
size_t max_shared();  // bytes of shared memory that a CTA may have on this GPU, at most MAX_SHARED
// lock excludes all other threads from the runtime and the driver.
std::unique_lock<std::mutex> lock();
// The environment variable EMULATOR_DEVICES is the number of devices, one if it is not set. Kernels and
// streams do not depend on the device, but each has memory of its own.
constexpr int MAX_DEVICES = 16;
int devices();
// take reserves bytes of a device's memory, if there are as many; give returns them.
bool take(int device, size_t bytes);
void give(int device, size_t bytes);
// device returns the device of this thread's context. It is -1, no context, until the runtime is first
// used, which chooses device 0: give_context. Without one the driver knows no device.
int device();
void set_device(int);
inline bool has_context() { return device() >= 0; }
inline void give_context() {
  if (!has_context()) set_device(0);
}
// with_context returns F as a function of the driver that needs a context. Errors of the runtime have the
// driver's numbers.
template <auto F>
void *with_context() {
  return []<typename R, typename... A>(R (*)(A...)) {
    return reinterpret_cast<void *>(+[](A... a) { return has_context() ? CUresult(F(a...)) : CUDA_ERROR_INVALID_CONTEXT; });
  }(F);
}
// accessible reports whether this thread's device has access to what is mapped at an address.
bool accessible(size_t addr);
// launch submits a grid of a kernel on a stream, or adds it to the graph that the stream captures.
// It also sets the last error.
cudaError_t launch(cudaStream_t, const void *kernel, Grid);
// queue puts work on a stream, or adds it to the graph that the stream captures.
void queue(cudaStream_t, std::function<void()> work);
// allow sets the dynamic shared memory that a kernel may have.
cudaError_t allow(const void *kernel, int bytes);

// call launches kernel<<<…>>>.
struct Shape {
  unsigned ctas, threads;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
template <typename... P>
auto call(Shape s, void (*kernel)(P...)) {
  return [=](P... p) { launch(s.stream, reinterpret_cast<void *>(kernel), {s.ctas, s.threads, s.shared, 1, false, [=] { kernel(p...); }}); };
}
}  // namespace emulator
template <typename F>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, F) {
  return cudaSuccess;
}
template <typename F>
cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute a, int bytes) {
  return a != cudaFuncAttributeMaxDynamicSharedMemorySize ? cudaSuccess : emulator::allow(reinterpret_cast<void *>(kernel), bytes);
}

enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension, cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
};
template <typename... P>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), std::type_identity_t<P>... p) {
  emulator::Grid grid = {config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes};
  for (unsigned i = 0; i < config->numAttrs; i++) {
    const cudaLaunchAttribute &a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension) grid.cluster = a.val.clusterDim.x;
    else grid.pdl = a.val.programmaticStreamSerializationAllowed;
  }
  grid.kernel = [=] { kernel(p...); };
  return emulator::launch(config->stream, reinterpret_cast<void *>(kernel), std::move(grid));
}
