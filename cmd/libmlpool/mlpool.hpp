// SPDX-FileCopyrightText: 2026 The mlpool authors
// SPDX-License-Identifier: MIT
// mlpool.h for C++17: a pool and blocks that end with their scope, errors as exceptions, and a
// std::pmr::memory_resource of one stream. The memory is a GPU's, so the host must not access it.
#ifndef MLPOOL_HPP
#define MLPOOL_HPP

#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "mlpool.h"

namespace mlpool {

// A call that failed. code is its mlpool_result.
struct error : std::runtime_error {
  explicit error(int code) : std::runtime_error(mlpool_error()), code(code) {}
  const int code;
};

// Too little memory. It is caught as a std::bad_alloc.
struct out_of_memory : std::bad_alloc {
  out_of_memory() : text(std::make_shared<std::string>(mlpool_error())) {}
  const char *what() const noexcept override { return text->c_str(); }

 private:
  std::shared_ptr<std::string> text;
};

// check throws the error of a result of mlpool.h.
inline void check(int code) {
  if (code == MLPOOL_ERROR_OUT_OF_MEMORY) throw out_of_memory();
  if (code) throw error(code);
}

// A pool of a device's memory. Blocks must end before it does.
class pool {
 public:
  explicit pool(int device = 0, const std::string &options = "") { check(mlpool_create(device, options.c_str(), &handle_)); }
  pool(const pool &) = delete;
  pool &operator=(const pool &) = delete;
  ~pool() {
    if (handle_) mlpool_destroy(handle_);
  }

  // close is the destructor with an error, of live blocks or of the driver.
  void close() { check(mlpool_destroy(std::exchange(handle_, nullptr))); }

  // handle is for the functions of mlpool.h.
  mlpool_pool *handle() const { return handle_; }

  void *allocate(size_t bytes, mlpool_stream stream, const char *tag = nullptr) {
    void *ptr = nullptr;
    check(mlpool_alloc(handle_, &ptr, bytes, stream, tag));
    return ptr;
  }

  void deallocate(void *ptr, mlpool_stream stream) { check(mlpool_free(handle_, ptr, stream)); }

  mlpool_stats stats() const {
    mlpool_stats s{};
    s.size = sizeof s;
    check(mlpool_get_stats(handle_, &s));
    return s;
  }

 private:
  mlpool_pool *handle_ = nullptr;
};

// A block that is freed on its stream at the end of its scope.
class block {
 public:
  block(pool &from, size_t bytes, mlpool_stream stream, const char *tag = nullptr)
      : pool_(&from), stream_(stream), data_(from.allocate(bytes, stream, tag)), bytes_(bytes) {}
  block(block &&o) noexcept : pool_(o.pool_), stream_(o.stream_), data_(std::exchange(o.data_, nullptr)), bytes_(o.bytes_) {}
  block &operator=(block &&o) noexcept {
    std::swap(pool_, o.pool_);
    std::swap(stream_, o.stream_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~block() {
    if (data_) mlpool_free(pool_->handle(), data_, stream_);
  }

  void *data() const { return data_; }
  size_t size() const { return bytes_; }

  // record_stream says that work on another stream also uses the block.
  void record_stream(mlpool_stream stream) { check(mlpool_record_stream(pool_->handle(), data_, stream)); }

 private:
  pool *pool_;
  mlpool_stream stream_;
  void *data_;
  size_t bytes_;
};

// A memory resource for work on one stream. Two are equal if they have the same pool and stream.
class memory_resource : public std::pmr::memory_resource {
 public:
  memory_resource(pool &from, mlpool_stream stream) : pool_(&from), stream_(stream) {}

 private:
  void *do_allocate(size_t bytes, size_t alignment) override {
    void *ptr = nullptr;
    check(mlpool_alloc_aligned(pool_->handle(), &ptr, bytes, alignment, stream_, nullptr));
    return ptr;
  }
  void do_deallocate(void *ptr, size_t, size_t) override { check(mlpool_free(pool_->handle(), ptr, stream_)); }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    auto o = dynamic_cast<const memory_resource *>(&other);
    return o && o->pool_ == pool_ && o->stream_ == stream_;
  }

  pool *pool_;
  mlpool_stream stream_;
};

}  // namespace mlpool

#endif
