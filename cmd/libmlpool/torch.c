// The functions that PyTorch calls: those of torch.cuda.memory.CUDAPluggableAllocator. They use a pool for
// each device, which is created by the device's first request.
//
// PyTorch is C++ without a C interface, so this file relies on two facts of its binary interface, which is
// that of GCC's libstdc++: how a std::function is called, and how a c10::OutOfMemoryError is thrown. Where
// PyTorch lacks a symbol, an error is thrown that all versions have.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "mlpool.h"

enum { DEVICES = 64 };

static mlpool_pool *pools[DEVICES];
static pthread_mutex_t creating = PTHREAD_MUTEX_INITIALIZER;
static char *options;

// mlpool_torch_options sets the options of pools that are created later.
int mlpool_torch_options(const char *list) {
  pthread_mutex_lock(&creating);
  free(options);
  options = strdup(list ? list : "");
  pthread_mutex_unlock(&creating);
  return options ? MLPOOL_OK : MLPOOL_ERROR_INVALID;
}

// mlpool_torch_pool sets *pool to the pool of a device.
int mlpool_torch_pool(int device, mlpool_pool **pool) {
  int code = MLPOOL_OK;
  if (device < 0 || device >= DEVICES) return MLPOOL_ERROR_INVALID;
  if (!(*pool = __atomic_load_n(&pools[device], __ATOMIC_ACQUIRE))) {
    pthread_mutex_lock(&creating);
    if (!(*pool = pools[device]) && !(code = mlpool_create(device, options, pool))) __atomic_store_n(&pools[device], *pool, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&creating);
  }
  return code;
}

// mlpool_torch_find sets *pool to the pool of a device if there is one, else to NULL.
int mlpool_torch_find(int device, mlpool_pool **pool) {
  *pool = device < 0 || device >= DEVICES ? NULL : __atomic_load_n(&pools[device], __ATOMIC_ACQUIRE);
  return MLPOOL_OK;
}

// A std::string of libstdc++ (_GLIBCXX_USE_CXX11_ABI=1).
typedef struct {
  char *data;
  size_t size;
  union {
    char local[16];
    size_t capacity;
  };
} cxx_string;

// A c10::SourceLocation.
typedef struct {
  const char *function, *file;
  uint32_t line;
} source_location;

// throw_error throws a c10::OutOfMemoryError if memory is short, and else a c10::Error, which Python sees as
// torch.OutOfMemoryError and RuntimeError. It returns only if this is not PyTorch.
__attribute__((noinline)) static void throw_error(int code, const char *text) {
  void *c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD), *cuda = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  if (!c10 || !cuda) return;
  char line[2304];
  snprintf(line, sizeof line, "%s%s", code == MLPOOL_ERROR_OUT_OF_MEMORY ? "CUDA out of memory. " : "", text);
  void *(*allocate_exception)(size_t) = (void *(*)(size_t))dlsym(c10, "__cxa_allocate_exception");
  void (*throw_exception)(void *, void *, void (*)(void *)) = (void (*)(void *, void *, void (*)(void *)))dlsym(c10, "__cxa_throw");
  void *(*operator_new)(size_t) = (void *(*)(size_t))dlsym(c10, "_Znwm");
  // c10::Error::Error(c10::SourceLocation, std::string)
  void (*make)(void *, source_location, cxx_string *) = (void (*)(void *, source_location, cxx_string *))dlsym(
      c10, "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  void *type = dlsym(cuda, "_ZTIN3c1016OutOfMemoryErrorE"), **table = dlsym(cuda, "_ZTVN3c1016OutOfMemoryErrorE");
  if (code == MLPOOL_ERROR_OUT_OF_MEMORY && allocate_exception && throw_exception && operator_new && make && type && table) {
    enum { MOST = 1024 };  // bytes of the exception, several times what it has
    void *e = allocate_exception(MOST);
    cxx_string s = {.size = strlen(line), .capacity = strlen(line)};
    s.data = memcpy(operator_new(s.size + 1), line, s.size + 1);
    make(e, (source_location){"mlpool_torch_alloc", "mlpool", 0}, &s);  // it takes the bytes of s
    *(void **)e = table + 2;                                             // after the offset and the type
    throw_exception(e, type, (void (*)(void *))table[2]);                // its destructor
  }
  // c10::detail::torchCheckFail(function, file, line, text)
  void (*check_fail)(const char *, const char *, uint32_t, const char *) =
      (void (*)(const char *, const char *, uint32_t, const char *))dlsym(c10, "_ZN3c106detail14torchCheckFailEPKcS2_jS2_");
  if (check_fail) check_fail("mlpool_torch_alloc", "mlpool", 0, line);
}

