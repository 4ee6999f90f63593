// CUDA's driver: virtual memory management. Physical memory is one file in memory, with a part for each
// cuMemCreate. Unlike CUDA's, cuMemRelease refuses memory that is still mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <vector>

#include "cuda_runtime.h"

namespace {

constexpr size_t PAGE = 2 << 20, MAX_FILLED = 64 << 20;

struct Part {
  size_t bytes;
  int mapped = 0;  // number of mappings
};
std::map<size_t, Part> parts;  // by the handle, which is a page before its place in the file
size_t length = PAGE;          // where the next part comes, as a handle

struct View {
  size_t bytes, part;  // part: its handle
};
std::map<size_t, View> views;     // mappings, by address
std::map<size_t, size_t> ranges;  // reserved bytes, by address

int file() {
  static const int f = memfd_create("pages", MFD_CLOEXEC);
  return f;
}

bool whole(size_t n) { return n % PAGE == 0; }
void *pointer(size_t addr) { return reinterpret_cast<void *>(addr); }

// empty removes the memory at addresses.
void *empty(void *at, size_t bytes, int flags) {
  return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

bool on_device(const CUmemAllocationProp &p) {
  return p.type == CU_MEM_ALLOCATION_TYPE_PINNED && p.location.type == CU_MEM_LOCATION_TYPE_DEVICE && !p.location.id;
}

// exactly reports whether a range is that of one mapping.
bool exactly(size_t addr, size_t bytes) { return views.count(addr) && views.at(addr).bytes == bytes; }

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *p, int) {
  return *bytes = PAGE, on_device(*p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *addr, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  auto lock = emulator::lock();
  if (!bytes || !whole(bytes)) return CUDA_ERROR_INVALID_VALUE;
  void *p = empty(nullptr, bytes + PAGE, 0);
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t all = reinterpret_cast<size_t>(p), first = (all + PAGE - 1) / PAGE * PAGE;
  if (first > all) munmap(p, first - all);
  munmap(pointer(first + bytes), PAGE - (first - all));
  ranges[first] = bytes;
  return *addr = first, CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr addr, size_t bytes) {
  auto lock = emulator::lock();
  auto range = ranges.find(addr);
  auto view = views.lower_bound(addr);
  bool mapped = view != views.end() && view->first < addr + bytes;
  if (range == ranges.end() || range->second != bytes || mapped) return CUDA_ERROR_INVALID_VALUE;
  munmap(pointer(addr), bytes);
  ranges.erase(range);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *p, unsigned long long) {
  auto lock = emulator::lock();
  if (!emulator::has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes || !whole(bytes) || !on_device(*p)) return CUDA_ERROR_INVALID_VALUE;
  if (!emulator::take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (ftruncate(file(), off_t(length - PAGE + bytes))) return emulator::give(bytes), CUDA_ERROR_OUT_OF_MEMORY;
  static const std::vector<char> nan(PAGE, char(0xff));
  for (size_t at = 0; at < bytes && bytes <= MAX_FILLED; at += PAGE)
    if (pwrite(file(), nan.data(), PAGE, off_t(length - PAGE + at)) != ssize_t(PAGE)) return emulator::give(bytes), CUDA_ERROR_OUT_OF_MEMORY;
  parts[length] = {bytes};
  *handle = length;
  length += bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto lock = emulator::lock();
  if (!parts.count(handle) || parts.at(handle).mapped) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = parts.at(handle).bytes;
  if (fallocate(file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(handle - PAGE), off_t(bytes))) return CUDA_ERROR_INVALID_VALUE;
  emulator::give(bytes);
  parts.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr addr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  auto lock = emulator::lock();
  if (!parts.count(handle) || parts.at(handle).bytes != bytes || offset || !whole(addr)) return CUDA_ERROR_INVALID_VALUE;
  auto range = ranges.upper_bound(addr);
  if (range == ranges.begin() || addr + bytes > std::prev(range)->first + std::prev(range)->second) return CUDA_ERROR_INVALID_VALUE;
  auto after = views.lower_bound(addr);
  if (after != views.end() && after->first < addr + bytes) return CUDA_ERROR_INVALID_VALUE;
  if (after != views.begin() && std::prev(after)->first + std::prev(after)->second.bytes > addr) return CUDA_ERROR_INVALID_VALUE;
  void *p = mmap(pointer(addr), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file(), off_t(handle - PAGE));
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  views[addr] = {bytes, handle};
  parts.at(handle).mapped++;
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr addr, size_t bytes, const CUmemAccessDesc *access, size_t) {
  auto lock = emulator::lock();
  if (!emulator::has_context()) return CUDA_ERROR_INVALID_CONTEXT;
  bool both = access->location.type == CU_MEM_LOCATION_TYPE_DEVICE && access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (!exactly(addr, bytes) || !both) return CUDA_ERROR_INVALID_VALUE;
  return mprotect(pointer(addr), bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr addr, size_t bytes) {
  auto lock = emulator::lock();
  if (!exactly(addr, bytes)) return CUDA_ERROR_INVALID_VALUE;
  emulator::finish();
  if (empty(pointer(addr), bytes, MAP_FIXED) == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  parts.at(views.at(addr).part).mapped--;
  views.erase(addr);
  return CUDA_SUCCESS;
}
