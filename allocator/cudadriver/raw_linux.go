//go:build linux && cgo

package cudadriver

/*
#cgo LDFLAGS: -ldl
#include "driver.h"
*/
import "C"

// The functions of driver.h. raw_none.go replaces them without cgo or Linux. The last
// result is the code.

// This does not compile unless codeNone is the number of driver.h.
var _ = [1]struct{}{}[codeNone-C.CUDADRIVER_NONE]

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
func rawAvailable() int            { return int(C.cudadriver_available()) }

func rawMalloc(bytes int64) (uintptr, int) { return value(C.cudadriver_malloc(C.int64_t(bytes))) }
func rawFree(addr uintptr) int             { return int(C.cudadriver_free(C.uintptr_t(addr))) }
func rawMemInfo() (int64, int64, int)      { return pair(C.cudadriver_mem_info()) }

func rawNewStream() (uintptr, int)     { return value(C.cudadriver_stream_new()) }
func rawSyncStream(stream uintptr) int { return int(C.cudadriver_stream_sync(C.uintptr_t(stream))) }
func rawFreeStream(stream uintptr) int { return int(C.cudadriver_stream_free(C.uintptr_t(stream))) }

func rawNewEvent() (uintptr, int) { return value(C.cudadriver_event_new()) }

func rawRecordEvent(event, stream uintptr) int {
	return int(C.cudadriver_event_record(C.uintptr_t(event), C.uintptr_t(stream)))
}

func rawQueryEvent(event uintptr) (uintptr, int) {
	return value(C.cudadriver_event_query(C.uintptr_t(event)))
}

func rawWaitEvent(stream, event uintptr) int {
	return int(C.cudadriver_event_wait(C.uintptr_t(stream), C.uintptr_t(event)))
}

func rawSyncEvent(event uintptr) int { return int(C.cudadriver_event_sync(C.uintptr_t(event))) }
func rawFreeEvent(event uintptr) int { return int(C.cudadriver_event_free(C.uintptr_t(event))) }

func rawPageSize() (uintptr, int) { return value(C.cudadriver_page_size()) }

func rawReserveRange(bytes int64) (uintptr, int) {
	return value(C.cudadriver_range_reserve(C.int64_t(bytes)))
}

func rawReleaseRange(addr uintptr, bytes int64) int {
	return int(C.cudadriver_range_release(C.uintptr_t(addr), C.int64_t(bytes)))
}

func rawCreatePages(bytes int64) (uintptr, int) {
	return value(C.cudadriver_pages_create(C.int64_t(bytes)))
}

func rawReleasePages(pages uintptr) int { return int(C.cudadriver_pages_release(C.uintptr_t(pages))) }

func rawMapPages(addr, pages uintptr, bytes int64) int {
	return int(C.cudadriver_pages_map(C.uintptr_t(addr), C.uintptr_t(pages), C.int64_t(bytes)))
}

func rawUnmapPages(addr uintptr, bytes int64) int {
	return int(C.cudadriver_pages_unmap(C.uintptr_t(addr), C.int64_t(bytes)))
}

func rawNewPool(o MemPoolOptions) (uintptr, int) {
	return value(C.cudadriver_pool_new(C.int64_t(o.ReleaseThreshold), flag(o.FollowEvents), flag(o.Opportunistic), flag(o.InternalDependencies)))
}

func rawMallocAsync(pool uintptr, bytes int64, stream uintptr) (uintptr, int) {
	return value(C.cudadriver_pool_malloc(C.uintptr_t(pool), C.int64_t(bytes), C.uintptr_t(stream)))
}

func rawFreeAsync(addr, stream uintptr) int {
	return int(C.cudadriver_pool_give_back(C.uintptr_t(addr), C.uintptr_t(stream)))
}

func rawPoolReserved(pool uintptr) (int64, int64, int) {
	return pair(C.cudadriver_pool_reserved(C.uintptr_t(pool)))
}

func rawResetPoolPeak(pool uintptr) int { return int(C.cudadriver_pool_reset_peak(C.uintptr_t(pool))) }

func rawTrimPool(pool uintptr, keep int64) int {
	return int(C.cudadriver_pool_trim(C.uintptr_t(pool), C.int64_t(keep)))
}

func rawClosePool(pool uintptr) int { return int(C.cudadriver_pool_free(C.uintptr_t(pool))) }

func rawGraphReserved() (int64, int64, int) { return pair(C.cudadriver_graph_reserved()) }
func rawResetGraphPeak() int                { return int(C.cudadriver_graph_reset_peak()) }
func rawTrimGraphs() int                    { return int(C.cudadriver_graph_trim()) }
