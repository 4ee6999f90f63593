// Memory that is mapped at addresses of the caller's choice: CUDA's virtual memory
// management, which only the driver has.
#include <cuda.h>

#include "launch.cuh"

namespace {

// The driver's functions, and what was asked of the device once.
struct Pages {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;

  CUmemAllocationProp kind = {};
  size_t size = 0;                  // bytes of a page
  int code = cudaErrorNotSupported; // why there are none

  Pages() {
    const int since = 10020;  // the CUDA that has them all
    bool all = driver_function(device_get, "cuDeviceGet", since) && driver_function(attribute, "cuDeviceGetAttribute", since) &&
               driver_function(granularity, "cuMemGetAllocationGranularity", since) &&
               driver_function(reserve, "cuMemAddressReserve", since) && driver_function(unreserve, "cuMemAddressFree", since) &&
               driver_function(create, "cuMemCreate", since) && driver_function(release, "cuMemRelease", since) &&
               driver_function(map, "cuMemMap", since) && driver_function(unmap, "cuMemUnmap", since) &&
               driver_function(set_access, "cuMemSetAccess", since);
    if (!all) return;
    CUdevice device = 0;
    int supported = 0;
    int failed = device_get(&device, 0);
    if (!failed) failed = attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = device;
    if (!failed && supported) code = granularity(&size, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    else if (failed) code = failed;
  }
};

const Pages &pages() {
  static const Pages p;
  return p;
}

// ready returns why pages cannot be used by this thread, or cudaSuccess. The driver
// wants a context, which a thread has once the runtime worked in it.
int ready() {
  static thread_local const int context = done(cudaFree(nullptr));
  return context ? context : pages().code;
}

}  // namespace

// The driver's errors have the numbers of the runtime's.

kernels_value kernels_page_size(void) {
  if (int code = ready()) return {0, code};
  return {pages().size, cudaSuccess};
}

kernels_value kernels_range_reserve(int64_t bytes) {
  if (bytes <= 0) return {0, cudaErrorInvalidValue};
  if (int code = ready()) return {0, code};
  CUdeviceptr addr = 0;
  int code = pages().reserve(&addr, size_t(bytes), pages().size, 0, 0);
  return {uintptr_t(addr), code};
}

int kernels_range_release(uintptr_t addr, int64_t bytes) {
  if (bytes <= 0) return cudaErrorInvalidValue;
  if (int code = ready()) return code;
  return pages().unreserve(addr, size_t(bytes));
}

kernels_value kernels_pages_create(int64_t bytes) {
  if (bytes <= 0) return {0, cudaErrorInvalidValue};
  if (int code = ready()) return {0, code};
  CUmemGenericAllocationHandle handle = 0;
  int code = pages().create(&handle, size_t(bytes), &pages().kind, 0);
  return {uintptr_t(handle), code};
}

int kernels_pages_release(uintptr_t handle) {
  if (int code = ready()) return code;
  return pages().release(handle);
}

int kernels_pages_map(uintptr_t addr, uintptr_t handle, int64_t bytes) {
  if (bytes <= 0) return cudaErrorInvalidValue;
  if (int code = ready()) return code;
  if (int code = pages().map(addr, size_t(bytes), 0, handle, 0)) return code;
  CUmemAccessDesc access = {};
  access.location = pages().kind.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  int code = pages().set_access(addr, size_t(bytes), &access, 1);
  // What the first call did is undone. Should that fail too, the first error says more.
  if (code) pages().unmap(addr, size_t(bytes));
  return code;
}

int kernels_pages_unmap(uintptr_t addr, int64_t bytes) {
  if (bytes <= 0) return cudaErrorInvalidValue;
  if (int code = ready()) return code;
  return pages().unmap(addr, size_t(bytes));
}
