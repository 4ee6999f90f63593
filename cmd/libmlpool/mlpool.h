/* SPDX-FileCopyrightText: 2026 The mlpool authors */
/* SPDX-License-Identifier: MIT */
/* mlpool: a pool of GPU memory for programs in C, C++ and other languages.
 *
 * Link with -lmlpool, or load libmlpool.so at run time. It needs libc and, once a pool is created, the
 * CUDA driver (libcuda.so.1): no CUDA toolkit, and no cudart.
 *
 *     mlpool_pool *pool;
 *     void *p;
 *     if (mlpool_create(0, "slack=0.1", &pool) || mlpool_alloc(pool, &p, bytes, stream, "activations"))
 *       fprintf(stderr, "%s\n", mlpool_error());
 *     kernel<<<grid, block, 0, stream>>>(p);
 *     mlpool_free(pool, p, stream);
 *
 * All functions may be called from any thread at any time. No function aborts the process or throws.
 * Each returns MLPOOL_OK or the reason why it changed nothing, unless said below; mlpool_error returns the reason as text.
 * In a child of fork every call fails with MLPOOL_ERROR_FORKED, since Go does not work there, nor CUDA if the parent used it.
 *
 * Memory is handed out in stream order, as by cudaMallocAsync: a block is for work that is queued on its
 * stream from now on, and mlpool_free frees it after the work queued on its stream so far. Nothing waits
 * for the GPU, and in a steady state nothing calls the driver. */
#ifndef MLPOOL_H
#define MLPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A change that breaks callers increases it; new functions do not. */
#define MLPOOL_ABI 2

/* mlpool_abi returns the MLPOOL_ABI of the library. */
int mlpool_abi(void);

/* A pool of memory of one device. A handle stays invalid after mlpool_destroy: calls with it return
 * MLPOOL_ERROR_CLOSED. */
typedef struct mlpool_pool mlpool_pool;

/* A cudaStream_t or CUstream; NULL is the default stream. cudaStreamPerThread is the calling thread's. */
typedef void *mlpool_stream;

typedef enum {
  MLPOOL_OK = 0,
  MLPOOL_ERROR_INVALID = 1,       /* a wrong argument or option */
  MLPOOL_ERROR_OUT_OF_MEMORY = 2, /* the pool works on */
  MLPOOL_ERROR_WOULD_BLOCK = 3,   /* mlpool_try_alloc found no free block */
  MLPOOL_ERROR_UNKNOWN_BLOCK = 4, /* the pointer is not the first byte of a live block of the pool */
  MLPOOL_ERROR_CLOSED = 5,        /* the pool was destroyed */
  MLPOOL_ERROR_ASLEEP = 6,        /* between mlpool_sleep and mlpool_wake, of all or of a tag */
  MLPOOL_ERROR_UNSUPPORTED = 7,   /* the device, the driver or the pool's options cannot */
  MLPOOL_ERROR_NO_DRIVER = 8,     /* there is no CUDA driver */
  MLPOOL_ERROR_DRIVER = 9,        /* the CUDA driver refused a call */
  MLPOOL_ERROR_LEAK = 10,         /* mlpool_destroy freed live blocks */
  MLPOOL_ERROR_FILE = 11,         /* a file or socket cannot be written or read */
  MLPOOL_ERROR_FORKED = 12,       /* the process is a child of fork */
  MLPOOL_ERROR_INTERNAL = 13      /* a defect of the library */
} mlpool_result;

/* mlpool_error returns one line about the last call of this thread that failed, "" if there was none. It
 * is valid until the thread's next call. */
const char *mlpool_error(void);

/* mlpool_create creates a pool of memory of a device, counted from 0 as CUDA_VISIBLE_DEVICES does. It
 * reserves no memory, unless the options say so. A process can create 65 535 pools, and 20 KiB of the host's memory stay
 * with each that was destroyed.
 *
 * options is NULL or a list "key=value,key=value". The keys are those of the trainer's [allocator] section
 * that concern the pool (configs/README.md):
 *   strategy, reuse, segments, segment_bytes, max_segment_bytes, gc_threshold, slack, busy_slack,
 *   preallocate, max_bytes, max_fraction
 * and
 *   trace_events=N    keeps the last N calls for mlpool_snapshot, but for those of captures and mlpool_tag_alloc; each
 *                     call then takes longer
 *   keep_mapped=true  returns no memory to the driver before mlpool_destroy
 *   peers=1:2         devices whose kernels and copies may use the memory, which must be of virtual segments;
 *                     peers=all: every device that can
 *   streams_last=true each stream lasts as long as the pool, or until mlpool_release_stream. Then memory that was
 *                     freed on one serves all others; without it only after mlpool_trim, or before a request fails
 *   shareable=true    other processes can map blocks (mlpool_export, mlpool_send), and NCCL can register the memory;
 *                     shareable=auto: if the device can
 * A key that options does not name is taken from the environment: MLPOOL_MAX_BYTES is max_bytes. */
