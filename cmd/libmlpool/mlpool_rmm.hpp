// SPDX-FileCopyrightText: 2026 The mlpool authors
// SPDX-License-Identifier: MIT
// mlpool.h as a memory resource of RMM 25.10 and later. Link with -lmlpool, besides what RMM needs.
//
//     mlpool::rmm_resource resource("slack=0.1");
//     rmm::mr::set_current_device_resource(resource);   // &resource before RMM 26.06
#ifndef MLPOOL_RMM_HPP
#define MLPOOL_RMM_HPP

#if __has_include(<rmm/mr/device_memory_resource.hpp>)
#include <rmm/mr/device_memory_resource.hpp>
#define MLPOOL_RMM_BASE
#elif __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#include <rmm/mr/device/device_memory_resource.hpp>  // of RMM 25.10
#define MLPOOL_RMM_BASE
#else
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#endif

#include <cuda_runtime_api.h>
#include <rmm/cuda_device.hpp>
#include <rmm/error.hpp>

#include <cstdio>
#include <memory>
#include <string>

#include "mlpool.hpp"

namespace mlpool {

// An rmm_resource is a pool of one device for rmm::device_buffer and all that takes a resource of RMM. It derives from
// rmm::mr::device_memory_resource as long as RMM has that class, until 26.04; later, it satisfies
// cuda::mr::resource_with<cuda::mr::device_accessible>. Copies share the pool, and are equal.
//
// Blocks are for the stream of the request, and freed after the work queued so far on the stream of the free. A block of 0
// bytes is nullptr. A request that fails throws rmm::out_of_memory if memory is short, and else rmm::bad_alloc, with the
// text of mlpool_error; a free that fails prints it.
class rmm_resource final
#ifdef MLPOOL_RMM_BASE
    : public rmm::mr::device_memory_resource
#endif
{
 public:
  // The pool is of the device that is current now, and ends with the last copy. options are those of mlpool_create.
  explicit rmm_resource(const std::string &options = "") {
    mlpool_pool *pool = nullptr;
    check(mlpool_create(rmm::get_current_cuda_device().value(), options.c_str(), &pool));
    pool_.reset(pool, mlpool_destroy);
  }

  // The pool must outlive the resource and its copies.
  explicit rmm_resource(mlpool_pool *pool) : pool_(pool, [](mlpool_pool *) {}) {}

  // handle is for the functions of mlpool.h.
  mlpool_pool *handle() const noexcept { return pool_.get(); }

#ifndef MLPOOL_RMM_BASE
  void *allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = kAlignment) { return take(stream.get(), bytes, alignment); }

  void deallocate(cuda::stream_ref stream, void *ptr, std::size_t, std::size_t = kAlignment) noexcept { give(stream.get(), ptr); }

  // allocate_sync returns a block that every stream may use at once.
  void *allocate_sync(std::size_t bytes, std::size_t alignment = kAlignment) {
    void *ptr = take(nullptr, bytes, alignment);
    const cudaError_t code = cudaStreamSynchronize(nullptr);
    if (code == cudaSuccess) return ptr;
    give(nullptr, ptr);
    throw rmm::cuda_error(cudaGetErrorString(code));
  }

  void deallocate_sync(void *ptr, std::size_t, std::size_t = kAlignment) noexcept { give(nullptr, ptr); }

  bool operator==(const rmm_resource &other) const noexcept { return pool_ == other.pool_; }
  bool operator!=(const rmm_resource &other) const noexcept { return pool_ != other.pool_; }

  friend constexpr void get_property(const rmm_resource &, cuda::mr::device_accessible) noexcept {}
#endif

 private:
#ifdef MLPOOL_RMM_BASE
  void *do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override { return take(stream.value(), bytes, kAlignment); }

  void do_deallocate(void *ptr, std::size_t, rmm::cuda_stream_view stream) noexcept override { give(stream.value(), ptr); }

  bool do_is_equal(const rmm::mr::device_memory_resource &other) const noexcept override {
    auto o = dynamic_cast<const rmm_resource *>(&other);
    return o && o->pool_ == pool_;
  }
#endif

  static constexpr std::size_t kAlignment = 256;  // of every block

  // named returns the stream that 0 stands for where the program is compiled.
  static mlpool_stream named(cudaStream_t stream) noexcept {
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    if (!stream) return cudaStreamPerThread;
#endif
    return stream;
  }

  void *take(cudaStream_t stream, std::size_t bytes, std::size_t alignment) const {
    if (!bytes) return nullptr;
    void *ptr = nullptr;
    const bool any = alignment && kAlignment % alignment == 0;
    const int code = any ? mlpool_alloc(handle(), &ptr, bytes, named(stream), "rmm")
                         : mlpool_alloc_aligned(handle(), &ptr, bytes, alignment, named(stream), "rmm");
    if (code == MLPOOL_ERROR_OUT_OF_MEMORY) throw rmm::out_of_memory(mlpool_error());
    if (code) throw rmm::bad_alloc(mlpool_error());
    return ptr;
  }

  void give(cudaStream_t stream, void *ptr) const noexcept {
    const int code = ptr ? mlpool_free(handle(), ptr, named(stream)) : MLPOOL_OK;
    if (code && code != MLPOOL_ERROR_FORKED) std::fprintf(stderr, "%s\n", mlpool_error());
  }

  std::shared_ptr<mlpool_pool> pool_;
};

}  // namespace mlpool

#undef MLPOOL_RMM_BASE
#endif
