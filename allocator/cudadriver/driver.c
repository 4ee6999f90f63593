//go:build linux

#include "context.h"

#define STREAM(s) ((cd_stream)(s))
#define EVENT(e) ((cd_event)(e))
#define POOL(p) ((cd_pool)(p))

const char *cudadriver_error_name(int code) {
  const char *name = NULL;
  return TRY(cuGetErrorName, code, &name) || !name ? "unknown error" : name;
}

int cudadriver_available(int device) {
  visit v = {0};
  int code = cudadriver_enter(device, &v);
  return code ? code : cudadriver_leave(&v, code);
}

cudadriver_value cudadriver_malloc(int device, int64_t bytes) {
  cd_deviceptr addr = 0;
  int code = CALL(device, bytes > 0, cuMemAlloc_v2, &addr, (size_t)bytes);
  return (cudadriver_value){(uintptr_t)addr, code};
}

int cudadriver_free(int device, uintptr_t addr) { return CALL(device, addr, cuMemFree_v2, addr); }

cudadriver_pair cudadriver_mem_info(int device) {
  size_t available = 0, total = 0;
  int code = CALL(device, 1, cuMemGetInfo_v2, &available, &total);
  return (cudadriver_pair){(int64_t)available, (int64_t)total, code};
}

cudadriver_value cudadriver_stream_new(int device) {
  cd_stream stream = NULL;
  int code = CALL(device, 1, cuStreamCreate, &stream, CD_STREAM_NON_BLOCKING);
  return (cudadriver_value){(uintptr_t)stream, code};
}

int cudadriver_stream_sync(int device, uintptr_t stream) { return CALL(device, 1, cuStreamSynchronize, STREAM(stream)); }

int cudadriver_stream_free(int device, uintptr_t stream) { return CALL(device, stream, cuStreamDestroy_v2, STREAM(stream)); }

cudadriver_value cudadriver_event_new(int device) {
  cd_event event = NULL;
  int code = CALL(device, 1, cuEventCreate, &event, CD_EVENT_DISABLE_TIMING);
  return (cudadriver_value){(uintptr_t)event, code};
}

int cudadriver_event_record(int device, uintptr_t event, uintptr_t stream) {
  return CALL(device, event, cuEventRecord, EVENT(event), STREAM(stream));
}

cudadriver_value cudadriver_event_query(int device, uintptr_t event) {
  int code = CALL(device, event, cuEventQuery, EVENT(event));
  return (cudadriver_value){code == CD_SUCCESS, code == CD_ERROR_NOT_READY ? CD_SUCCESS : code};
}

int cudadriver_event_wait(int device, uintptr_t stream, uintptr_t event) {
  return CALL(device, event, cuStreamWaitEvent, STREAM(stream), EVENT(event), 0);
}

int cudadriver_event_sync(int device, uintptr_t event) { return CALL(device, event, cuEventSynchronize, EVENT(event)); }

int cudadriver_event_free(int device, uintptr_t event) { return CALL(device, event, cuEventDestroy_v2, EVENT(event)); }

cudadriver_value cudadriver_stream_is_capturing(int device, uintptr_t stream) {
  int status = CD_STREAM_CAPTURE_STATUS_NONE;
  int code = CALL(device, 1, cuStreamIsCapturing, STREAM(stream), &status);
  // The default stream cannot capture. The driver refuses it while a stream that waits for it captures.
  if (code == CD_ERROR_STREAM_CAPTURE_IMPLICIT) code = CD_SUCCESS, status = CD_STREAM_CAPTURE_STATUS_NONE;
  return (cudadriver_value){status != CD_STREAM_CAPTURE_STATUS_NONE, code};
}

int cudadriver_synchronize(int device) { return CALL(device, 1, cuCtxSynchronize); }

