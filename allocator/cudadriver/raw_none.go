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

func rawErrorName(int) string { return "" }
func rawAvailable() int       { return codeNone }

func rawMalloc(int64) (uintptr, int)  { return 0, codeNone }
func rawFree(uintptr) int             { return codeNone }
func rawMemInfo() (int64, int64, int) { return 0, 0, codeNone }

func rawNewStream() (uintptr, int) { return 0, codeNone }
func rawSyncStream(uintptr) int    { return codeNone }
func rawFreeStream(uintptr) int    { return codeNone }

func rawNewEvent() (uintptr, int)          { return 0, codeNone }
func rawRecordEvent(_, _ uintptr) int      { return codeNone }
func rawQueryEvent(uintptr) (uintptr, int) { return 0, codeNone }
func rawWaitEvent(_, _ uintptr) int        { return codeNone }
func rawSyncEvent(uintptr) int             { return codeNone }
func rawFreeEvent(uintptr) int             { return codeNone }

func rawPageSize() (uintptr, int)           { return 0, codeNone }
func rawReserveRange(int64) (uintptr, int)  { return 0, codeNone }
func rawReleaseRange(uintptr, int64) int    { return codeNone }
func rawCreatePages(int64) (uintptr, int)   { return 0, codeNone }
func rawReleasePages(uintptr) int           { return codeNone }
func rawMapPages(_, _ uintptr, _ int64) int { return codeNone }
func rawUnmapPages(uintptr, int64) int      { return codeNone }

func rawNewPool(MemPoolOptions) (uintptr, int)                    { return 0, codeNone }
func rawMallocAsync(_ uintptr, _ int64, _ uintptr) (uintptr, int) { return 0, codeNone }
func rawFreeAsync(_, _ uintptr) int                               { return codeNone }
func rawPoolReserved(uintptr) (int64, int64, int)                 { return 0, 0, codeNone }
func rawResetPoolPeak(uintptr) int                                { return codeNone }
func rawTrimPool(uintptr, int64) int                              { return codeNone }
func rawClosePool(uintptr) int                                    { return codeNone }

func rawGraphReserved() (int64, int64, int) { return 0, 0, codeNone }
func rawResetGraphPeak() int                { return codeNone }
func rawTrimGraphs() int                    { return codeNone }
