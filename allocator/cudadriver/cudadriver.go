// Package cudadriver is the memory of a CUDA device as the allocators of package
// allocator ask for it: [Driver] is an allocator.PageDriver, for a Pool, Plan or Malloc,
// and [MemPool] and [GraphPool] are an allocator.AsyncDriver, for an Async.
//
// # What it needs
//
// To build: cgo with gcc or clang. No CUDA toolkit, no header of it and no build tag:
// the driver's own library, libcuda.so.1, is looked for when the first call is made. To
// run: Linux and a driver for CUDA 11.2 or newer; pages do with 10.2, a [GraphPool] asks
// for 11.4. What a driver or a device lacks is errors.ErrUnsupported. Where there is no
// cgo, no Linux or no library, every call returns an [ErrNoCUDA] that says which. The
// first call finds this out for all: a device that it could not use is not tried again.
//
// # Device, context and streams
//
// The device is the first; the environment variable CUDA_VISIBLE_DEVICES chooses which
// card that is. Its primary context is retained by the first call and kept until the
// process ends. It is the one that the CUDA runtime uses. So streams and events are its
// cudaStream_t and cudaEvent_t too, and memory can be passed to kernels launched with
// either. Calls may come from any goroutine: each is made in this context. A thread that
// had none keeps it, one that had another gets that back. 0 is the default stream.
//
// Nothing here imports package allocator.
package cudadriver

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrNoCUDA is what every call returns, with the reason, where there is no CUDA driver
// to be called.
var ErrNoCUDA = errors.New("no CUDA driver")

// An Error is a call to the driver that failed. Work on the device fails later than it
// was queued: such a fault comes from whichever call next waits for it, and leaves
// the device unusable.
type Error struct {
	Op   string // the function of this package, "Malloc"
	Code int    // CUresult, 2
	Name string // its name, "CUDA_ERROR_OUT_OF_MEMORY"
}

func (e *Error) Error() string {
	return fmt.Sprintf("cudadriver: %s: %s (CUDA error %d)", e.Op, e.Name, e.Code)
}

// OutOfMemory says whether the device had too little memory; the call may be
// tried again once some is freed.
func (e *Error) OutOfMemory() bool { return e.Code == 2 }

// Is makes CUDA_ERROR_NOT_SUPPORTED an errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported && e.Code == 801 }

// check makes an error of what a function of the raw layer returned: a CUresult, or
// codeNone for no driver.
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

// Available returns nil if a device can be used, else an error that says why not in one
// line.
func Available() error {
	if err := check("Available", rawAvailable()); err != nil {
		return fmt.Errorf("no CUDA device can be used: %w", err)
	}
	return nil
}

// Counts are the calls that this process has made to the driver's memory
// functions.
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

// Counters returns the calls made so far, failed ones included.
func Counters() Counts {
	return Counts{
		counts.malloc.Load(), counts.free.Load(), counts.mallocAsync.Load(), counts.freeAsync.Load(),
		counts.createPages.Load(), counts.releasePages.Load(), counts.mapPages.Load(), counts.unmapPages.Load(),
	}
}

// Driver is the device's memory, pages and streams. The zero value is ready for use, and
// all are the same.
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

// FreeStream destroys the stream, whose work goes on to its end. The allocators that it
// was passed to are told before, with ReleaseStream.
func (Driver) FreeStream(stream uintptr) error { return check("FreeStream", rawFreeStream(stream)) }

// Events is the part of [Driver] that has no state of its own: events, which are
// cudaEvent_t without times, and the figures of the device's memory.
type Events struct{}

// MemInfo returns the bytes free on the device and in all.
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

// QueryEvent says whether the marked work is done.
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