cudadriver_value cudadriver_host_malloc(int device, int64_t bytes) {
  void *p = NULL;
  int code = CALL(device, bytes > 0, cuMemHostAlloc, &p, (size_t)bytes, CD_MEMHOSTALLOC_PORTABLE);
  return (cudadriver_value){(uintptr_t)p, code};
}

int cudadriver_host_free(int device, uintptr_t addr) { return CALL(device, addr, cuMemFreeHost, (void *)addr); }

int cudadriver_copy_to_host(int device, uintptr_t host, uintptr_t addr, int64_t bytes) {
  return CALL(device, host && addr && bytes > 0, cuMemcpyDtoH_v2, (void *)host, addr, (size_t)bytes);
}

int cudadriver_copy_from_host(int device, uintptr_t addr, uintptr_t host, int64_t bytes) {
  return CALL(device, host && addr && bytes > 0, cuMemcpyHtoD_v2, addr, (const void *)host, (size_t)bytes);
}

cudadriver_value cudadriver_can_access_peer(int device, int peer) {
  int can = 0;
  int code = CALL(device, 1, cuDeviceCanAccessPeer, &can, at->id, peer);
  return (cudadriver_value){can != 0, code};
}

#define KIND (shareable ? &at->shareable : &at->pages)

cudadriver_value cudadriver_page_size(int device, int shareable) {
  visit v = {0};
  int code = cudadriver_enter(device, &v);
  if (code) return (cudadriver_value){0, code};
  const device_state *at = v.device;
  code = cudadriver_leave(&v, KIND->code);
  return (cudadriver_value){code ? 0 : KIND->page, code};
}

cudadriver_value cudadriver_range_reserve(int device, int shareable, int64_t bytes) {
  cd_deviceptr addr = 0;
  int code = PAGES(device, bytes > 0, cuMemAddressReserve, &addr, (size_t)bytes, KIND->page, 0, 0);
  return (cudadriver_value){(uintptr_t)addr, code};
}

int cudadriver_range_release(int device, uintptr_t addr, int64_t bytes) { return PAGES(device, bytes > 0, cuMemAddressFree, addr, (size_t)bytes); }

cudadriver_value cudadriver_pages_create(int device, int shareable, int64_t bytes) {
  cd_allocation handle = 0;
  int code = IN_CONTEXT(device, KIND->code ? KIND->code : VALID(bytes > 0), cuMemCreate, &handle, (size_t)bytes, &KIND->prop, 0);
  return (cudadriver_value){(uintptr_t)handle, code};
}

int cudadriver_pages_release(int device, uintptr_t handle) { return PAGES(device, 1, cuMemRelease, handle); }

int cudadriver_pages_access(int device, const int32_t *peers, int count, uintptr_t addr, int64_t bytes) {
  cd_access_desc access[1 + count];
  for (int i = 0; i <= count; i++) {
    cd_location location = {CD_MEM_LOCATION_TYPE_DEVICE, i ? peers[i - 1] : device};
    access[i] = (cd_access_desc){location, CD_MEM_ACCESS_FLAGS_PROT_READWRITE};
  }
  return PAGES(device, bytes > 0, cuMemSetAccess, addr, (size_t)bytes, access, 1 + (size_t)count);
}

int cudadriver_pages_map(int device, const int32_t *peers, int count, uintptr_t addr, uintptr_t handle, int64_t bytes) {
  int code = PAGES(device, bytes > 0, cuMemMap, addr, (size_t)bytes, 0, handle, 0);
  if (code) return code;
  code = cudadriver_pages_access(device, peers, count, addr, bytes);
  // If cuMemUnmap fails too, the first error says more.
  if (code) (void)PAGES(device, 1, cuMemUnmap, addr, (size_t)bytes);
  return code;
}

