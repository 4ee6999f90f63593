// CUDA's driver: its functions by name, for package cudadriver and the runtime. Environment variables
// describe the GPU: EMULATOR_WITHOUT_PAGES has no virtual memory management, EMULATOR_WITHOUT_TMA no
// TMA; EMULATOR_SMS is the number of SMs, EMULATOR_MAJOR the major compute capability, EMULATOR_SHARED
// the bytes of shared memory of a CTA, and EMULATOR_COMPILED_FOR the compute capability that the kernels
// were compiled for, 700 for 7.0.
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "cuda_runtime.h"

namespace {

CUcontext the_context() {
  static char place;
  return reinterpret_cast<CUcontext>(&place);
}

CUresult error_name(CUresult e, const char **name) {
  switch (e) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: return *name = nullptr, CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult device_get(CUdevice *d, int ordinal) { return *d = 0, ordinal ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult attribute(int *v, CUdevice_attribute, CUdevice) { return *v = !getenv("EMULATOR_WITHOUT_PAGES"), CUDA_SUCCESS; }
CUresult retain(CUcontext *c, CUdevice) { return *c = the_context(), CUDA_SUCCESS; }
CUresult current(CUcontext *c) { return *c = emulator::has_context() ? the_context() : nullptr, CUDA_SUCCESS; }

CUresult set_current(CUcontext c) {
  if (c != the_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return emulator::give_context(), CUDA_SUCCESS;
}

// with_context calls a function of the runtime if the thread has a context. Errors have the driver's
// numbers.
template <auto f, typename... A>
CUresult with_context(A... a) {
  return emulator::has_context() ? CUresult(f(a...)) : CUDA_ERROR_INVALID_CONTEXT;
}

cudaError_t query(cudaEvent_t) { return cudaSuccess; }
template <typename F>
void *generic(F *f) {
  return reinterpret_cast<void *>(f);
}

}  // namespace

void *cudadriver_symbol(const char *name) {
#define FUNCTION(f) {#f, generic(f)}
  static const std::map<std::string, void *> functions = {
      {"cuGetErrorName", generic(error_name)},
      {"cuInit", generic(init)},
      {"cuDeviceGet", generic(device_get)},
      {"cuDeviceGetAttribute", generic(attribute)},
      {"cuDevicePrimaryCtxRetain", generic(retain)},
      {"cuCtxGetCurrent", generic(current)},
      {"cuCtxSetCurrent", generic(set_current)},
      {"cuMemAlloc_v2", generic(cuMemAlloc)},
      {"cuMemFree_v2", generic(cuMemFree)},
      {"cuMemGetInfo_v2", generic(cuMemGetInfo)},
      {"cuStreamCreate", generic(with_context<cudaStreamCreateWithFlags, CUstream *, unsigned>)},
      {"cuStreamSynchronize", generic(with_context<cudaStreamSynchronize, CUstream>)},
      {"cuStreamDestroy_v2", generic(with_context<cudaStreamDestroy, CUstream>)},
      {"cuStreamWaitEvent", generic(with_context<cudaStreamWaitEvent, CUstream, CUevent, unsigned>)},
      {"cuEventCreate", generic(with_context<cudaEventCreateWithFlags, CUevent *, unsigned>)},
      {"cuEventRecord", generic(with_context<cudaEventRecord, CUevent, CUstream>)},
      {"cuEventQuery", generic(with_context<query, CUevent>)},
      {"cuEventSynchronize", generic(with_context<cudaEventSynchronize, CUevent>)},
      {"cuEventDestroy_v2", generic(with_context<cudaEventDestroy, CUevent>)},
      FUNCTION(cuMemGetAllocationGranularity), FUNCTION(cuMemAddressReserve), FUNCTION(cuMemAddressFree),
      FUNCTION(cuMemCreate), FUNCTION(cuMemRelease), FUNCTION(cuMemMap), FUNCTION(cuMemUnmap), FUNCTION(cuMemSetAccess),
      FUNCTION(cuMemPoolCreate), FUNCTION(cuMemPoolDestroy), FUNCTION(cuMemPoolSetAttribute), FUNCTION(cuMemPoolGetAttribute),
      FUNCTION(cuMemPoolTrimTo), FUNCTION(cuMemAllocFromPoolAsync), FUNCTION(cuMemFreeAsync),
      FUNCTION(cuDeviceGetGraphMemAttribute), FUNCTION(cuDeviceSetGraphMemAttribute), FUNCTION(cuDeviceGraphMemTrim),
  };
#undef FUNCTION
  if (!strcmp(name, "cuTensorMapEncodeTiled")) return getenv("EMULATOR_WITHOUT_TMA") ? nullptr : generic(cuTensorMapEncodeTiled);
  if (!strncmp(name, "nccl", 4)) return nccl_function(name);
  auto at = functions.find(name);
  return at == functions.end() ? nullptr : at->second;
}
