// Tests mlpool.hpp on a device.
#include "mlpool.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>

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

int main() {
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
  std::puts("1 passed, 0 failed");
}