cudadriver_value cudadriver_pages_export(int device, uintptr_t handle) {
  int fd = -1;
  int code = PAGES(device, 1, cuMemExportToShareableHandle, &fd, handle, CD_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  return (cudadriver_value){code ? 0 : (uintptr_t)fd, code};
}

cudadriver_value cudadriver_pages_import(int device, int fd) {
  cd_allocation handle = 0;
  int code = PAGES(device, fd >= 0, cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)fd, CD_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return (cudadriver_value){(uintptr_t)handle, code};
}

int cudadriver_pages_unmap(int device, uintptr_t addr, int64_t bytes) { return PAGES(device, bytes > 0, cuMemUnmap, addr, (size_t)bytes); }

cudadriver_value cudadriver_pool_new(int device, int64_t threshold, int follow_events, int opportunistic, int internal) {
  cd_pool pool = NULL;
  uint64_t bytes = (uint64_t)threshold;
  int code = CALL(device, threshold >= 0, cuMemPoolCreate, &pool,
                  &(cd_pool_props){.allocType = CD_MEM_ALLOCATION_TYPE_PINNED, .location = {CD_MEM_LOCATION_TYPE_DEVICE, at->id}});
  if (code) return (cudadriver_value){0, code};
#define SET(attribute, value) CALL(device, 1, cuMemPoolSetAttribute, pool, attribute, value)
  code = SET(CD_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
  if (!code) code = SET(CD_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follow_events);
  if (!code) code = SET(CD_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &opportunistic);
  if (!code) code = SET(CD_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &internal);
  // If cuMemPoolDestroy fails too, the first error says more.
  if (code) (void)CALL(device, 1, cuMemPoolDestroy, pool);
  return (cudadriver_value){code ? 0 : (uintptr_t)pool, code};
}

int cudadriver_pool_free(int device, uintptr_t pool) { return CALL(device, pool, cuMemPoolDestroy, POOL(pool)); }

cudadriver_value cudadriver_pool_malloc(int device, uintptr_t pool, int64_t bytes, uintptr_t stream) {
  cd_deviceptr addr = 0;
  int code = CALL(device, pool && bytes > 0, cuMemAllocFromPoolAsync, &addr, (size_t)bytes, POOL(pool), STREAM(stream));
  return (cudadriver_value){(uintptr_t)addr, code};
}

int cudadriver_pool_give_back(int device, uintptr_t addr, uintptr_t stream) { return CALL(device, addr, cuMemFreeAsync, addr, STREAM(stream)); }

cudadriver_pair cudadriver_pool_reserved(int device, uintptr_t pool) {
  uint64_t now = 0, peak = 0;
  int code = CALL(device, pool, cuMemPoolGetAttribute, POOL(pool), CD_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &now);
  if (!code) code = CALL(device, 1, cuMemPoolGetAttribute, POOL(pool), CD_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &peak);
  return (cudadriver_pair){(int64_t)now, (int64_t)peak, code};
}

int cudadriver_pool_reset_peak(int device, uintptr_t pool) {
  uint64_t zero = 0;
  return CALL(device, pool, cuMemPoolSetAttribute, POOL(pool), CD_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero);
}

int cudadriver_pool_trim(int device, uintptr_t pool, int64_t keep) {
  return CALL(device, pool && keep >= 0, cuMemPoolTrimTo, POOL(pool), (size_t)keep);
}

cudadriver_pair cudadriver_graph_reserved(int device) {
  uint64_t now = 0, peak = 0;
  int code = CALL(device, 1, cuDeviceGetGraphMemAttribute, at->id, CD_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now);
  if (!code) code = CALL(device, 1, cuDeviceGetGraphMemAttribute, at->id, CD_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &peak);
  return (cudadriver_pair){(int64_t)now, (int64_t)peak, code};
}

int cudadriver_graph_reset_peak(int device) {
  uint64_t zero = 0;
  return CALL(device, 1, cuDeviceSetGraphMemAttribute, at->id, CD_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero);
}

int cudadriver_graph_trim(int device) { return CALL(device, 1, cuDeviceGraphMemTrim, at->id); }
