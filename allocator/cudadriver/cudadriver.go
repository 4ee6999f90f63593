// Package cudadriver gives the allocators of package allocator the memory of CUDA devices:
// [Driver] is an allocator.PageDriver, for a Pool or Malloc, and [MemPool] and [GraphPool]
// are an allocator.AsyncDriver, for an Async. It does not import package allocator.
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
// # Devices and contexts
//
// The zero [Driver] is device 0. [New] returns a Driver of another device, or one whose memory other
// devices and processes can use. Devices are numbered as in CUDA, after the environment variable
// CUDA_VISIBLE_DEVICES. The first call for a device retains its primary context until the process
// ends. The CUDA runtime uses the same context, so streams and events are a cudaStream_t and a
// cudaEvent_t, and kernels launched with either API can use the memory. A stream or an event is used
// with the Driver of its device. Stream 0 is the default stream.
//
// Calls may come from any goroutine or thread. After a call the thread has the context that it had
// before. Only a thread without a context keeps that of device 0, which the CUDA runtime would give
// it too.
//
// # Other devices and processes
//
// With [Options].Peers, kernels of other devices can read and write pages that are mapped with
// MapPages, as a Pool of virtual segments does. With Options.Shareable, pages can be exported to
// other processes: [Driver.Send] sends the pages of a block over a Unix socket, and [Driver.Receive]
// maps them in another process. Neither works with memory of Malloc.
//
// # Captures
//
// Each call sets the thread's capture mode to CU_STREAM_CAPTURE_MODE_RELAXED, and restores it. So a
// call that allocates or maps memory, or queries an event, invalidates no capture of a CUDA graph, in
// whatever mode a thread captures. Calls that conflict with a capture still invalidate it: waits for
// a captured stream or for the whole device, queries of events recorded in the capture and, if the
// captured stream is one that waits for the default stream, CopyToHost and CopyFromHost.
//
// # Fork
//
// CUDA does not survive a fork. In a child of a process that had used the package before, every call
// returns [ErrForked]. A child that starts another program with exec is not affected.
package cudadriver

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// ErrNoCUDA is the error, with the reason, of every call if there is no CUDA driver.
var ErrNoCUDA = errors.New("no CUDA driver")

// ErrForked is the error of every call in a child of fork.
var ErrForked = errors.New("CUDA cannot be used in a child of fork: start the process with exec " +
	"(in Python, multiprocessing's start method spawn)")

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

// OutOfMemory reports whether the device or, for pinned memory, the host had too little
// memory. The call may succeed once some is freed.
func (e *Error) OutOfMemory() bool { return e.Code == 2 }

// Is makes CUDA_ERROR_NOT_SUPPORTED an errors.ErrUnsupported.
func (e *Error) Is(target error) bool { return target == errors.ErrUnsupported && e.Code == 801 }

// check returns the error of a code: a CUresult, codeNone or codeForked.
func check(op string, code int) error {
	switch code {
	case 0:
		return nil
	case codeForked:
		return fmt.Errorf("cudadriver: %s: %w", op, ErrForked)
	case codeNone:
		return fmt.Errorf("cudadriver: %s: %w: %s", op, ErrNoCUDA, rawNone())
	}
	return &Error{Op: op, Code: code, Name: rawErrorName(code)}
}

// Codes without a CUresult: there is no driver, or the process is a child of fork.
const (
	codeNone   = -1
	codeForked = -2
)

// Available returns nil if device 0 can be used. Otherwise the error gives the reason in
// one line.
func Available() error {
	if err := check("Available", rawAvailable(0)); err != nil {
		return fmt.Errorf("no CUDA device can be used: %w", err)
	}
	return nil
}

// Counts holds the number of calls of this process to the driver's memory functions, for
// all devices.
type Counts struct {
	Malloc, Free           uint64 // cuMemAlloc, cuMemFree
	MallocAsync, FreeAsync uint64 // cuMemAllocFromPoolAsync, cuMemFreeAsync

	CreatePages, ReleasePages uint64 // cuMemCreate, cuMemRelease
	MapPages, UnmapPages      uint64 // cuMemMap with cuMemSetAccess, cuMemUnmap
	ExportPages, ImportPages  uint64 // cuMemExportToShareableHandle, cuMemImportFromShareableHandle

	MallocHost, FreeHost     uint64 // cuMemHostAlloc, cuMemFreeHost
	CopyToHost, CopyFromHost uint64 // cuMemcpyDtoH, cuMemcpyHtoD
}

