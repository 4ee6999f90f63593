// Device, streams, events and copies: the CUDA runtime behind plain types.
#include <cstring>

#include "launch.cuh"

namespace {

template <typename T>
kernels_value value(cudaError_t result, T v) {
  return {reinterpret_cast<uintptr_t>(v), done(result)};
}

cudaEvent_t event_of(uintptr_t e) { return reinterpret_cast<cudaEvent_t>(e); }

__global__ void probe() {}

}  // namespace

const char *kernels_error_name(int code) { return cudaGetErrorName(cudaError_t(code)); }

// kernels_available asks for a kernel's attributes, which loads it: a device cannot be used without machine
// code for it, or PTX that its driver can compile.
int kernels_available(void) {
  int n = 0, driver = 0;
  if (int code = done(cudaGetDeviceCount(&n))) return code;
  if (n == 0) return cudaErrorNoDevice;
  // An older driver of CUDA 11 has what the runtime needs, but cannot launch with attributes.
  if (int code = done(cudaDriverGetVersion(&driver))) return code;
  if (driver < 11080) return cudaErrorInsufficientDriver;
  cudaFuncAttributes attributes;
  return done(cudaFuncGetAttributes(&attributes, probe));
}

int kernels_toolkit(void) { return CUDART_VERSION; }

int kernels_device(kernels_info *info) {
  cudaDeviceProp p;
  if (int code = done(cudaGetDeviceProperties(&p, 0))) return code;
  if (int code = done(cudaDriverGetVersion(&info->driver))) return code;
  if (int code = done(cudaRuntimeGetVersion(&info->runtime))) return code;
  memcpy(info->name, p.name, sizeof info->name);
  info->name[sizeof info->name - 1] = 0;
  memcpy(info->uuid, p.uuid.bytes, sizeof info->uuid);
  info->major = device().capability / 10;
  info->minor = device().capability % 10;
  info->sms = p.multiProcessorCount;
  info->memory = int64_t(p.totalGlobalMem);
  return cudaSuccess;
}

kernels_value kernels_stream_new(int high_priority) {
  cudaStream_t s = nullptr;
  int least = 0, greatest = 0;
  if (int code = done(cudaDeviceGetStreamPriorityRange(&least, &greatest))) return {0, code};
  cudaError_t result = cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, high_priority ? greatest : least);
  return value(result, s);
}

int kernels_stream_free(uintptr_t stream) {
  if (int code = kernels_stream_sync(stream)) return code;
  return done(cudaStreamDestroy(stream_of(stream)));
}

int kernels_stream_sync(uintptr_t stream) { return done(cudaStreamSynchronize(stream_of(stream))); }

kernels_value kernels_event_new(int timed) {
  cudaEvent_t e = nullptr;
  cudaError_t result = cudaEventCreateWithFlags(&e, timed ? cudaEventDefault : cudaEventDisableTiming);
  return value(result, e);
}

int kernels_event_free(uintptr_t event) { return done(cudaEventDestroy(event_of(event))); }

int kernels_event_record(uintptr_t event, uintptr_t stream) { return done(cudaEventRecord(event_of(event), stream_of(stream))); }

int kernels_event_record_external(uintptr_t event, uintptr_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (int code = done(cudaStreamIsCapturing(stream_of(stream), &status))) return code;
  unsigned flags = status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
  return done(cudaEventRecordWithFlags(event_of(event), stream_of(stream), flags));
}

int kernels_stream_wait_event(uintptr_t stream, uintptr_t event) { return done(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0)); }

int kernels_event_elapsed(float *ms, uintptr_t start, uintptr_t end) {
  if (int code = done(cudaEventSynchronize(event_of(end)))) return code;
  return done(cudaEventElapsedTime(ms, event_of(start), event_of(end)));
}

int kernels_upload(uintptr_t stream, uintptr_t dst, const void *src, int64_t bytes) {
  cudaError_t result = cudaMemcpyAsync(ptr<void>(dst), src, size_t(bytes), cudaMemcpyHostToDevice, stream_of(stream));
  if (int code = done(result)) return code;
  return kernels_stream_sync(stream);
}

int kernels_download(uintptr_t stream, void *dst, uintptr_t src, int64_t bytes) {
  cudaError_t result = cudaMemcpyAsync(dst, ptr<void>(src), size_t(bytes), cudaMemcpyDeviceToHost, stream_of(stream));
  if (int code = done(result)) return code;
  return kernels_stream_sync(stream);
}

int kernels_fill(uintptr_t stream, uintptr_t dst, int value, int64_t bytes) {
  if (bytes < 0) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  return done(cudaMemsetAsync(ptr<void>(dst), value, size_t(bytes), stream_of(stream)));
}
