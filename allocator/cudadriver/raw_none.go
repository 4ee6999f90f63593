//go:build !linux || !cgo

package cudadriver

import "runtime"

// Every call returns codeNone.

func rawNone() string {
	if runtime.GOOS != "linux" {
		return "it needs Linux, and this is " + runtime.GOOS
	}
	return "the program was built without cgo"
}

func rawErrorName(int) string        { return "" }
func rawDeviceCount() (uintptr, int) { return 0, codeNone }
func rawAvailable(int) int           { return codeNone }

func rawSynchronize(int) int                                     { return codeNone }
func rawCanAccessPeer(int, int) (uintptr, int)                   { return 0, codeNone }
func rawMalloc(int, int64) (uintptr, int)                        { return 0, codeNone }
func rawFree(int, uintptr) int                                   { return codeNone }
func rawMemInfo(int) (int64, int64, int)                         { return 0, 0, codeNone }
func rawMallocHost(int, int64) (uintptr, int)                    { return 0, codeNone }
func rawFreeHost(int, uintptr) int                               { return codeNone }
func rawCopyToHost(int, uintptr, uintptr, int64) int             { return codeNone }
func rawCopyFromHost(int, uintptr, uintptr, int64) int           { return codeNone }
func rawNewStream(int) (uintptr, int)                            { return 0, codeNone }
func rawSyncStream(int, uintptr) int                             { return codeNone }
func rawFreeStream(int, uintptr) int                             { return codeNone }
func rawIsCapturing(int, uintptr) (uintptr, int)                 { return 0, codeNone }
func rawNewEvent(int) (uintptr, int)                             { return 0, codeNone }
func rawRecordEvent(int, uintptr, uintptr) int                   { return codeNone }
func rawQueryEvent(int, uintptr) (uintptr, int)                  { return 0, codeNone }
func rawWaitEvent(int, uintptr, uintptr) int                     { return codeNone }
func rawSyncEvent(int, uintptr) int                              { return codeNone }
func rawFreeEvent(int, uintptr) int                              { return codeNone }
func rawPageSize(int, bool) (uintptr, int)                       { return 0, codeNone }
func rawReserveRange(int, bool, int64) (uintptr, int)            { return 0, codeNone }
func rawReleaseRange(int, uintptr, int64) int                    { return codeNone }
func rawCreatePages(int, bool, int64) (uintptr, int)             { return 0, codeNone }
func rawReleasePages(int, uintptr) int                           { return codeNone }
func rawMapPages(int, []int32, uintptr, uintptr, int64) int      { return codeNone }
func rawSetAccess(int, []int32, uintptr, int64) int              { return codeNone }
func rawUnmapPages(int, uintptr, int64) int                      { return codeNone }
func rawExportPages(int, uintptr) (uintptr, int)                 { return 0, codeNone }
func rawImportPages(int, int) (uintptr, int)                     { return 0, codeNone }
func rawNewPool(MemPoolOptions) (uintptr, int)                   { return 0, codeNone }
func rawMallocAsync(int, uintptr, int64, uintptr) (uintptr, int) { return 0, codeNone }
func rawFreeAsync(int, uintptr, uintptr) int                     { return codeNone }
func rawPoolReserved(int, uintptr) (int64, int64, int)           { return 0, 0, codeNone }
func rawResetPoolPeak(int, uintptr) int                          { return codeNone }
func rawTrimPool(int, uintptr, int64) int                        { return codeNone }
func rawClosePool(int, uintptr) int                              { return codeNone }
func rawGraphReserved(int) (int64, int64, int)                   { return 0, 0, codeNone }
func rawResetGraphPeak(int) int                                  { return codeNone }
func rawTrimGraphs(int) int                                      { return codeNone }
