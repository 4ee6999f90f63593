// Tests mlpool_rmm.hpp on a device, with rmm.hpp instead of RMM.
#include "mlpool_rmm.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, mlpool_error()); \
      std::exit(1); \
    } \
  } while (0)

template <typename E, typename F>
void throws(int line, F f, const char *text) {
  try {
    f();
  } catch (const E &e) {
    if (!std::strstr(e.what(), text)) std::fprintf(stderr, "line %d: %s\n", line, e.what()), std::exit(1);
    return;
  }
  std::fprintf(stderr, "line %d: no exception\n", line);
  std::exit(1);
}

constexpr std::size_t MIB = 1 << 20;

template <typename... Args>
void driver(const char *name, Args... args) {
  auto symbol = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "cudadriver_symbol");  // of the emulator
  void *function = symbol ? symbol(name) : dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
  CHECK(function && !((int (*)(Args...))function)(args...));
}

cudaStream_t new_stream() {
  void *context = nullptr, *stream = nullptr;
  driver("cuDevicePrimaryCtxRetain", &context, 0);
  driver("cuCtxSetCurrent", context);
  driver("cuStreamCreate", &stream, 1u);
  return (cudaStream_t)stream;
}

mlpool_stats stats(const mlpool::rmm_resource &r) {
  mlpool_stats s{};
  s.size = sizeof s;
  mlpool::check(mlpool_get_stats(r.handle(), &s));
  return s;
}

void test_blocks() {
  mlpool::rmm_resource r("max_bytes=67108864");
  cudaStream_t one = new_stream(), other = new_stream();
  CHECK(!r.allocate(one, 0));
  r.deallocate(one, nullptr, 0);
  void *a = r.allocate(one, MIB), *b = r.allocate(one, 100, 16);
  CHECK(a && b && a != b && reinterpret_cast<uintptr_t>(b) % 256 == 0);
  std::memset(a, 1, MIB);
  r.deallocate(other, a, MIB);
  r.deallocate(one, b, 100);
  throws<rmm::out_of_memory>(__LINE__, [&] { r.allocate(one, 128 * MIB); }, "limit");
  throws<std::bad_alloc>(__LINE__, [&] { r.allocate(one, 1ul << 50); }, "out_of_memory");
  r.deallocate(one, r.allocate(one, 32 * MIB), 32 * MIB);
  CHECK(stats(r).allocs == stats(r).frees && stats(r).refused == 2);
  mlpool::check(mlpool_trim(r.handle(), 0));
  for (cudaStream_t s : {one, other}) driver("cuStreamDestroy_v2", (void *)s);
}

void test_sharing() {
  throws<mlpool::error>(__LINE__, [] { mlpool::rmm_resource r("slck=1"); }, "slack");
  std::optional<mlpool::rmm_resource> first(std::in_place);
  mlpool::rmm_resource copy(*first), assigned, different;
  assigned = copy;
  CHECK(copy == *first && assigned == copy && different != copy);
  void *a = first->allocate(nullptr, MIB);
  first.reset();
  copy.deallocate(nullptr, a, MIB);
  CHECK(stats(assigned).frees == 1);
  get_property(copy, cuda::mr::device_accessible{});
  rmm::current = 1000;
  throws<mlpool::error>(__LINE__, [] { mlpool::rmm_resource r; }, "device");
  rmm::current = 0;
}

void test_handle() {
  mlpool_pool *pool = nullptr;
  mlpool::check(mlpool_create(0, nullptr, &pool));
  mlpool::rmm_resource one(pool), two(pool);
  CHECK(one == two && one.handle() == pool);
  void *a = one.allocate(nullptr, MIB);
  two.deallocate(nullptr, a, MIB);
  char *printed = nullptr;
  std::size_t bytes = 0;
  FILE *before = stderr;
  stderr = open_memstream(&printed, &bytes);
  two.deallocate(nullptr, a, MIB);
  std::fclose(std::exchange(stderr, before));
  CHECK(std::strstr(printed, "freed before"));
  std::free(printed);
  mlpool::check(mlpool_destroy(pool));
  throws<rmm::bad_alloc>(__LINE__, [&] { one.allocate(nullptr, MIB); }, "closed");
}

#ifndef RMM_BASE
void test_sync() {
  mlpool::rmm_resource r;
  void *a = r.allocate_sync(MIB, 4096);
  CHECK(reinterpret_cast<uintptr_t>(a) % 4096 == 0 && synchronized == 1);
  r.deallocate_sync(a, MIB, 4096);
  throws<rmm::bad_alloc>(__LINE__, [&] { r.allocate_sync(MIB, 3); }, "power of two");
  synchronizes = cudaErrorOfTest;
  throws<rmm::cuda_error>(__LINE__, [&] { r.allocate_sync(MIB); }, "of the test");
  CHECK(stats(r).allocs == 2 && stats(r).frees == 2);
}
#else
void test_sync() {
  mlpool::rmm_resource r, copy(r);
  rmm::mr::device_memory_resource &base = r;
  CHECK(base == copy);
  base.deallocate(nullptr, base.allocate(nullptr, MIB), MIB);
  CHECK(stats(copy).frees == 1);
}
#endif

int main() {
  test_blocks();
  test_sharing();
  test_handle();
  test_sync();
  std::puts("4 passed, 0 failed");
}
