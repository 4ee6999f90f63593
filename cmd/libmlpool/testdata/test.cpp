// Tests mlpool.hpp on a device.
#include "mlpool.hpp"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1); \
    } \
  } while (0)

template <typename E, typename F>
void throws(int line, F f, const char *text) {
  try {
    f();
  } catch (const E &e) {
    if (std::string(e.what()).find(text) == std::string::npos) std::fprintf(stderr, "line %d: %s\n", line, e.what()), std::exit(1);
    return;
  }
  std::fprintf(stderr, "line %d: no exception\n", line);
  std::exit(1);
}

// What PyTorch calls.
extern "C" {
void *mlpool_torch_alloc(ssize_t bytes, int device, void *stream);
void mlpool_torch_free(void *ptr, ssize_t bytes, int device, void *stream);
void mlpool_torch_begin(int device, unsigned long long first, unsigned long long second, std::function<bool(void *)> *filter);
void mlpool_torch_end(int device, unsigned long long first, unsigned long long second);
void mlpool_torch_release(int device, unsigned long long first, unsigned long long second);
}

// test_filter has PyTorch's filter of a capture throw, take a request, and leave one.
void test_filter() {
  enum { THROW, TAKE, LEAVE } does = THROW;
  std::function<bool(void *)> filter = [&does](void *) { return does == THROW ? throw std::runtime_error("not now") : does == TAKE; };
  void *before = mlpool_torch_alloc(1 << 20, 0, nullptr);
  mlpool_torch_free(before, 1 << 20, 0, nullptr);
  mlpool_torch_begin(0, 0, 7, &filter);
  for (int i = 0; i < 2; i++) throws<std::runtime_error>(__LINE__, [] { mlpool_torch_alloc(1 << 20, 0, nullptr); }, "not now");
  does = TAKE;
  void *captured = mlpool_torch_alloc(1 << 20, 0, nullptr);
  does = LEAVE;
  void *other = mlpool_torch_alloc(1 << 20, 0, nullptr);
  CHECK(captured && captured != before && other == before);
  mlpool_torch_free(captured, 1 << 20, 0, nullptr);
  mlpool_torch_free(other, 1 << 20, 0, nullptr);
  mlpool_torch_end(0, 0, 7);
  mlpool_torch_release(0, 0, 7);
  // The filter of a capture that did not begin may be gone.
  does = THROW;
  mlpool_torch_begin(0, 0, 1ull << 63, &filter); // whose id is 0
  mlpool_torch_free(mlpool_torch_alloc(1 << 20, 0, nullptr), 1 << 20, 0, nullptr);
}

int main() {
  test_filter();
  throws<mlpool::error>(__LINE__, [] { mlpool::pool p(0, "slck=1"); }, "slack");
  mlpool::pool pool(0, "max_bytes=67108864");
  {
    mlpool::block a(pool, 1 << 20, nullptr, "a"), b(pool, 100, nullptr);
    CHECK(a.data() && a.data() != b.data() && a.size() == 1 << 20);
    mlpool::block c = std::move(a);
    CHECK(!a.data() && c.data());
    b = std::move(c);
    b.record_stream(nullptr);
    CHECK(pool.stats().allocs == 2);
    throws<mlpool::out_of_memory>(__LINE__, [&] { mlpool::block d(pool, 128 << 20, nullptr, "too large"); }, "too large");
    throws<std::bad_alloc>(__LINE__, [&] { pool.allocate(128 << 20, nullptr); }, "limit");
  }
  CHECK(pool.stats().allocated == 0);
  mlpool::memory_resource resource(pool, nullptr), same(pool, nullptr);
  CHECK(resource.is_equal(same) && !resource.is_equal(*std::pmr::new_delete_resource()));
  void *p = resource.allocate(1000, 4096);
  CHECK(reinterpret_cast<uintptr_t>(p) % 4096 == 0);
  resource.deallocate(p, 1000, 4096);
  throws<mlpool::error>(__LINE__, [&] { pool.deallocate(p, nullptr); }, "block");
  pool.allocate(256, nullptr, "forgotten");
  throws<mlpool::error>(__LINE__, [&] { pool.close(); }, "forgotten");
  std::puts("2 passed, 0 failed");
}
