// Ranges for profilers, by NVTX: a header that does nothing without a profiler.
#include "kernels.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
int kernels_nvtx(void) { return 1; }
void kernels_range_push(const char *name) { nvtxRangePushA(name); }
void kernels_range_pop(void) { nvtxRangePop(); }
#else
int kernels_nvtx(void) { return 0; }
void kernels_range_push(const char *) {}
void kernels_range_pop(void) {}
#endif
