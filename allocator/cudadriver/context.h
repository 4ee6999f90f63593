// The driver's functions, its devices, and how a call runs in the primary context of one.
#ifndef CUDADRIVER_CONTEXT_H
#define CUDADRIVER_CONTEXT_H

#include "declarations.h"
#include "driver.h"

// The driver's functions; NULL for those that it lacks.
#define DECLARE(name, ...) int (*name)(__VA_ARGS__);
typedef struct {
  CD_FUNCTIONS(DECLARE)
} cudadriver_functions;

extern cudadriver_functions cudadriver_library;

// Physical memory of one kind.
typedef struct {
  cd_allocation_prop prop;
  size_t page;  // bytes of one
  int code;     // why there is none
} memory_kind;

typedef struct {
  int begun;  // whether the rest is set
  int code;   // why the device cannot be used
  int id;
  cd_context context;
  memory_kind pages, shareable;
} device_state;

// What a call changes on its thread, and leave restores.
typedef struct {
  const device_state *device;
  cd_context before;
  int mode;  // of captures
} visit;

// cudadriver_enter makes the primary context of a device current, and sets the thread's capture
// mode so that no call invalidates a capture. cudadriver_leave restores both, and returns code or,
// if that is CD_SUCCESS, its own error. A thread without a context keeps that of device 0, which
// the CUDA runtime would choose too.
int cudadriver_enter(int device, visit *v);
int cudadriver_leave(const visit *v, int code);

// TRY calls a function if the driver has it.
#define TRY(function, ...) (cudadriver_library.function ? cudadriver_library.function(__VA_ARGS__) : CD_ERROR_NOT_SUPPORTED)

// IN_CONTEXT calls a function in the context of a device, unless refusal is an error. It evaluates
// refusal and the arguments in the context, where at is the device.
#define IN_CONTEXT(device, refusal, function, ...) \
  ({ \
    visit visit_ = {0}; \
    int code_ = cudadriver_enter(device, &visit_); \
    if (!code_) { \
      const device_state *at = visit_.device; \
      (void)at; \
      code_ = (refusal); \
      code_ = cudadriver_leave(&visit_, code_ ? code_ : TRY(function, __VA_ARGS__)); \
    } \
    code_; \
  })

#define VALID(valid) ((valid) ? CD_SUCCESS : CD_ERROR_INVALID_VALUE)

// CALL calls a function if the arguments are valid, PAGES if the device also has pages.
#define CALL(device, valid, function, ...) IN_CONTEXT(device, VALID(valid), function, __VA_ARGS__)
#define PAGES(device, valid, function, ...) IN_CONTEXT(device, at->pages.code ? at->pages.code : VALID(valid), function, __VA_ARGS__)

#endif
