// Device, streams, events and memory: the CUDA runtime behind plain types.
#include <cstring>

#include "launch.cuh"

namespace {

template <typename T>
kernels_value value(cudaError_t result, T v) {
  return {reinterpret_cast<uintptr_t>(v), done(result)};
}

cudaEvent_t event_of(uintptr_t e) { return reinterpret_cast<cudaEvent_t>(e); }
cudaMemPool_t pool_of(uintptr_t p) { return reinterpret_cast<cudaMemPool_t>(p); }

__global__ void probe() {}

}  // namespace

const char *kernels_error_name(int code) { return cudaGetErrorName(cudaError_t(code)); }

// A device is of no use without machine code for it, or PTX that its driver
// can compile: asking for a kernel's attributes loads one and tells.
int kernels_available(void) {
  int n = 0;
  if (int code = done(cudaGetDeviceCount(&n))) return code;
  if (n == 0) return cudaErrorNoDevice;
  cudaFuncAttributes attributes;
  return done(cudaFuncGetAttributes(&attributes, probe));
}

int kernels_device(kernels_info *info) {
  cudaDeviceProp p;
  if (int code = done(cudaGetDeviceProperties(&p, 0))) return code;
  if (int code = done(cudaDriverGetVersion(&info->driver))) return code;
  if (int code = done(cudaRuntimeGetVersion(&info->runtime))) return code;
  memcpy(info->name, p.name, sizeof info->name);
  info->name[sizeof info->name - 1] = 0;
  info->major = p.major;
  info->minor = p.minor;
  info->sms = p.multiProcessorCount;
  info->memory = int64_t(p.totalGlobalMem);
  info->l2 = p.l2CacheSize;
  return cudaSuccess;
}

kernels_value kernels_stream_new(void) {
  cudaStream_t s = nullptr;
  cudaError_t result = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
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

int kernels_event_record(uintptr_t event, uintptr_t stream) {
  return done(cudaEventRecord(event_of(event), stream_of(stream)));
}

kernels_value kernels_event_query(uintptr_t event) {
  int code = done(cudaEventQuery(event_of(event)));
  if (code == cudaErrorNotReady) return {0, cudaSuccess};
  return {1, code};
}

int kernels_event_wait(uintptr_t stream, uintptr_t event) {
  return done(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

int kernels_event_sync(uintptr_t event) { return done(cudaEventSynchronize(event_of(event))); }

int kernels_event_elapsed(float *ms, uintptr_t start, uintptr_t end) {
  if (int code = kernels_event_sync(end)) return code;
  return done(cudaEventElapsedTime(ms, event_of(start), event_of(end)));
}

kernels_value kernels_malloc(int64_t bytes) {
  if (bytes <= 0) return {0, cudaErrorInvalidValue};
  void *p = nullptr;
  cudaError_t result = cudaMalloc(&p, size_t(bytes));
  return value(result, p);
}

int kernels_free(uintptr_t addr) { return done(cudaFree(ptr<void>(addr))); }

int kernels_mem_info(int64_t *free_bytes, int64_t *total) {
  size_t f = 0, t = 0;
  int code = done(cudaMemGetInfo(&f, &t));
  *free_bytes = int64_t(f);
  *total = int64_t(t);
  return code;
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

kernels_value kernels_pool_new(void) {
  cudaMemPoolProps props;
  memset(&props, 0, sizeof props);
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  cudaMemPool_t pool = nullptr;
  if (int code = done(cudaMemPoolCreate(&pool, &props))) return {0, code};
  uint64_t all = UINT64_MAX;
  int code = done(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
  if (code) {
    done(cudaMemPoolDestroy(pool));
    return {0, code};
  }
  return {reinterpret_cast<uintptr_t>(pool), cudaSuccess};
}

int kernels_pool_close(uintptr_t pool) { return done(cudaMemPoolDestroy(pool_of(pool))); }

kernels_value kernels_pool_malloc(uintptr_t pool, int64_t bytes, uintptr_t stream) {
  if (bytes <= 0) return {0, cudaErrorInvalidValue};
  void *p = nullptr;
  cudaError_t result = cudaMallocFromPoolAsync(&p, size_t(bytes), pool_of(pool), stream_of(stream));
  return value(result, p);
}

int kernels_pool_free(uintptr_t addr, uintptr_t stream) {
  return done(cudaFreeAsync(ptr<void>(addr), stream_of(stream)));
}

int kernels_pool_reserved(uintptr_t pool, int64_t *current, int64_t *peak) {
  uint64_t c = 0, p = 0;
  if (int code = done(cudaMemPoolGetAttribute(pool_of(pool), cudaMemPoolAttrReservedMemCurrent, &c))) return code;
  if (int code = done(cudaMemPoolGetAttribute(pool_of(pool), cudaMemPoolAttrReservedMemHigh, &p))) return code;
  *current = int64_t(c);
  *peak = int64_t(p);
  return cudaSuccess;
}

int kernels_pool_reset_peak(uintptr_t pool) {
  uint64_t zero = 0;
  return done(cudaMemPoolSetAttribute(pool_of(pool), cudaMemPoolAttrReservedMemHigh, &zero));
}

int kernels_pool_trim(uintptr_t pool, int64_t keep) {
  if (keep < 0) return cudaErrorInvalidValue;
  return done(cudaMemPoolTrimTo(pool_of(pool), size_t(keep)));
}
