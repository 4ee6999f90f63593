// What mlpool_rmm.hpp needs of CUDA, CCCL and RMM, whose headers TestPrograms links to this file. With RMM_BASE it is
// an RMM that has device_memory_resource.
#ifndef TEST_RMM_HPP
#define TEST_RMM_HPP

#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>

typedef struct CUstream_st *cudaStream_t;
#define cudaStreamPerThread ((cudaStream_t)2)
typedef enum { cudaSuccess, cudaErrorOfTest } cudaError_t;
inline cudaError_t synchronizes = cudaSuccess;
inline int synchronized = 0;
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return synchronized++, synchronizes; }
inline const char *cudaGetErrorString(cudaError_t) { return "an error of the test"; }

namespace cuda {
class stream_ref {
 public:
  stream_ref(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_;
};

namespace mr {
struct device_accessible {};
}  // namespace mr
}  // namespace cuda

namespace rmm {
struct cuda_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class bad_alloc : public std::bad_alloc {
 public:
  explicit bad_alloc(const std::string &text) : text_("std::bad_alloc: " + text) {}
  const char *what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

struct out_of_memory : bad_alloc {
  explicit out_of_memory(const std::string &text) : bad_alloc("out_of_memory: " + text) {}
};

struct cuda_device_id {
  int id;
  int value() const { return id; }
};
inline int current = 0;
inline cuda_device_id get_current_cuda_device() { return {current}; }

#ifdef RMM_BASE
struct cuda_stream_view : cuda::stream_ref {
  using cuda::stream_ref::stream_ref;
  cudaStream_t value() const { return get(); }
};

namespace mr {
class device_memory_resource {
 public:
  virtual ~device_memory_resource() = default;
  void *allocate(cuda_stream_view stream, std::size_t bytes, std::size_t = 256) { return do_allocate(bytes, stream); }
  void deallocate(cuda_stream_view stream, void *ptr, std::size_t bytes, std::size_t = 256) noexcept { do_deallocate(ptr, bytes, stream); }
  bool operator==(const device_memory_resource &other) const noexcept { return do_is_equal(other); }
  bool operator!=(const device_memory_resource &other) const noexcept { return !do_is_equal(other); }
  friend void get_property(const device_memory_resource &, cuda::mr::device_accessible) noexcept {}

 private:
  virtual void *do_allocate(std::size_t bytes, cuda_stream_view stream) = 0;
  virtual void do_deallocate(void *ptr, std::size_t bytes, cuda_stream_view stream) noexcept = 0;
  virtual bool do_is_equal(const device_memory_resource &other) const noexcept = 0;
};
}  // namespace mr
#endif
}  // namespace rmm

#endif
