package allocator

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// What an allocator needs of a driver, and the errors when it has no memory.

// A Driver has the calls of a device that a Pool needs. Package cudadriver implements it for CUDA,
// mlpool/kernels/device for host memory. Addresses, streams and events are opaque; 0 is neither an
// address nor an event. Several goroutines may call the methods at the same time. A method that returns
// an error has changed nothing.
//
// A Driver that is out of memory returns an error with a method OutOfMemory() bool that returns
// true; any other error is final.
type Driver interface {
	// Malloc returns bytes > 0 bytes of memory, aligned to Alignment.
	Malloc(bytes int64) (addr uintptr, err error)
	// Free frees memory of Malloc. Like cudaFree it may wait for the device.
	Free(addr uintptr) error
	// MemInfo returns the free bytes of the device and all its bytes, so that a Pool avoids requests
	// that would fail. If total is 0, both are ignored, and NewPool fails if an option is a share of it.
	MemInfo() (free, total int64, err error)

	// NewEvent returns an event that is done until it is first recorded.
	NewEvent() (event uintptr, err error)
	// RecordEvent marks the work queued on stream so far. The event may have been recorded before; waits
	// that are queued already keep waiting for the earlier work.
	RecordEvent(event, stream uintptr) error
	// QueryEvent reports whether the marked work is done.
	QueryEvent(event uintptr) (done bool, err error)
	// WaitEvent makes work queued on stream from now on wait for the work last marked.
	WaitEvent(stream, event uintptr) error
	// SyncEvent waits on the host for the work last marked.
	SyncEvent(event uintptr) error
	// FreeEvent destroys an event. Waits for it may still be queued.
	FreeEvent(event uintptr) error
}

// deviceMemory is the last result of Driver.MemInfo.
type deviceMemory struct {
	free, total int64 // bytes
	reserved    int64 // bytes of the pool at that time
	err         error
}

// A PageDriver is a [Driver] that maps memory at addresses which a [Pool] chooses, like CUDA's virtual
// memory management (cuMemAddressReserve, cuMemCreate, cuMemMap). All sizes and addresses are multiples
// of PageSize. Queued work may use an address until the work is done, so a Pool calls UnmapPages and
// Free only once it knows that.
type PageDriver interface {
	Driver

	// PageSize returns the bytes of a page, a power of two and a multiple of
	// Alignment, or errors.ErrUnsupported if the device cannot map pages.
	PageSize() (int64, error)
	// ReserveRange reserves bytes of addresses, without memory.
	ReserveRange(bytes int64) (addr uintptr, err error)
	// ReleaseRange releases a range of ReserveRange. Nothing is mapped there.
	ReleaseRange(addr uintptr, bytes int64) error
	// CreatePages returns bytes of memory that is not mapped.
	CreatePages(bytes int64) (pages uintptr, err error)
	// ReleasePages releases memory of CreatePages, which is not mapped.
	ReleasePages(pages uintptr) error
	// MapPages maps all bytes of pages at addr. The same memory may be mapped at several
	// addresses; an address may have only one mapping.
	MapPages(addr, pages uintptr, bytes int64) error
	// UnmapPages undoes one MapPages.
	UnmapPages(addr uintptr, bytes int64) error
}

// A HostCopier copies contents to host memory for [Pool.Sleep], and back for Wake. A [PageDriver] may
// implement it. Each copy is done when the call returns.
type HostCopier interface {
	// MallocHost returns bytes of host memory, which is pinned if that makes copies faster.
	MallocHost(bytes int64) (addr uintptr, err error)
	// FreeHost frees memory of MallocHost.
	FreeHost(addr uintptr) error
	// CopyToHost copies bytes at addr, of one or several MapPages side by side, to host memory.
	CopyToHost(host, addr uintptr, bytes int64) error
	// CopyFromHost copies them back.
	CopyFromHost(addr, host uintptr, bytes int64) error
}

// An AsyncDriver is a driver's own stream-ordered pool: cudaMallocFromPoolAsync and related calls,
// on a pool that serves nobody else.
//
// It may have other methods:
//
//   - those of a [Driver] for events: Async.RecordStream works;
//   - MemInfo: errors include the free bytes of the device;
//   - events and RecordStream(addr, stream uintptr) error: Async calls it before FreeAsync, once for each
//     other stream that uses the memory, and makes no stream wait.
type AsyncDriver interface {
	MallocAsync(bytes int64, stream uintptr) (addr uintptr, err error)
	FreeAsync(addr, stream uintptr) error
	// PoolReserved returns the bytes that the pool holds now and at its peak.
	PoolReserved() (current, peak int64, err error)
	ResetPoolPeak() error
	// TrimPool releases unused memory down to keep bytes.
	TrimPool(keep int64) error
	// ClosePool destroys the pool.
	ClosePool() error
}

// noMemory is the reason why an allocator does not ask the driver for memory.
type noMemory struct {
	text    string
	atLimit bool // of the program, not of the device
}

func (e noMemory) Error() string { return e.text }