var counts struct {
	malloc, free, mallocAsync, freeAsync            atomic.Uint64
	createPages, releasePages, mapPages, unmapPages atomic.Uint64
	exportPages, importPages                        atomic.Uint64
	mallocHost, freeHost, copyToHost, copyFromHost  atomic.Uint64
}

// Counters returns the number of calls so far, including failed ones.
func Counters() Counts {
	return Counts{
		counts.malloc.Load(), counts.free.Load(), counts.mallocAsync.Load(), counts.freeAsync.Load(),
		counts.createPages.Load(), counts.releasePages.Load(), counts.mapPages.Load(), counts.unmapPages.Load(),
		counts.exportPages.Load(), counts.importPages.Load(),
		counts.mallocHost.Load(), counts.freeHost.Load(), counts.copyToHost.Load(), counts.copyFromHost.Load(),
	}
}

// Driver allocates a device's memory, pages and streams. The zero value is device 0 without
// options; [New] returns others. Values are equal if one is a copy of the other.
type Driver struct {
	Events
	options *options // nil: none
}

// Malloc returns bytes > 0 bytes of device memory, aligned to 256.
func (d Driver) Malloc(bytes int64) (addr uintptr, err error) {
	counts.malloc.Add(1)
	addr, code := rawMalloc(d.device, bytes)
	return addr, check("Malloc", code)
}

// Free returns what Malloc returned. It may wait for the device.
func (d Driver) Free(addr uintptr) error {
	counts.free.Add(1)
	return check("Free", rawFree(d.device, addr))
}

// NewStream returns a stream that does not wait for the default stream.
func (d Driver) NewStream() (stream uintptr, err error) {
	stream, code := rawNewStream(d.device)
	return stream, check("NewStream", code)
}

// SyncStream waits on the host for the stream's work, and reports its faults.
func (d Driver) SyncStream(stream uintptr) error {
	return check("SyncStream", rawSyncStream(d.device, stream))
}

// FreeStream destroys the stream. Work queued on it still completes. Call ReleaseStream
// first on every allocator that the stream was passed to.
func (d Driver) FreeStream(stream uintptr) error {
	return check("FreeStream", rawFreeStream(d.device, stream))
}

// Events has the events of a device, which are cudaEvent_t without timing, waits for its work,
// and the size of its memory. The zero value is of device 0.
type Events struct{ device int }

// MemInfo returns the device's free and total bytes.
func (e Events) MemInfo() (free, total int64, err error) {
	free, total, code := rawMemInfo(e.device)
	return free, total, check("MemInfo", code)
}

// Synchronize waits on the host for all work of the device, and reports its faults.
func (e Events) Synchronize() error { return check("Synchronize", rawSynchronize(e.device)) }

// IsCapturing reports whether the stream is being captured into a CUDA graph, even if the
// capture is invalid.
func (e Events) IsCapturing(stream uintptr) (bool, error) {
	is, code := rawIsCapturing(e.device, stream)
	return is != 0, check("IsCapturing", code)
}

// NewEvent returns an event that is done until it is first recorded.
func (e Events) NewEvent() (event uintptr, err error) {
	event, code := rawNewEvent(e.device)
	return event, check("NewEvent", code)
}

// RecordEvent marks the work queued on stream so far.
func (e Events) RecordEvent(event, stream uintptr) error {
	return check("RecordEvent", rawRecordEvent(e.device, event, stream))
}

// QueryEvent reports whether the marked work is done.
func (e Events) QueryEvent(event uintptr) (done bool, err error) {
	is, code := rawQueryEvent(e.device, event)
	return is != 0, check("QueryEvent", code)
}

// WaitEvent makes work queued on stream from now on wait for the event.
func (e Events) WaitEvent(stream, event uintptr) error {
	return check("WaitEvent", rawWaitEvent(e.device, stream, event))
}

// SyncEvent waits for the event on the host.
func (e Events) SyncEvent(event uintptr) error {
	return check("SyncEvent", rawSyncEvent(e.device, event))
}

// FreeEvent frees the event.
func (e Events) FreeEvent(event uintptr) error {
	return check("FreeEvent", rawFreeEvent(e.device, event))
}
