// CUDA's driver: virtual memory management. Physical memory is one file in memory, with a part for each
// cuMemCreate; memory that can be exported is a file of its own. Unlike CUDA's, cuMemRelease refuses memory
// that is still mapped.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "cuda_runtime.h"

namespace {

constexpr size_t PAGE = 2 << 20, MAX_FILLED = 64 << 20;

constexpr char NAME[] = "emulated pages";

struct Part {
  size_t bytes;
  int device;  // that has the memory; -1: another process gives it back
  int file;
  off_t place;     // in the file
  int mapped = 0;  // number of mappings
};
std::map<size_t, Part> parts;  // by the handle
size_t handles;                // so far

struct View {
  size_t bytes, part;  // part: its handle
  unsigned devices = 0;  // with access, a bit for each
};
std::map<size_t, View> views;     // mappings, by address
std::map<size_t, size_t> ranges;  // reserved bytes, by address

// file is for memory that is not exported. It only grows.
int file() {
  static const int f = memfd_create(NAME, MFD_CLOEXEC);
  return f;
}
off_t length;

bool whole(size_t n) { return n % PAGE == 0; }
void *pointer(size_t addr) { return reinterpret_cast<void *>(addr); }

// empty removes the memory at addresses.
void *empty(void *at, size_t bytes, int flags) { return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0); }

bool exists(const CUmemLocation &l) { return l.type == CU_MEM_LOCATION_TYPE_DEVICE && l.id >= 0 && l.id < emulator::devices(); }

bool on_device(const CUmemAllocationProp &p) { return p.type == CU_MEM_ALLOCATION_TYPE_PINNED && exists(p.location); }

// fill gives a part of a file its memory, with NaN up to a size.
bool fill(const Part &p) {
  static const std::vector<char> nan(PAGE, char(0xff));
  if (ftruncate(p.file, p.place + off_t(p.bytes))) return false;
  for (size_t at = 0; at < p.bytes && p.bytes <= MAX_FILLED; at += PAGE)
    if (pwrite(p.file, nan.data(), PAGE, p.place + off_t(at)) != ssize_t(PAGE)) return false;
  return true;
}

// empty_file returns a part's memory to the host.
bool empty_file(const Part &p) {
  if (p.file != file()) return !close(p.file);
  return !fallocate(p.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, p.place, off_t(p.bytes));
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
  if (!bytes || !whole(bytes) || !on_device(*p)) return CUDA_ERROR_INVALID_VALUE;
  Part part = {bytes, p->location.id, file(), length};
  if (!emulator::take(part.device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (p->requestedHandleTypes) part.file = memfd_create(NAME, MFD_CLOEXEC), part.place = 0;
  if (part.file < 0 || !fill(part)) {
    if (part.file >= 0) empty_file(part);
    return emulator::give(part.device, bytes), CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (part.file == file()) length += off_t(bytes);
  parts[ *handle = ++handles] = part;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  auto lock = emulator::lock();
  if (!parts.count(handle) || parts.at(handle).mapped) return CUDA_ERROR_INVALID_VALUE;
  Part part = parts.at(handle);
  if (!empty_file(part)) return CUDA_ERROR_INVALID_VALUE;
  if (part.device >= 0) emulator::give(part.device, part.bytes);
  parts.erase(handle);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle handle, int type, unsigned long long) {
  auto lock = emulator::lock();
  bool can = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && parts.count(handle) && parts.at(handle).file != file();
  if (!can) return CUDA_ERROR_INVALID_VALUE;
  int copy = fcntl(parts.at(handle).file, F_DUPFD_CLOEXEC, 0);
  return *static_cast<int *>(fd) = copy, copy < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *exported, int type) {
  auto lock = emulator::lock();
  int fd = int(reinterpret_cast<intptr_t>(exported));
  char name[64] = {};
  std::string link = "/proc/self/fd/" + std::to_string(fd);
  bool ours = readlink(link.c_str(), name, sizeof name - 1) > 0 && std::string(name).starts_with(std::string("/memfd:") + NAME);
  off_t bytes = ours ? lseek(fd, 0, SEEK_END) : 0;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || bytes <= 0 || !whole(size_t(bytes))) return CUDA_ERROR_INVALID_VALUE;
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  parts[ *handle = ++handles] = {size_t(bytes), -1, copy, 0};
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
  void *p = mmap(pointer(addr), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, parts.at(handle).file, parts.at(handle).place);
  if (p == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  views[addr] = {bytes, handle};
  parts.at(handle).mapped++;
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr addr, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  auto lock = emulator::lock();
  if (!exactly(addr, bytes) || !count) return CUDA_ERROR_INVALID_VALUE;
  unsigned devices = 0;
  for (const CUmemAccessDesc *a = access; a < access + count; a++) {
    if (!exists(a->location) || a->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
    devices |= 1u << a->location.id;
  }
  views.at(addr).devices |= devices;
  return mprotect(pointer(addr), bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

bool emulator::accessible(size_t addr) {
  auto after = views.upper_bound(addr);
  if (after == views.begin()) return true;
  const auto &[first, view] = *std::prev(after);
  return addr >= first + view.bytes || view.devices >> device() & 1;
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

const Functions page_functions = {
    FUNCTION(cuMemGetAllocationGranularity),
    FUNCTION(cuMemAddressReserve),
    FUNCTION(cuMemAddressFree),
    {"cuMemCreate", emulator::with_context<cuMemCreate>()},
    FUNCTION(cuMemRelease),
    FUNCTION(cuMemMap),
    FUNCTION(cuMemUnmap),
    {"cuMemSetAccess", emulator::with_context<cuMemSetAccess>()},
    FUNCTION(cuMemExportToShareableHandle),
    FUNCTION(cuMemImportFromShareableHandle),
};
