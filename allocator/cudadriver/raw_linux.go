//go:build linux && cgo

package cudadriver

/*
#cgo LDFLAGS: -ldl
#include "driver.h"
*/
import "C"
import "unsafe"

// The functions of driver.h. raw_none.go replaces them without cgo or Linux. The last
// result is the code. device is an ordinal.

// These do not compile unless the codes are the numbers of driver.h.
var (
	_ = [1]struct{}{}[codeNone-C.CUDADRIVER_NONE]
	_ = [1]struct{}{}[codeForked-C.CUDADRIVER_FORKED]
)

func value(r C.cudadriver_value) (uintptr, int) { return uintptr(r.value), int(r.code) }
func pair(r C.cudadriver_pair) (int64, int64, int) {
	return int64(r.first), int64(r.second), int(r.code)
}

func flag(on bool) C.int {
	if on {
		return 1
	}
	return 0
}

// rawNone returns why there is no driver, once a call has returned codeNone.
func rawNone() string              { return C.GoString(C.cudadriver_none()) }
func rawErrorName(code int) string { return C.GoString(C.cudadriver_error_name(C.int(code))) }

func rawDeviceCount() (uintptr, int) { return value(C.cudadriver_device_count()) }
func rawAvailable(device int) int    { return int(C.cudadriver_available(C.int(device))) }

func rawSynchronize(device int) int { return int(C.cudadriver_synchronize(C.int(device))) }

func rawCanAccessPeer(device, peer int) (uintptr, int) {
	return value(C.cudadriver_can_access_peer(C.int(device), C.int(peer)))
}

func rawMalloc(device int, bytes int64) (uintptr, int) {
	return value(C.cudadriver_malloc(C.int(device), C.int64_t(bytes)))
}

func rawFree(device int, addr uintptr) int {
	return int(C.cudadriver_free(C.int(device), C.uintptr_t(addr)))
}

func rawMemInfo(device int) (int64, int64, int) { return pair(C.cudadriver_mem_info(C.int(device))) }

func rawMallocHost(device int, bytes int64) (uintptr, int) {
	return value(C.cudadriver_host_malloc(C.int(device), C.int64_t(bytes)))
}

func rawFreeHost(device int, addr uintptr) int {
	return int(C.cudadriver_host_free(C.int(device), C.uintptr_t(addr)))
}

func rawCopyToHost(device int, host, addr uintptr, bytes int64) int {
	return int(C.cudadriver_copy_to_host(C.int(device), C.uintptr_t(host), C.uintptr_t(addr), C.int64_t(bytes)))
}

func rawCopyFromHost(device int, addr, host uintptr, bytes int64) int {
	return int(C.cudadriver_copy_from_host(C.int(device), C.uintptr_t(addr), C.uintptr_t(host), C.int64_t(bytes)))
}

func rawNewStream(device int) (uintptr, int) { return value(C.cudadriver_stream_new(C.int(device))) }

func rawSyncStream(device int, stream uintptr) int {
	return int(C.cudadriver_stream_sync(C.int(device), C.uintptr_t(stream)))
}

func rawFreeStream(device int, stream uintptr) int {
	return int(C.cudadriver_stream_free(C.int(device), C.uintptr_t(stream)))
}

func rawIsCapturing(device int, stream uintptr) (uintptr, int) {
	return value(C.cudadriver_stream_is_capturing(C.int(device), C.uintptr_t(stream)))
}

func rawNewEvent(device int) (uintptr, int) { return value(C.cudadriver_event_new(C.int(device))) }

func rawRecordEvent(device int, event, stream uintptr) int {
	return int(C.cudadriver_event_record(C.int(device), C.uintptr_t(event), C.uintptr_t(stream)))
}

func rawQueryEvent(device int, event uintptr) (uintptr, int) {
	return value(C.cudadriver_event_query(C.int(device), C.uintptr_t(event)))
}

func rawWaitEvent(device int, stream, event uintptr) int {
	return int(C.cudadriver_event_wait(C.int(device), C.uintptr_t(stream), C.uintptr_t(event)))
}

