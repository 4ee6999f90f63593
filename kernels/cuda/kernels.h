// The C interface of the kernels, called from raw_cuda.go and launches_cuda.go.
//
// Addresses, streams and events are uintptr_t. Functions return a cudaError_t. A launcher returns the error
// of its own launch. Every function clears the last error of its thread, so that no other call reports it.
// launches.go defines what the operations compute.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uintptr_t value;
  int code;
} kernels_value;

typedef struct {
  char name[256];
  unsigned char uuid[16];
  int major, minor, sms, driver, runtime;
  int64_t memory;
} kernels_info;

// runtime/runtime.cu
const char *kernels_error_name(int code);
int kernels_available(void);
int kernels_toolkit(void);
int kernels_device(kernels_info *info);

kernels_value kernels_stream_new(int high_priority);
int kernels_stream_free(uintptr_t stream);
int kernels_stream_sync(uintptr_t stream);

kernels_value kernels_event_new(int timed);
int kernels_event_free(uintptr_t event);
int kernels_event_record(uintptr_t event, uintptr_t stream);
// kernels_event_record_external records with cudaEventRecordExternal in a capture, and otherwise as
// kernels_event_record.
int kernels_event_record_external(uintptr_t event, uintptr_t stream);
int kernels_stream_wait_event(uintptr_t stream, uintptr_t event);
int kernels_event_elapsed(float *ms, uintptr_t start, uintptr_t end);

int kernels_upload(uintptr_t stream, uintptr_t dst, const void *src, int64_t bytes);
int kernels_download(uintptr_t stream, void *dst, uintptr_t src, int64_t bytes);
int kernels_fill(uintptr_t stream, uintptr_t dst, int value, int64_t bytes);

// gemm/dispatch.cu, which chooses among the kernels of GEMM. If indices is set, a is a table of uint8 images,
// and the GEMM takes the rows at these indices. If pixels is set, the values of a are pixels. If beside is
// set, the kernel leaves shared memory for CTAs of an exchange. prefetch says which operands may be read
// before griddepcontrol.wait. stride, if not 0, is the number of elements from a row of a to the next; only TN has
// one.
enum { KERNELS_FP32, KERNELS_TF32, KERNELS_TF32X3, KERNELS_BF16 };
enum { KERNELS_NN, KERNELS_NT, KERNELS_TN };
enum { KERNELS_NONE, KERNELS_ACTIVATE, KERNELS_ACTIVATE_BACKWARD, KERNELS_SGD };
enum { KERNELS_PREFETCH_A = 1, KERNELS_PREFETCH_B = 2, KERNELS_PREFETCH_C = 4 };
typedef struct {
  uintptr_t c, a, b, y, rounded, t, indices;
  int64_t m, n, k, stride;
  float alpha;
  int layout, epilogue, prefetch, pixels, beside;
} kernels_gemm_args;
// kernels_has reports whether the code that runs on the device, which may have been compiled for an
// older one, can compute GEMMs in a precision.
int kernels_has(int precision);
// kernels_fuses_wgrad reports whether kernels_dgrad_wgrad is one launch, and faster than two.
int kernels_fuses_wgrad(int precision, kernels_gemm_args p);
// kernels_wants_transposed reports whether a wgrad is faster with b transposed at t, and then reads it there.
int kernels_wants_transposed(int precision, kernels_gemm_args p);
// kernels_takes_stride reports whether there is a kernel for a wgrad with a stride.
int kernels_takes_stride(int precision, kernels_gemm_args p);
// kernels_chains reports whether kernels_grouped_gemm takes a GEMM in a chain.
int kernels_chains(int precision, kernels_gemm_args p);
enum { KERNELS_MAX_GROUP = 16 };
typedef struct {
  kernels_gemm_args gemms[KERNELS_MAX_GROUP];
  int count;
} kernels_group;

typedef struct {
  uintptr_t dlogits, dx, loss, correct, x, w, labels, indices;
  int64_t rows, classes, k;
  int prefetch;
} kernels_classifier_args;

