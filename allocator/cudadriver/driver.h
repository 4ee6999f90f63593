// The functions that raw_linux.go calls. Addresses, streams, events, pools and handles are
// uintptr_t; device is an ordinal. Each function loads the driver if none did before, calls it in
// the device's primary context, and returns a CUresult, or CUDADRIVER_NONE without a driver, or
// CUDADRIVER_FORKED in a child of fork.
#ifndef CUDADRIVER_DRIVER_H
#define CUDADRIVER_DRIVER_H

#include <stdint.h>

enum { CUDADRIVER_NONE = -1, CUDADRIVER_FORKED = -2 };

// A handle or a number of bytes, with the code of the call.
typedef struct {
  uintptr_t value;
  int code;
} cudadriver_value;

typedef struct {
  int64_t first, second;
  int code;
} cudadriver_pair;

const char *cudadriver_none(void);  // why there is no driver
const char *cudadriver_error_name(int code);
cudadriver_value cudadriver_device_count(void);
int cudadriver_available(int device);
cudadriver_value cudadriver_can_access_peer(int device, int peer);
int cudadriver_synchronize(int device);

cudadriver_value cudadriver_malloc(int device, int64_t bytes);
int cudadriver_free(int device, uintptr_t addr);
cudadriver_pair cudadriver_mem_info(int device);  // free, total

cudadriver_value cudadriver_host_malloc(int device, int64_t bytes);
int cudadriver_host_free(int device, uintptr_t addr);
int cudadriver_copy_to_host(int device, uintptr_t host, uintptr_t addr, int64_t bytes);
int cudadriver_copy_from_host(int device, uintptr_t addr, uintptr_t host, int64_t bytes);

cudadriver_value cudadriver_stream_new(int device);
int cudadriver_stream_sync(int device, uintptr_t stream);
int cudadriver_stream_free(int device, uintptr_t stream);
cudadriver_value cudadriver_stream_is_capturing(int device, uintptr_t stream);

cudadriver_value cudadriver_event_new(int device);
int cudadriver_event_record(int device, uintptr_t event, uintptr_t stream);
cudadriver_value cudadriver_event_query(int device, uintptr_t event);  // whether it is done
int cudadriver_event_wait(int device, uintptr_t stream, uintptr_t event);
int cudadriver_event_sync(int device, uintptr_t event);
int cudadriver_event_free(int device, uintptr_t event);

// Pages are shareable if they can be exported.
cudadriver_value cudadriver_page_size(int device, int shareable);
cudadriver_value cudadriver_range_reserve(int device, int shareable, int64_t bytes);
int cudadriver_range_release(int device, uintptr_t addr, int64_t bytes);
cudadriver_value cudadriver_pages_create(int device, int shareable, int64_t bytes);
int cudadriver_pages_release(int device, uintptr_t handle);
// The device and its peers get access.
int cudadriver_pages_access(int device, const int32_t *peers, int count, uintptr_t addr, int64_t bytes);
int cudadriver_pages_map(int device, const int32_t *peers, int count, uintptr_t addr, uintptr_t handle, int64_t bytes);
int cudadriver_pages_unmap(int device, uintptr_t addr, int64_t bytes);
cudadriver_value cudadriver_pages_export(int device, uintptr_t handle);  // a file descriptor
cudadriver_value cudadriver_pages_import(int device, int fd);

cudadriver_value cudadriver_pool_new(int device, int64_t threshold, int follow_events, int opportunistic, int internal);
int cudadriver_pool_free(int device, uintptr_t pool);
cudadriver_value cudadriver_pool_malloc(int device, uintptr_t pool, int64_t bytes, uintptr_t stream);
int cudadriver_pool_give_back(int device, uintptr_t addr, uintptr_t stream);
cudadriver_pair cudadriver_pool_reserved(int device, uintptr_t pool);  // now, peak
int cudadriver_pool_reset_peak(int device, uintptr_t pool);
int cudadriver_pool_trim(int device, uintptr_t pool, int64_t keep);

cudadriver_pair cudadriver_graph_reserved(int device);  // now, peak
int cudadriver_graph_reset_peak(int device);
int cudadriver_graph_trim(int device);

#endif