int mlpool_create(int device, const char *options, mlpool_pool **pool);

/* mlpool_check_options returns the error that mlpool_create would return for wrong options. It needs no
 * driver. */
int mlpool_check_options(const char *options);

/* mlpool_destroy returns all memory to the driver. The work on the memory must be done. If blocks are
 * live, their memory is returned too, and the result is MLPOOL_ERROR_LEAK; the error names their tags. */
int mlpool_destroy(mlpool_pool *pool);

/* mlpool_alloc sets *ptr to a block of at least bytes bytes, aligned to 256, with undefined contents. A
 * block of 0 bytes has an address of its own. tag is NULL or a short text that does not change, such as a
 * string constant; it appears in errors, statistics and snapshots. */
int mlpool_alloc(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream, const char *tag);

/* mlpool_alloc_aligned is mlpool_alloc for an address that is a multiple of alignment, a power of two of
 * at most 1 GiB. */
int mlpool_alloc_aligned(mlpool_pool *pool, void **ptr, size_t bytes, size_t alignment, mlpool_stream stream, const char *tag);

/* mlpool_try_alloc is mlpool_alloc that neither waits nor calls the driver. If no free memory of the
 * stream fits, it returns MLPOOL_ERROR_WOULD_BLOCK. */
int mlpool_try_alloc(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream, const char *tag);

/* mlpool_free frees a block after the work queued on stream so far. Later work on stream may get the
 * memory at once. */
int mlpool_free(mlpool_pool *pool, void *ptr, mlpool_stream stream);

/* mlpool_record_stream says that work on stream also uses the block: its memory is not used again before
 * the work queued on stream at the time of mlpool_free is done. */
int mlpool_record_stream(mlpool_pool *pool, void *ptr, mlpool_stream stream);

/* mlpool_release_stream gives the memory of a stream to all others. It waits for the work on the stream, which may
 * be destroyed then. With streams_last=true it must be called before a stream is destroyed. Without, a stream may
 * also be destroyed while blocks name it, once its work is done. */
int mlpool_release_stream(mlpool_pool *pool, mlpool_stream stream);

/* mlpool_trim returns unused memory to the driver until at most keep bytes are reserved. It waits for the
 * work that used that memory. While a capture is open, it keeps memory whose work it may not wait for. */
int mlpool_trim(mlpool_pool *pool, size_t keep);

/* mlpool_reserve reserves memory ahead, so that bytes are unused. */
int mlpool_reserve(mlpool_pool *pool, size_t bytes);

/* mlpool_set_limit changes the limit on reserved bytes, those of captures and tags included; 0: none. A pool that has
 * more keeps it, and does not grow. */
int mlpool_set_limit(mlpool_pool *pool, size_t bytes);

/* mlpool_set_tag_limit limits the bytes of live blocks with a tag, other than those of captures. It must be called before
 * the first block is allocated. A request beyond it fails without a call of the function of mlpool_on_out_of_memory. A
 * pool with a limit by tag has no mlpool_try_alloc. */
int mlpool_set_tag_limit(mlpool_pool *pool, const char *tag, size_t bytes);

/* mlpool_on_out_of_memory sets a function that is called before a request of bytes bytes fails for lack of
 * memory, on the thread of the request; NULL: none. It may free blocks of this pool and returns nonzero to
 * try again. error is what the request would fail with. A request that has begun may still call the function set before. */
typedef int (*mlpool_out_of_memory)(void *arg, size_t bytes, const char *error);
int mlpool_on_out_of_memory(mlpool_pool *pool, mlpool_out_of_memory function, void *arg);

