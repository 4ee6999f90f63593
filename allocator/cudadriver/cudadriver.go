// Package cudadriver gives the allocators of package allocator the memory of a CUDA
// device: [Driver] is an allocator.PageDriver, for a Pool, Plan or Malloc, and [MemPool]
// and [GraphPool] are an allocator.AsyncDriver, for an Async. It does not import package
// allocator.
//
// # Requirements
//
// A build needs cgo with gcc or clang, but no CUDA toolkit, header or build tag: the
// first call loads the driver's library, libcuda.so.1. A run needs Linux and a driver for
// CUDA 11.2 or later; pages need 10.2, a [GraphPool] needs 11.4. A call that the driver or
// the device does not support returns errors.ErrUnsupported. Without cgo, Linux or the
// library, every call returns an [ErrNoCUDA] that names what is missing. The first call
// decides for all: a device that it could not use is not tried again.
//
// # Device, context and streams
//
// The package uses the first device, which the environment variable CUDA_VISIBLE_DEVICES
// selects. The first call retains its primary context until the process ends. The CUDA
// runtime uses the same context, so streams and events are a cudaStream_t and a
// cudaEvent_t, and kernels launched with either API can use the memory. Calls may come
// from any goroutine. A thread without a context keeps the primary one after a call; a
// thread with another context gets it back. Stream 0 is the default stream.
package cudadriver

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrNoCUDA is the error, with the reason, of every call if there is no CUDA driver.
var ErrNoCUDA = errors.New("no CUDA driver")

// An Error reports a driver call that failed. If queued work fails, the next call that
// waits for it returns the error, and the device is unusable from then on.
type Error struct {
	Op   string // the function of this package, "Malloc"
	Code int    // CUresult, 2
	Name string // its name, "CUDA_ERROR_OUT_OF_MEMORY"
}

func (e *Error) Error() string {
	return fmt.Sprintf("cudadriver: %s: %s (CUDA error %d)", e.Op, e.Name, e.Code)
}

// OutOfMemory reports whether the device had too little memory. The call may succeed
// once some is freed.
func (e *Error) OutOfMemory() bool { return e.Code == 2 }

// Is makes CUDA_ERROR_NOT_SUPPORTED an errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported && e.Code == 801 }

// check returns the error of a code: a CUresult, or codeNone for no driver.
func check(op string, code int) error {
	switch code {
	case 0:
		return nil
	case codeNone:
		return fmt.Errorf("cudadriver: %s: %w: %s", op, ErrNoCUDA, rawNone())
	}
	return &Error{Op: op, Code: code, Name: rawErrorName(code)}
}

const codeNone = -1

// Available returns nil if a device can be used. Otherwise the error gives the reason in
// one line.
func Available() error {
	if err := check("Available", rawAvailable()); err != nil {
		return fmt.Errorf("no CUDA device can be used: %w", err)
	}
	return nil
}

// Counts holds the number of calls of this process to the driver's memory functions.
type Counts struct {
	Malloc, Free           uint64 // cuMemAlloc, cuMemFree
	MallocAsync, FreeAsync uint64 // cuMemAllocFromPoolAsync, cuMemFreeAsync

	CreatePages, ReleasePages uint64 // cuMemCreate, cuMemRelease
	MapPages, UnmapPages      uint64 // cuMemMap with cuMemSetAccess, cuMemUnmap
}

var counts struct {
	malloc, free, mallocAsync, freeAsync            atomic.Uint64
	createPages, releasePages, mapPages, unmapPages atomic.Uint64
}

// Counters returns the number of calls so far, including failed ones.
func Counters() Counts {
	return Counts{
		counts.malloc.Load(), counts.free.Load(), counts.mallocAsync.Load(), counts.freeAsync.Load(),
		counts.createPages.Load(), counts.releasePages.Load(), counts.mapPages.Load(), counts.unmapPages.Load(),
	}
}

// Driver allocates the device's memory, pages and streams. All values are equal, and the
// zero value is ready to use.
type Driver struct{ Events }

// Malloc returns bytes > 0 bytes of device memory, aligned to 256.
func (Driver) Malloc(bytes int64) (addr uintptr, err error) {
	counts.malloc.Add(1)
	addr, code := rawMalloc(bytes)
	return addr, check("Malloc", code)
}

// Free returns what Malloc returned. It may wait for the device.
func (Driver) Free(addr uintptr) error {
	counts.free.Add(1)
	return check("Free", rawFree(addr))
}

// NewStream returns a stream that does not wait for the default stream.
func (Driver) NewStream() (stream uintptr, err error) {
	stream, code := rawNewStream()
	return stream, check("NewStream", code)
}

// SyncStream waits on the host for the stream's work, and reports its faults.
func (Driver) SyncStream(stream uintptr) error { return check("SyncStream", rawSyncStream(stream)) }

// FreeStream destroys the stream. Work queued on it still completes. Call ReleaseStream
// first on every allocator that the stream was passed to.
func (Driver) FreeStream(stream uintptr) error { return check("FreeStream", rawFreeStream(stream)) }

// Events has the events of a [Driver], which are cudaEvent_t without timing, and the size
// of the device's memory.
type Events struct{}

// MemInfo returns the device's free and total bytes.
func (Events) MemInfo() (free, total int64, err error) {
	free, total, code := rawMemInfo()
	return free, total, check("MemInfo", code)
}

// NewEvent returns an event that is done until it is first recorded.
func (Events) NewEvent() (event uintptr, err error) {
	event, code := rawNewEvent()
	return event, check("NewEvent", code)
}

// RecordEvent marks the work queued on stream so far.
func (Events) RecordEvent(event, stream uintptr) error {
	return check("RecordEvent", rawRecordEvent(event, stream))
}

// QueryEvent reports whether the marked work is done.
func (Events) QueryEvent(event uintptr) (done bool, err error) {
	is, code := rawQueryEvent(event)
	return is != 0, check("QueryEvent", code)
}

// WaitEvent makes work queued on stream from now on wait for the event.
func (Events) WaitEvent(stream, event uintptr) error {
	return check("WaitEvent", rawWaitEvent(stream, event))
}

// SyncEvent waits for the event on the host.
func (Events) SyncEvent(event uintptr) error { return check("SyncEvent", rawSyncEvent(event)) }

// FreeEvent frees the event.
func (Events) FreeEvent(event uintptr) error { return check("FreeEvent", rawFreeEvent(event)) }
