// A program that checks what the calls of driver.h leave on their thread, and in a child of fork. It
// uses the libcuda.so.1 that the calls load. Each failure is a line.
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

enum { MODE_GLOBAL = 0 };

static int failures;

static void check(int ok, const char *what) {
  if (ok) return;
  failures++;
  printf("%s\n", what);
}

static int (*current)(void **context);
static int (*begin_capture)(void *stream, int mode);
static int (*end_capture)(void *stream, void **graph);
static int (*exchange)(int *mode);

static void *context(void) {
  void *c = NULL;
  check(!current(&c), "cuCtxGetCurrent failed");
  return c;
}

static uintptr_t allocate(int device) {
  cudadriver_value p = cudadriver_malloc(device, 1 << 20);
  check(!p.code, "no memory of a device");
  return p.value;
}

static void use(int device) { check(!cudadriver_free(device, allocate(device)), "memory of a device is not freed"); }

static void *contexts(void *devices) {
  check(!context(), "a new thread has a context");
  if ((intptr_t)devices > 1) {
    use(1);
    check(!context(), "a call for device 1 left its context");
  }
  use(0);
  void *first = context();
  check(first != NULL, "a call for device 0 left no context");
  if ((intptr_t)devices > 1) {
    use(1);
    check(context() == first, "a call for device 1 did not restore the context");
  }
  return NULL;
}

// captures makes calls while its own thread captures in the mode of the runtime's default.
static void captures(void) {
  cudadriver_value stream = cudadriver_stream_new(0), event = cudadriver_event_new(0);
  check(!stream.code && !event.code, "no stream or event");
  check(!begin_capture((void *)stream.value, MODE_GLOBAL), "no capture");
  cudadriver_value is = cudadriver_stream_is_capturing(0, stream.value);
  check(!is.code && is.value == 1, "the stream is not capturing");
  uintptr_t memory = allocate(0);
  check(!cudadriver_event_query(0, event.value).code, "an event cannot be queried");
  void *graph = NULL;
  check(!end_capture((void *)stream.value, &graph), "the capture is invalid");
  is = cudadriver_stream_is_capturing(0, stream.value);
  check(!is.code && is.value == 0, "the stream is capturing after its end");
  int mode = MODE_GLOBAL;
  check(!exchange(&mode) && mode == MODE_GLOBAL, "the mode of captures was not restored");
  check(!cudadriver_free(0, memory), "memory is not freed");
  check(!cudadriver_event_free(0, event.value), "an event is not freed");
  check(!cudadriver_stream_free(0, stream.value), "a stream is not freed");
}

static void forks(void) {
  pid_t child = fork();
  if (!child) {
    int code = cudadriver_malloc(0, 1 << 20).code, count = cudadriver_device_count().code;
    _exit(code == CUDADRIVER_FORKED && count == CUDADRIVER_FORKED ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  int status = 0;
  check(child > 0 && waitpid(child, &status, 0) == child && !status, "a child of fork could call the driver");
  use(0);
}

int main(void) {
  cudadriver_value devices = cudadriver_device_count();
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (devices.code || !library) return printf("no driver: code %d\n", devices.code), EXIT_FAILURE;
  *(void **)&current = dlsym(library, "cuCtxGetCurrent");
  *(void **)&begin_capture = dlsym(library, "cuStreamBeginCapture_v2");
  *(void **)&end_capture = dlsym(library, "cuStreamEndCapture");
  *(void **)&exchange = dlsym(library, "cuThreadExchangeStreamCaptureMode");
  int found = current && begin_capture && end_capture && exchange;
  if (!found) return printf("the driver lacks functions\n"), EXIT_FAILURE;
  pthread_t thread;
  check(!pthread_create(&thread, NULL, contexts, (void *)(intptr_t)devices.value), "no thread");
  check(!pthread_join(thread, NULL), "the thread does not end");
  captures();
  forks();
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