/* Counters since mlpool_create. Sizes are in bytes. */
typedef struct {
  size_t size; /* the caller sets it to sizeof(mlpool_stats); fields beyond it stay as they are */
  int64_t allocs, frees;
  int64_t refused;                     /* requests that failed for lack of memory */
  int64_t driver_calls, driver_mallocs; /* all calls, and requests for memory */
  int64_t host_waits;                  /* in which the host waited for queued work */
  int64_t mappings, stitches;          /* chunks mapped, and ranges of chunks that were mapped again, side by side */
  int64_t allocated, allocated_peak;   /* by live blocks, rounded up */
  int64_t reserved, reserved_peak;     /* held from the driver */
  int64_t driver_frees;                /* of memory that was given back */
} mlpool_stats;

/* mlpool_get_stats fills stats. Of a pool that served several streams, or captures, allocated_peak is an
 * upper bound. */
int mlpool_get_stats(mlpool_pool *pool, mlpool_stats *stats);

/* mlpool_reset_peaks sets the peaks to the current values. */
int mlpool_reset_peaks(mlpool_pool *pool);

/* mlpool_stats_json writes the counters, by stream, by size and by tag too, as JSON to buffer, with a zero
 * byte at the end, if it has room, and sets *bytes to the size of that text with the zero byte. It is
 * enough to call it twice: with a NULL buffer of size 0, then with a larger one. If the buffer is too
 * small the result is MLPOOL_ERROR_INVALID. */
int mlpool_stats_json(mlpool_pool *pool, char *buffer, size_t size, size_t *bytes);

/* mlpool_snapshot writes a file. By the end of its name: ".pickle", the memory and the traced calls as
 * PyTorch's _dump_snapshot, for pytorch.org/memory_viz; ".csv", the traced calls as RMM's log; ".json", a
 * timeline of them for ui.perfetto.dev. The last two need the option trace_events. */
int mlpool_snapshot(mlpool_pool *pool, const char *path);

/* mlpool_sleep waits for the work on the pool's memory and gives the memory back to the driver, but keeps
 * the addresses. mlpool_wake maps new memory at the same addresses. With keep, mlpool_sleep copies the contents of live
 * blocks to pinned host memory, and mlpool_wake copies them back. Without, they are undefined after mlpool_wake. CUDA
 * graphs that use them stay valid. Nothing may use the memory between the two calls; mlpool_alloc then returns
 * MLPOOL_ERROR_ASLEEP. Registrations of the memory with NCCL and for RDMA must be undone first: they would stay with the
 * old memory. While a capture is open, mlpool_sleep and mlpool_tag_sleep fail. */
int mlpool_sleep(mlpool_pool *pool, int keep);
int mlpool_wake(mlpool_pool *pool);

/* Memory by tag. mlpool_tag_alloc is mlpool_alloc from memory that serves only mlpool_tag_alloc with an equal tag, or from that
 * of an open capture whose filter takes the stream. mlpool_tag_sleep and mlpool_tag_wake are mlpool_sleep and mlpool_wake
 * of the memory of one tag, while all other memory may be used; sleep waits for all work on the device. mlpool_sleep and
 * mlpool_wake are of the memory of all tags too. For a tag that had no request the error lists those that had. Unused memory
 * of tags is returned by every mlpool_trim, and before another request fails. A pool with mlpool_set_tag_limit has no
 * mlpool_tag_alloc. */
int mlpool_tag_alloc(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream, const char *tag);
int mlpool_tag_sleep(mlpool_pool *pool, const char *tag, int keep);
int mlpool_tag_wake(mlpool_pool *pool, const char *tag);

/* Allocations of work that is captured into CUDA graphs. Between mlpool_capture_begin and
 * mlpool_capture_end the pool calls filter with the stream of each request. If it returns nonzero, the request gets memory
 * that serves only captures with this id, so a graph may use it whenever it is launched. Captures, one after the
 * other, may have the same id and so share memory. Call mlpool_capture_release once for each mlpool_capture_begin, when the
 * graph is destroyed and no longer runs. The pool returns the memory once every begin of the id is released, every block
 * is freed, and every capture during which one was freed is released too. A capture has ended, or is released, also if
 * the result is an error of the driver, which then has not taken memory back. mlpool_capture_begin waits for other
 * threads that wait for the device. While the pool sleeps, no new id gets memory. */
