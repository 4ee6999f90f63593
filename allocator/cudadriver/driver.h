// The functions of driver.c that raw_linux.go calls. Addresses, streams, events, pools and
// handles are uintptr_t. Each function loads the driver if none did before, calls it in the
// device's primary context, and returns a CUresult, or CUDADRIVER_NONE without a driver.
#ifndef CUDADRIVER_DRIVER_H
#define CUDADRIVER_DRIVER_H

#include <stdint.h>

enum { CUDADRIVER_NONE = -1 };

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
int cudadriver_available(void);

cudadriver_value cudadriver_malloc(int64_t bytes);
int cudadriver_free(uintptr_t addr);
cudadriver_pair cudadriver_mem_info(void);  // free, total

cudadriver_value cudadriver_stream_new(void);
int cudadriver_stream_sync(uintptr_t stream);
int cudadriver_stream_free(uintptr_t stream);

cudadriver_value cudadriver_event_new(void);
int cudadriver_event_record(uintptr_t event, uintptr_t stream);
cudadriver_value cudadriver_event_query(uintptr_t event);  // whether it is done
int cudadriver_event_wait(uintptr_t stream, uintptr_t event);
int cudadriver_event_sync(uintptr_t event);
int cudadriver_event_free(uintptr_t event);

cudadriver_value cudadriver_page_size(void);
cudadriver_value cudadriver_range_reserve(int64_t bytes);
int cudadriver_range_release(uintptr_t addr, int64_t bytes);
cudadriver_value cudadriver_pages_create(int64_t bytes);
int cudadriver_pages_release(uintptr_t handle);
int cudadriver_pages_map(uintptr_t addr, uintptr_t handle, int64_t bytes);
int cudadriver_pages_unmap(uintptr_t addr, int64_t bytes);

cudadriver_value cudadriver_pool_new(int64_t threshold, int follow_events, int opportunistic, int internal);
int cudadriver_pool_free(uintptr_t pool);
cudadriver_value cudadriver_pool_malloc(uintptr_t pool, int64_t bytes, uintptr_t stream);
int cudadriver_pool_give_back(uintptr_t addr, uintptr_t stream);
cudadriver_pair cudadriver_pool_reserved(uintptr_t pool);  // now, peak
int cudadriver_pool_reset_peak(uintptr_t pool);
int cudadriver_pool_trim(uintptr_t pool, int64_t keep);

cudadriver_pair cudadriver_graph_reserved(void);  // now, peak
int cudadriver_graph_reset_peak(void);
int cudadriver_graph_trim(void);

#endif
