// The functions of NCCL that raw_linux.go calls. They return a ncclResult_t, or NCCL_NONE if there
// is no library or it lacks the function.
#ifndef MLPOOL_NCCL_H
#define MLPOOL_NCCL_H

#include <stddef.h>
#include <stdint.h>

enum { NCCL_NONE = -1, NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_ID_BYTES = 128 };

typedef struct {
  uintptr_t value;
  int code;
} nccl_value;

const char *nccl_none(void);  // why there is no library
const char *nccl_error(int code, uintptr_t comm);
int nccl_version(int *version);
int nccl_id(char *id);

nccl_value nccl_comm_new(const char *id, int rank, int size);
int nccl_comm_state(uintptr_t comm, int *state);
int nccl_comm_abort(uintptr_t comm);
int nccl_comm_finalize(uintptr_t comm);
int nccl_comm_free(uintptr_t comm);
int nccl_all_reduce(uintptr_t comm, uintptr_t x, size_t n, uintptr_t stream);
int nccl_reduce_scatter(uintptr_t comm, uintptr_t x, uintptr_t part, size_t n, uintptr_t stream);
int nccl_all_gather(uintptr_t comm, uintptr_t part, uintptr_t x, size_t bytes, uintptr_t stream);

nccl_value nccl_register(uintptr_t comm, uintptr_t addr, size_t bytes);
int nccl_deregister(uintptr_t comm, uintptr_t handle);
nccl_value nccl_window_new(uintptr_t comm, uintptr_t addr, size_t bytes);
int nccl_window_free(uintptr_t comm, uintptr_t window);
nccl_value nccl_alloc(size_t bytes);
int nccl_free(uintptr_t addr);

#endif