// A std::function<bool(cudaStream_t)> of libstdc++: what it calls, how that is copied or destroyed, and the
// call itself.
typedef struct {
  void *functor[2];
  int (*manage)(void *to, const void *from, int operation);
  char (*invoke)(const void *functor, void **stream);
} cxx_function;

enum { CLONE = 2, DESTROY = 3 };  // std::_Manager_operation

// An open capture.
typedef struct capture {
  int device;
  uint64_t id;
  cxx_function filter;
  struct capture *next;
} capture;

static capture *captures;
static pthread_mutex_t capturing = PTHREAD_MUTEX_INITIALIZER;

// matching has the capture that a thread's request belongs to.
static pthread_key_t matching;

// tagged has the tag of a thread's requests, or NULL.
static pthread_key_t tagged;

// in_child undoes the locks that another thread held at fork: a child's calls fail, and must not hang.
static void in_child(void) {
  pthread_mutex_init(&creating, NULL);
  pthread_mutex_init(&capturing, NULL);
}

__attribute__((constructor)) static void begin(void) {
  pthread_atfork(NULL, NULL, in_child);
  pthread_key_create(&matching, NULL);
  pthread_key_create(&tagged, NULL);
}

// mlpool_torch_tag makes the memory of a tag serve the thread's requests; NULL: that of no tag. The text must last.
int mlpool_torch_tag(const char *tag) { return pthread_setspecific(tagged, tag) ? MLPOOL_ERROR_INVALID : MLPOOL_OK; }

// mlpool_torch_request allocates for PyTorch, outside of captures that it knows.
int mlpool_torch_request(mlpool_pool *pool, void **ptr, size_t bytes, mlpool_stream stream) {
  const char *tag = pthread_getspecific(tagged);
  return tag ? mlpool_tag_alloc(pool, ptr, bytes, stream, tag) : mlpool_alloc(pool, ptr, bytes, stream, "torch");
}

// unmatch ends a request: others of the thread belong to no capture that was found for it.
static void unmatch(void) {
  if (pthread_getspecific(matching)) pthread_setspecific(matching, NULL);
}

static void unlock(pthread_mutex_t **m) { pthread_mutex_unlock(*m); }

// match finds the capture that a request belongs to: PyTorch's filter may throw, which it must not do through Go's
// frames. Then the lock is undone, and nothing is allocated.
static void match(int device, void *stream) {
  if (!__atomic_load_n(&captures, __ATOMIC_RELAXED)) return;
  pthread_mutex_lock(&capturing);
  __attribute__((cleanup(unlock))) pthread_mutex_t *held = &capturing;
  capture *first = NULL;
  for (capture *c = captures; c; c = c->next)
    if (c->device == device && c->filter.invoke(c->filter.functor, &stream)) first = c;
  pthread_setspecific(matching, first);
}

static int filter(void *arg, mlpool_stream stream) {
  (void)stream;
  return arg == pthread_getspecific(matching);
}

// mlpool_torch_alloc is PyTorch's malloc. A tensor without elements has no memory.
void *mlpool_torch_alloc(ssize_t bytes, int device, void *stream) {
  mlpool_pool *pool;
  void *ptr = NULL;
  if (bytes == 0) return NULL;
  match(device, stream);
  int code = bytes < 0 ? MLPOOL_ERROR_INVALID : mlpool_torch_pool(device, &pool);
  if (!code) code = mlpool_torch_request(pool, &ptr, (size_t)bytes, stream);
  unmatch();
  if (code) {
    throw_error(code, mlpool_error());
    fprintf(stderr, "%s\n", mlpool_error());
  }
  return ptr;
}