func (noMemory) OutOfMemory() bool { return true }

var (
	// errLimit is the error of growth beyond PoolOptions.MaxBytes.
	errLimit = noMemory{"the limit is reached", true}
	errFull  = noMemory{"the device has too little memory free", false}
)

// OutOfMemoryError reports a request that failed after every attempt that Alloc promises. The
// allocator works on.
type OutOfMemoryError struct {
	Bytes  int64 // requested
	Stream Stream
	Tag    string

	Allocated, Reserved int64 // bytes, by the allocator, after the last attempt
	// LargestFree is the size of the largest free block of any stream, or -1 if it is not known: a request
	// that is refused at once does not search more than 4 streams for it. Fragmentation is the share of free
	// memory outside it, in percent.
	LargestFree   int64
	Fragmentation float64
	// DeviceFree and DeviceTotal are the driver's, in bytes; both 0 if unknown.
	DeviceFree, DeviceTotal int64
	Limit                   int64 // on reserved bytes; 0: none

	Advice string // what would have helped
	// Err is the driver's error or, if the driver was not asked, the reason. If the driver also refused
	// to order or release memory of other streams, Err includes the first error of these.
	Err error
}

func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "allocator: out of memory: %d bytes asked for by %q on stream %#x; %d allocated, %d reserved",
		e.Bytes, e.Tag, e.Stream, e.Allocated, e.Reserved)
	if e.Limit > 0 {
		fmt.Fprintf(&b, " of at most %d", e.Limit)
	}
	if e.LargestFree >= 0 {
		fmt.Fprintf(&b, ", largest free block %d, fragmentation %.1f %%", e.LargestFree, e.Fragmentation)
	}
	if e.DeviceTotal > 0 {
		fmt.Fprintf(&b, "; device has %d free of %d", e.DeviceFree, e.DeviceTotal)
	}
	if _, own := e.Err.(noMemory); own {
		fmt.Fprintf(&b, "; %v", e.Err)
	} else if e.Err != nil {
		fmt.Fprintf(&b, "; driver: %v", e.Err)
	}
	if e.Advice != "" {
		fmt.Fprintf(&b, "; %s", e.Advice)
	}
	return b.String()
}

// Unwrap returns the driver's error.
func (e *OutOfMemoryError) Unwrap() error { return e.Err }

// OutOfMemory returns true. It identifies the error without an import of this package.
func (e *OutOfMemoryError) OutOfMemory() bool { return true }

// AtLimit reports whether the limit, or that of a tag, rather than the device's memory, was exceeded.
func (e *OutOfMemoryError) AtLimit() bool {
	var why noMemory
	return errors.As(e.Err, &why) && why.atLimit
}

// fromDevice sets the results of Driver.MemInfo.
func (e *OutOfMemoryError) fromDevice(free, total int64, err error) {
	if err != nil {
		e.Err = undo.Both(e.Err, err)
		return
	}
	e.DeviceFree, e.DeviceTotal = free, total
}

// fragmentation returns the percentage of all free bytes outside the largest free block.
func fragmentation(largest, all int64) float64 {
	if all == 0 {
		return 0
	}
	return math.Round(1000*(1-float64(largest)/float64(all))) / 10
}

const smaller = "freeing blocks or asking for smaller ones, such as a smaller batch, would help"

// limitAtLeast is the advice if no limit is known to be enough.
func limitAtLeast(bytes int64) string {
	return fmt.Sprintf("the limit must be at least %d; %s", bytes, smaller)
}

// advise sets Advice, from the other fields, the limit with which the same calls would have
// succeeded, 0 if it is not known, the bytes that are not handed out, and the unit of a limit.
func (e *OutOfMemoryError) advise(enough, free, unit int64) {
	size := blockSize(min(e.Bytes, maxRequest))
	switch least := block.RoundUp(e.Allocated+size, unit); {
	case e.DeviceTotal > 0 && e.Bytes > e.DeviceTotal:
		e.Advice = "the request is larger than the device: a smaller one is needed"
	case enough > e.Limit && size > e.Limit:
		e.Advice = fmt.Sprintf("the request is larger than the limit: a limit of %d would be enough for it", enough)
	case enough > e.Limit:
		e.Advice = fmt.Sprintf("a limit of %d would be enough for this request", enough)
	case e.AtLimit() && least > e.Limit:
		e.Advice = limitAtLeast(least)
	case free < size:
		e.Advice = smaller
	case e.LargestFree < 0:
		e.Advice = "the driver's pool has enough free memory, but it is fragmented or still in use: synchronise, then try again"
	default:
		e.Advice = "enough memory is free, but fragmented; " + smaller
	}
}

// isOutOfMemory reports whether a driver's error says that it is out of memory, as [Driver] requires.
func isOutOfMemory(err error) bool {
	var o interface{ OutOfMemory() bool }
	return errors.As(err, &o) && o.OutOfMemory()
}

// errTooLarge stands for the driver's answer to a request over maxRequest.
var errTooLarge = errors.New("request exceeds any device")