typedef int (*mlpool_filter)(void *arg, mlpool_stream stream);
int mlpool_capture_begin(mlpool_pool *pool, uint64_t id, mlpool_filter filter, void *arg);
int mlpool_capture_end(mlpool_pool *pool, uint64_t id);
int mlpool_capture_release(mlpool_pool *pool, uint64_t id);

/* Memory of captures by their id, which is not 0, for a program that knows which of its requests belong to which
 * capture: then the filter of mlpool_capture_begin is NULL. mlpool_capture_retain keeps the memory of id until another
 * mlpool_capture_release. mlpool_capture_alloc allocates from it, also while no capture is open. mlpool_capture_alloc_at
 * allocates a block, now free, at the address that it had before, so that a graph that writes to it can be launched
 * again. mlpool_capture_trim returns the memory to the driver if its captures were all released. */
int mlpool_capture_retain(mlpool_pool *pool, uint64_t id);
int mlpool_capture_alloc(mlpool_pool *pool, uint64_t id, void **ptr, size_t bytes, mlpool_stream stream, const char *tag);
int mlpool_capture_alloc_at(mlpool_pool *pool, uint64_t id, void *ptr, size_t bytes, mlpool_stream stream, const char *tag);
int mlpool_capture_trim(mlpool_pool *pool, uint64_t id);

/* A region of a pool's addresses: a segment, which is one call of the driver or a range of mapped chunks, or a block of
 * the segment before it. Blocks cover their segment, by address. */
typedef enum {
  MLPOOL_SEGMENT = 0,
  MLPOOL_LIVE = 1,     /* handed out */
  MLPOOL_FREE = 2,     /* on its stream */
  MLPOOL_WAITING = 3,  /* freed, while other streams still use it */
  MLPOOL_UNMAPPED = 4, /* without memory */
  MLPOOL_ELSEWHERE = 5 /* memory that is shown at another address */
} mlpool_region_kind;

typedef struct {
  size_t size; /* sizeof(mlpool_region) of the library */
  mlpool_region_kind kind;
  void *ptr;
  size_t bytes;
  mlpool_stream stream;
  uint64_t id;     /* of the captures that have the segment; 0: none */
  int mapped;      /* 1: the segment consists of pages; 2: they are mapped a second time; 0: neither */
  const char *tag; /* of a live block; valid during the call */
} mlpool_region;

/* mlpool_visit calls visitor for every region, segment by segment. The visitor must not call the pool. */
typedef void (*mlpool_visitor)(void *arg, const mlpool_region *region);
int mlpool_visit(mlpool_pool *pool, mlpool_visitor visitor, void *arg);

/* mlpool_add_peer lets the kernels and copies of another device use the memory of virtual segments, that of captures and
 * later memory included, as the option peers does. */
int mlpool_add_peer(mlpool_pool *pool, int device);

/* Memory of other processes. The pool must be shareable, and a block must stay live until the other process has closed it.
 * That process can access the whole pages that the block is in.
 *
 * mlpool_export names a block as bytes to be sent by any means: to processes of the same user, in the same network namespace,
 * which may import it several times. The name is the same until the block is freed. mlpool_import maps the block for a
 * device, and for all that can access the device's memory. Between processes that share memory there is one connection, and
 * at most 64 descriptors are open while a block is imported. While a process maps a block, mlpool_sleep and mlpool_tag_sleep
 * of its memory fail. An import fails while the block is asleep, and after the process that exported it has ended.
 * mlpool_close_received unmaps a block, after the work on it is done. */
typedef struct {
  unsigned char bytes[48];
} mlpool_ipc_handle;
int mlpool_export(mlpool_pool *pool, void *ptr, mlpool_ipc_handle *handle);
int mlpool_import(int device, const mlpool_ipc_handle *handle, void **ptr, size_t *bytes);

/* mlpool_send sends a block over a connected Unix socket, also to another network namespace. The pool does not know how
 * long it is mapped, so it must stay awake: mlpool_wake gives the block other memory. mlpool_receive waits for a block
 * and maps it for a device, until mlpool_close_received. */
int mlpool_send(mlpool_pool *pool, void *ptr, int socket);
int mlpool_receive(int device, int socket, void **ptr, size_t *bytes);
int mlpool_close_received(void *ptr);

#ifdef __cplusplus
}
#endif
#endif
