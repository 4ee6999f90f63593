// A batch out of a data set that stays on the device as bytes: x[rows,cols] = images[indices[i],:]
// and y[rows] = labels[indices[i]].
#include "bf16.cuh"
#include "launch.cuh"

namespace {

// A CTA makes the rows blockIdx.x, blockIdx.x + gridDim.x, ... If ALIGNED,
// four pixels at a time: 784 bytes in 196 loads, each stored at once.
template <bool ALIGNED, typename Value>
__global__ void gather(Value *x, int32_t *y, const uint8_t *images, const uint8_t *labels, const int32_t *indices, int64_t rows, int64_t cols) {
  // The tables are never written: what a CTA begins with is prefetched before pdl_wait.
  uchar4 first = {};
  if (ALIGNED && threadIdx.x < cols / 4) first = reinterpret_cast<const uchar4 *>(images + int64_t(indices[blockIdx.x]) * cols)[threadIdx.x];
  pdl_wait();
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    int64_t at = indices[i];
    if (y && threadIdx.x == 0) y[i] = labels[at];
    if (ALIGNED) {
      const uchar4 *from = reinterpret_cast<const uchar4 *>(images + at * cols);
      for (int64_t j = threadIdx.x; j < cols / 4; j += blockDim.x) {
        uchar4 v = i == blockIdx.x && j == threadIdx.x ? first : from[j];
        store4(x + i * cols, make_float4(v.x, v.y, v.z, v.w), int(j));
      }
    } else {
      for (int64_t j = threadIdx.x; j < cols; j += blockDim.x) store(x + i * cols + j, images[at * cols + j]);
    }
  }
}

}  // namespace

int kernels_gather(uintptr_t stream, int precision, uintptr_t x, uintptr_t y, uintptr_t images, uintptr_t labels, uintptr_t indices, int64_t rows,
                   int64_t cols) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  bool aligned = cols % 4 == 0 && images % 4 == 0 && x % 16 == 0;
  return with_values(precision, [&](auto value) {
    using Value = decltype(value);
    auto kernel = aligned ? gather<true, Value> : gather<false, Value>;
    return launch(stream, {ctas(rows, 1), 256}, kernel, ptr<Value>(x), ptr<int32_t>(y), ptr<uint8_t>(images), ptr<uint8_t>(labels),
                  ptr<int32_t>(indices), rows, cols);
  });
}
