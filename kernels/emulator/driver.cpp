// CUDA's driver: its functions by name, for package cudadriver and the runtime. Environment variables
// describe the GPU: EMULATOR_DEVICES is the number of devices, which cannot use each other's memory with
// EMULATOR_WITHOUT_PEERS; EMULATOR_WITHOUT_PAGES has no virtual memory management, EMULATOR_WITHOUT_TMA no
// TMA; EMULATOR_SMS is the number of SMs, EMULATOR_MAJOR the major compute capability, EMULATOR_SHARED
// the bytes of shared memory of a CTA, and EMULATOR_COMPILED_FOR the compute capability that the kernels
// were compiled for, 700 for 7.0.
#include <cstdlib>
#include <cstring>

#include "cuda_runtime.h"

namespace {

// A context is one of these.
char contexts[emulator::MAX_DEVICES];

CUresult error_name(CUresult e, const char **name) {
  switch (e) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: return *name = nullptr, CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult init(unsigned) { return CUDA_SUCCESS; }
CUresult device_count(int *n) { return *n = emulator::devices(), CUDA_SUCCESS; }
bool exists(int device) { return device >= 0 && device < emulator::devices(); }
CUresult device_get(CUdevice *d, int ordinal) { return *d = ordinal, exists(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
CUresult attribute(int *v, int, CUdevice) { return *v = !getenv("EMULATOR_WITHOUT_PAGES"), CUDA_SUCCESS; }

CUresult can_access_peer(int *can, CUdevice d, CUdevice peer) {
  *can = d != peer && !getenv("EMULATOR_WITHOUT_PEERS");
  return exists(d) && exists(peer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult retain(CUcontext *c, CUdevice d) {
  if (!exists(d)) return CUDA_ERROR_INVALID_DEVICE;
  return *c = reinterpret_cast<CUcontext>(&contexts[d]), CUDA_SUCCESS;
}

CUresult current(CUcontext *c) {
  int d = emulator::device();
  return *c = d < 0 ? nullptr : reinterpret_cast<CUcontext>(&contexts[d]), CUDA_SUCCESS;
}

CUresult set_current(CUcontext c) {
  auto d = reinterpret_cast<char *>(c) - contexts;
  if (c && (d < 0 || !exists(int(d)))) return CUDA_ERROR_INVALID_CONTEXT;
  return emulator::set_device(c ? int(d) : -1), CUDA_SUCCESS;
}

// The mode decides on nothing, as in relaxed mode.
CUresult exchange_mode(int *mode) {
  static thread_local int now = 0;
  return std::swap(now, *mode), CUDA_SUCCESS;
}

cudaError_t synchronize() { return cudaStreamSynchronize(nullptr); }

cudaError_t copy(void *to, const void *from, size_t bytes, CUdeviceptr on_device) {
  auto lock = emulator::lock();
  if (!emulator::accessible(on_device)) return cudaErrorInvalidValue;
  emulator::finish();
  memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t copy_to_host(void *to, CUdeviceptr from, size_t bytes) { return copy(to, reinterpret_cast<void *>(from), bytes, from); }
cudaError_t copy_from_host(CUdeviceptr to, const void *from, size_t bytes) { return copy(reinterpret_cast<void *>(to), from, bytes, to); }

cudaError_t query(cudaEvent_t) { return cudaSuccess; }
template <typename F>
void *generic(F *f) {
  return reinterpret_cast<void *>(f);
}

}  // namespace

void *cudadriver_symbol(const char *name) {
  using emulator::with_context;
  static const Functions functions = {
      {"cuGetErrorName", generic(error_name)},
      {"cuInit", generic(init)},
      {"cuDeviceGetCount", generic(device_count)},
      {"cuDeviceCanAccessPeer", generic(can_access_peer)},
      {"cuDeviceGet", generic(device_get)},
      {"cuDeviceGetAttribute", generic(attribute)},
      {"cuDevicePrimaryCtxRetain", generic(retain)},
      {"cuCtxGetCurrent", generic(current)},
      {"cuCtxSetCurrent", generic(set_current)},
      {"cuCtxSynchronize", with_context<synchronize>()},
      {"cuThreadExchangeStreamCaptureMode", generic(exchange_mode)},
      {"cuMemHostAlloc", with_context<cudaHostAlloc>()},
      {"cuMemFreeHost", with_context<cudaFreeHost>()},
      {"cuMemcpyDtoH_v2", with_context<copy_to_host>()},
      {"cuMemcpyHtoD_v2", with_context<copy_from_host>()},
      {"cuStreamCreate", with_context<cudaStreamCreateWithFlags>()},
      {"cuStreamSynchronize", with_context<cudaStreamSynchronize>()},
      {"cuStreamDestroy_v2", with_context<cudaStreamDestroy>()},
      {"cuStreamWaitEvent", with_context<cudaStreamWaitEvent>()},
      {"cuStreamIsCapturing", with_context<cudaStreamIsCapturing>()},
      {"cuEventCreate", with_context<cudaEventCreateWithFlags>()},
      {"cuEventRecord", with_context<cudaEventRecord>()},
      {"cuEventQuery", with_context<query>()},
      {"cuEventSynchronize", with_context<cudaEventSynchronize>()},
      {"cuEventDestroy_v2", with_context<cudaEventDestroy>()},
  };
  if (!strcmp(name, "cuTensorMapEncodeTiled")) return getenv("EMULATOR_WITHOUT_TMA") ? nullptr : with_context<cuTensorMapEncodeTiled>();
  for (const Functions *some : {&functions, &memory_functions, &page_functions, &nccl_functions})
    if (auto at = some->find(name); at != some->end()) return at->second;
  return nullptr;
}