// mlpool_torch_segment is the malloc of a torch.cuda.MemPool: PyTorch cuts tensors from it, and raises the
// error itself if there is no memory. Pages of their own let NCCL register it.
void *mlpool_torch_segment(ssize_t bytes, int device, void *stream) {
  enum { PAGE = 2 << 20 };
  mlpool_pool *pool;
  void *ptr = NULL;
  if (bytes <= 0 || mlpool_torch_pool(device, &pool)) return NULL;
  match(device, stream);
  int code = mlpool_alloc_aligned(pool, &ptr, (size_t)bytes, PAGE, stream, "torch.cuda.MemPool");
  unmatch();
  return code ? NULL : ptr;
}

// complain prints the error of a function that PyTorch gives no way to fail.
static void complain(int code) {
  if (code && code != MLPOOL_ERROR_FORKED) fprintf(stderr, "%s\n", mlpool_error());
}

void mlpool_torch_free(void *ptr, ssize_t bytes, int device, void *stream) {
  mlpool_pool *pool;
  (void)bytes;
  if (ptr) complain(mlpool_torch_pool(device, &pool) ?: mlpool_free(pool, ptr, stream));
}

// mlpool_torch_record_stream tries each pool until one knows the block.
void mlpool_torch_record_stream(void *ptr, void *stream) {
  int code = ptr ? MLPOOL_ERROR_UNKNOWN_BLOCK : MLPOOL_OK;
  for (int i = 0; i < DEVICES && code == MLPOOL_ERROR_UNKNOWN_BLOCK; i++) {
    mlpool_pool *pool = __atomic_load_n(&pools[i], __ATOMIC_ACQUIRE);
    if (pool) code = mlpool_record_stream(pool, ptr, stream);
  }
  complain(code);
}

void mlpool_torch_empty_cache(void) {
  for (int i = 0; i < DEVICES; i++) {
    mlpool_pool *pool = __atomic_load_n(&pools[i], __ATOMIC_ACQUIRE);
    if (pool) complain(mlpool_trim(pool, 0));
  }
}

// id_of makes one number of the two of a MempoolId_t, of which one is 0.
static uint64_t id_of(unsigned long long first, unsigned long long second) { return second ? 2 * second : 2 * first + 1; }

// drop ends a capture that is in no list; NULL: none.
static void drop(capture *c) {
  if (c && c->filter.manage) c->filter.manage(c->filter.functor, c->filter.functor, DESTROY);
  free(c);
}

void mlpool_torch_begin(int device, unsigned long long first, unsigned long long second, cxx_function *f) {
  mlpool_pool *pool;
  capture *c = calloc(1, sizeof *c);
  int code = c ? mlpool_torch_pool(device, &pool) : MLPOOL_ERROR_INVALID;
  if (!code) {
    c->device = device;
    c->id = id_of(first, second);
    if (f->manage) f->manage(c->filter.functor, f->functor, CLONE);
    c->filter.manage = f->manage;
    c->filter.invoke = f->invoke;
    pthread_mutex_lock(&capturing);
    if (!(code = mlpool_capture_begin(pool, c->id, filter, c))) {
      c->next = captures;
      captures = c;
    }
    pthread_mutex_unlock(&capturing);
  }
  if (code) {
    drop(c);
    throw_error(MLPOOL_ERROR_INVALID, mlpool_error());
  }
}

void mlpool_torch_end(int device, unsigned long long first, unsigned long long second) {
  mlpool_pool *pool;
  uint64_t id = id_of(first, second);
  if (mlpool_torch_pool(device, &pool)) return;
  pthread_mutex_lock(&capturing);
  complain(mlpool_capture_end(pool, id));  // nobody calls the filter after that
  for (capture **at = &captures; *at; at = &(*at)->next) {
    capture *c = *at;
    if (c->device != device || c->id != id) continue;
    *at = c->next;
    drop(c);
    break;
  }
  pthread_mutex_unlock(&capturing);
}

void mlpool_torch_release(int device, unsigned long long first, unsigned long long second) {
  mlpool_pool *pool;
  if (!mlpool_torch_pool(device, &pool)) complain(mlpool_capture_release(pool, id_of(first, second)));
}