func rawSyncEvent(device int, event uintptr) int {
	return int(C.cudadriver_event_sync(C.int(device), C.uintptr_t(event)))
}

func rawFreeEvent(device int, event uintptr) int {
	return int(C.cudadriver_event_free(C.int(device), C.uintptr_t(event)))
}

func rawPageSize(device int, shareable bool) (uintptr, int) {
	return value(C.cudadriver_page_size(C.int(device), flag(shareable)))
}

func rawReserveRange(device int, shareable bool, bytes int64) (uintptr, int) {
	return value(C.cudadriver_range_reserve(C.int(device), flag(shareable), C.int64_t(bytes)))
}

func rawReleaseRange(device int, addr uintptr, bytes int64) int {
	return int(C.cudadriver_range_release(C.int(device), C.uintptr_t(addr), C.int64_t(bytes)))
}

func rawCreatePages(device int, shareable bool, bytes int64) (uintptr, int) {
	return value(C.cudadriver_pages_create(C.int(device), flag(shareable), C.int64_t(bytes)))
}

func rawReleasePages(device int, pages uintptr) int {
	return int(C.cudadriver_pages_release(C.int(device), C.uintptr_t(pages)))
}

func rawMapPages(device int, peers []int32, addr, pages uintptr, bytes int64) int {
	first := (*C.int32_t)(unsafe.SliceData(peers))
	return int(C.cudadriver_pages_map(C.int(device), first, C.int(len(peers)),
		C.uintptr_t(addr), C.uintptr_t(pages), C.int64_t(bytes)))
}

func rawSetAccess(device int, peers []int32, addr uintptr, bytes int64) int {
	first := (*C.int32_t)(unsafe.SliceData(peers))
	return int(C.cudadriver_pages_access(C.int(device), first, C.int(len(peers)), C.uintptr_t(addr), C.int64_t(bytes)))
}

func rawUnmapPages(device int, addr uintptr, bytes int64) int {
	return int(C.cudadriver_pages_unmap(C.int(device), C.uintptr_t(addr), C.int64_t(bytes)))
}

func rawExportPages(device int, pages uintptr) (uintptr, int) {
	return value(C.cudadriver_pages_export(C.int(device), C.uintptr_t(pages)))
}

func rawImportPages(device, fd int) (uintptr, int) {
	return value(C.cudadriver_pages_import(C.int(device), C.int(fd)))
}

func rawNewPool(o MemPoolOptions) (uintptr, int) {
	return value(C.cudadriver_pool_new(C.int(o.Device), C.int64_t(o.ReleaseThreshold),
		flag(o.FollowEvents), flag(o.Opportunistic), flag(o.InternalDependencies)))
}

func rawMallocAsync(device int, pool uintptr, bytes int64, stream uintptr) (uintptr, int) {
	return value(C.cudadriver_pool_malloc(C.int(device), C.uintptr_t(pool), C.int64_t(bytes), C.uintptr_t(stream)))
}

func rawFreeAsync(device int, addr, stream uintptr) int {
	return int(C.cudadriver_pool_give_back(C.int(device), C.uintptr_t(addr), C.uintptr_t(stream)))
}

func rawPoolReserved(device int, pool uintptr) (int64, int64, int) {
	return pair(C.cudadriver_pool_reserved(C.int(device), C.uintptr_t(pool)))
}

func rawResetPoolPeak(device int, pool uintptr) int {
	return int(C.cudadriver_pool_reset_peak(C.int(device), C.uintptr_t(pool)))
}

func rawTrimPool(device int, pool uintptr, keep int64) int {
	return int(C.cudadriver_pool_trim(C.int(device), C.uintptr_t(pool), C.int64_t(keep)))
}

func rawClosePool(device int, pool uintptr) int {
	return int(C.cudadriver_pool_free(C.int(device), C.uintptr_t(pool)))
}

func rawGraphReserved(device int) (int64, int64, int) {
	return pair(C.cudadriver_graph_reserved(C.int(device)))
}

func rawResetGraphPeak(device int) int { return int(C.cudadriver_graph_reset_peak(C.int(device))) }
func rawTrimGraphs(device int) int     { return int(C.cudadriver_graph_trim(C.int(device))) }
