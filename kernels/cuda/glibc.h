// Included before everything else that nvcc compiles. From 2.41 on, glibc's <math.h> declares cospi, sinpi
// and rsqrt, which C23 added, as noexcept. The headers of CUDA before 13.1 declare them otherwise, so nvcc
// refuses both together. This includes <math.h> first, without what C23 and GNU add to it.
//
// Only the passes that include CUDA's headers define __CUDACC__; the last one compiles what they have
// included.
#ifdef __CUDACC__
#include <features.h>
#if __GLIBC_PREREQ(2, 41)
#pragma push_macro("__GLIBC_USE_ISOC23")
#pragma push_macro("__USE_GNU")
#undef __GLIBC_USE_ISOC23
#define __GLIBC_USE_ISOC23 0
#undef __USE_GNU
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS // glibc's header, not that of libstdc++, which includes others
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#pragma pop_macro("__USE_GNU")
#pragma pop_macro("__GLIBC_USE_ISOC23")
#endif
#endif