// kernels.Exchange, field by field.
enum { KERNELS_MAX_RANKS = 16, KERNELS_EXCHANGE_FLAGS = 256 };
typedef struct {
  uintptr_t base[KERNELS_MAX_RANKS], stop;
  int64_t weights, updates, rounded, n;
  int rank, ranks;
} kernels_exchange;
int kernels_exchange_updates(uintptr_t stream, kernels_exchange e);

// The launches of interface Launches in launches.go, which says what they compute.
int kernels_gemm(uintptr_t stream, int precision, kernels_gemm_args g);
int kernels_grouped_gemm(uintptr_t stream, int precision, kernels_group group);
int kernels_dgrad_wgrad(uintptr_t stream, int precision, kernels_gemm_args g);
#define KERNELS_TRANSPOSED_STRIDE(rows) (((rows) + 3) / 4 * 4)  // TransposedStride of gemm.go
int kernels_transpose(uintptr_t stream, uintptr_t t, uintptr_t x, int64_t rows, int64_t cols);
int kernels_activate(uintptr_t stream, int precision, uintptr_t y, uintptr_t x, int64_t n);
int kernels_activate_backward(uintptr_t stream, int precision, uintptr_t dx, uintptr_t dy, uintptr_t y, int64_t n);
int kernels_softmax(uintptr_t stream, uintptr_t p, uintptr_t x, int64_t rows, int64_t cols);
int kernels_cross_entropy(uintptr_t stream, uintptr_t loss, uintptr_t correct, uintptr_t x, uintptr_t labels, int64_t rows, int64_t cols);
int kernels_softmax_cross_entropy_backward(uintptr_t stream, int precision, uintptr_t dx, uintptr_t p, uintptr_t labels, int64_t rows, int64_t cols);
int kernels_classifier(uintptr_t stream, int precision, kernels_classifier_args c);
int kernels_reduce_loss(uintptr_t stream, uintptr_t out, uintptr_t loss, uintptr_t correct, int64_t rows, int64_t batch);
int kernels_step(uintptr_t stream, uintptr_t w, uintptr_t dw, float rate, int64_t n);
int kernels_round(uintptr_t stream, int precision, uintptr_t y, uintptr_t x, int64_t n);
int kernels_gather(uintptr_t stream, int precision, uintptr_t x, uintptr_t y, uintptr_t images, uintptr_t labels, uintptr_t indices, int64_t rows,
                   int64_t cols);

// runtime/graph.cu
int kernels_capture_begin(uintptr_t stream);
kernels_value kernels_capture_end(uintptr_t stream);
int kernels_graph_launch(uintptr_t graph, uintptr_t stream);
int kernels_graph_free(uintptr_t graph);

// runtime/memory.cu
enum { KERNELS_MOST_CYCLES = 2000000000 };
int kernels_fill_words(uintptr_t stream, uintptr_t dst, uint32_t value, int64_t bytes);
int kernels_move(uintptr_t stream, uintptr_t dst, uintptr_t src, int64_t bytes, int early);
int kernels_differing(int64_t *count, uintptr_t stream, uintptr_t src, uint32_t value, int64_t bytes);
int kernels_checksum(uint64_t *sum, uintptr_t stream, uintptr_t src, int64_t bytes);
int kernels_spin(uintptr_t stream, int64_t cycles);

// runtime/ipc.cu
enum { KERNELS_HANDLE_BYTES = 64 };
kernels_value kernels_ipc_new(int64_t bytes, char *handle);
int kernels_ipc_free(uintptr_t addr);
kernels_value kernels_ipc_open(const char *handle);
int kernels_ipc_close(uintptr_t addr);
kernels_value kernels_abort_flag_new(void);
int kernels_abort_flag_free(uintptr_t addr);

// runtime/nvtx.cu
int kernels_nvtx(void);
void kernels_range_push(const char *name);
void kernels_range_pop(void);

#ifdef __cplusplus
}
#endif
