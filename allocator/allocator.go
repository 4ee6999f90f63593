// Package allocator hands out device memory in stream order.
//
// An [Allocator] answers two calls: Alloc takes a block for use on a stream, and
// Free gives it back once the work already queued on that stream is done with
// it. Four allocators implement it:
//
//   - [Pool] takes segments from the driver and splits them into blocks itself,
//     so that in a steady state it never calls the driver;
//   - [Plan] records steps of work that repeat themselves and replays them;
//   - [Async] passes every request to the driver's own stream-ordered pool
//     (cudaMallocAsync and cudaFreeAsync on a GPU);
//   - [Malloc] has no pool at all, and shows what that costs.
//
// Code that only uses memory asks for a [MemoryResource], those two calls.
//
// [Timed], [Limit], [Trace] and [Poison] wrap any of them; an
// allocator that is not wrapped pays nothing. [As] finds the one inside.
//
// Stats are counters. [Pool.Detail] has them by stream and by size, [ByTag] says what
// holds the memory, and [MapOf] shows where each block lies. A [Trace] keeps the last calls, with what was live and reserved
// after each, and writes them for tools/allocbench, Perfetto and PyTorch's memory_viz.
//
// # Stream order
//
// A block is used by work queued on the stream it was allocated for, and Free
// says that this work is queued, not that it is done. Memory freed on a stream is
// handed to the same stream at once, since its work runs in order; to another one
// only as [Reuse] allows: after a wait that is queued on the device, once an event
// shows the work done, or never. No event is recorded for it until memory changes
// streams. A block that a second stream uses is named with RecordStream: its Free
// records an event there, and the block is not handed out before that event is passed.
// The pool takes other memory meanwhile, so that copies and
// computation on two streams overlap. Only once the blocks of four rounds wait does the block's own stream
// wait for the event of the oldest. A round is as many blocks of one size as the program
// frees before it asks for that size again.
//
// Before a stream is destroyed, ReleaseStream makes its memory everybody's.
//
// # CUDA graphs
//
// A Pool may be called while a stream is captured into a graph if all its blocks are of
// that stream, from the first on, and RecordStream names no other. Then Alloc and Free
// record no event and wait for none, until memory runs out, GCThreshold is passed or there
// are thousands of stitches: they only ask for memory, and leave nothing in the graph but
// addresses. Capture in the mode cudaStreamCaptureModeRelaxed: in the global one,
// cudaMalloc on any thread spoils the capture, and in the thread-local one on the thread
// that captures.
//
// With several streams a request may record an event on the captured stream. It is then
// the graph's: a stream that waits for it becomes part of the capture, and the host cannot
// ask for it. So do Trim, ReleaseStream, and a request for which the pool looks for memory
// to give back: they spoil the capture. Poison and Malloc always do.
//
// A graph uses its addresses whenever it is launched. Keep the Pool to what is captured,
// with malloc segments and a driver that frees nothing while graphs exist. An Async over
// cudadriver.NewGraphPool makes its calls part of the graph.
//
// # Growth
//
// A [Pool] reserves memory in segments of one of two kinds, PoolOptions.Segments.
//
// A malloc segment is one call of Driver.Malloc, of whole units of SegmentBytes. The
// next one of a heap below 192 MiB is of a size that blocks like the one asked for nearly
// fill; that of a larger heap adds an eighth to it. Only for a single block that needs it
// is a segment larger than MaxSegmentBytes.
//
// A virtual segment is a range of addresses that grows by chunks. A chunk is memory
// that one cuMemCreate made: one page of 2 MiB or, in a large pool or for a large
// request, several. It stays mapped at one address as long as it exists. The heap of
// each stream has a range of its own, so that its new chunks are neighbours and a block
// may span them.
//
// A request that no free block of its heap fits gets the first of these that there is:
//
//   - Unused chunks of the heap that lie side by side, by themselves or in a stitch that
//     was made before.
//   - New chunks, until the bytes reserved exceed the peak of bytes allocated by a
//     sixty-fourth. This slack keeps stitches and moves between streams few: it
//     grows to a third where stitches are needed all the time, as by random sizes, and
//     to a half where moves are. PoolOptions.Slack chooses another.
//   - Unused chunks of other heaps that lie side by side. A chunk moves by a change
//     of its owner: the addresses stay, the driver maps nothing, and the stream that
//     gets it waits on the device for an event of the one that had it.
//   - A stitch: unused chunks from here and there, mapped a second time, side by side
//     (virtual memory stitching: Guo et al., GMLake, ASPLOS 2024).
//   - New chunks, as many as are missing.
//
// Where stitches or moves are needed all the time, small blocks get chunks of their own, so
// that those which live long leave the other chunks whole.
//
// A stitch stays for the next block that needs its bytes while its chunks are free,
// unless there are very many. So a program that repeats itself finds the chunks and
// stitches of the last time, and then calls the driver only to order streams.
//
// Trim gives unused memory back: malloc segments of which nothing is handed out, and
// such chunks of virtual ones, which are then unmapped in stitches too. The most that was
// ever handed out counts from there on again, as it does from ResetPeaks on. A pool also
// gives memory back by itself, before it grows beyond GCThreshold and when memory runs out,
// where the memory it gives back and free memory can serve a request.
//
// # Out of memory
//
// A request for more than is unused in the pool and free on the device, or than the limit
// leaves, fails at once: the pool waits for nothing and keeps what it has.
//
// With malloc segments a Pool waits for all blocks that wait for other streams, looks at
// the memory of other streams, asks the driver once more with unused segments given back,
// and looks at every free block whatever its strategy. Free memory in
// several segments does not help a request that none of them has room for.
//
// With virtual ones it waits for those blocks too, and stitches unused chunks of all
// streams. So it does not matter that free memory is in pieces, except within chunks that
// are partly in use: a request fails once the pages of the chunks under live blocks and
// its own exceed the limit or what the device has. With a [Reuse] that keeps memory from
// other streams, as many bytes of unused chunks as it asks for go back to the driver first.
//
// A Plan leaves its arena to its pool, and an Async trims the
// driver's pool and tries again. Then the [*OutOfMemoryError] says what was asked for,
// held and free, and what would have helped. A limit is advised only where the same calls
// are certain to be met with it: where the one in force was never in the way before. What
// was handed out is not touched, and the next Alloc works.
//
// # Drivers
//
// The package knows no GPU. What it needs of one it asks of a [Driver], and for
// virtual segments of a [PageDriver], so the same code runs on a card (package
// cudadriver), on host memory and on the fake of package allocatortest, which faults
// where a real card would corrupt.
//
// A program may bring its own driver, its own allocator around these, and its own
// [Placement], which chooses among free blocks where none of [Strategies] will do. The
// examples show each. An allocator that is not around these is bump, in own_test.go;
// allocatortest.Run says whether one keeps the rules.
//
// Another module imports the package with "replace mlpool => ../mlpool" in its go.mod, the
// folder being that of this module; then go mod tidy.
package allocator

import (
	"errors"

	"mlpool/allocator/internal/block"
)

// Alignment is what every block's address and size are rounded to, in bytes:
// what cudaMalloc guarantees and what 16-byte vector loads need.
const Alignment = block.Alignment

// Stream names a queue of device work, such as a cudaStream_t; 0 is the
// default stream. It is an alias, so that drivers need not import this package.
type Stream = uintptr

// A MemoryResource is what code that uses memory, and does not manage it, needs of an
// [Allocator].
type MemoryResource interface {
	// Alloc returns a block of at least bytes bytes, to be used by work queued
	// on s from now on. The tag, a constant string such as the name of the
	// operation, is what a leak or an out-of-memory error is reported with.
	// Alloc of 0 bytes returns a valid block. A negative size is
	// [ErrBadSize]; memory that cannot be had is an [*OutOfMemoryError], after
	// which the allocator works on.
	Alloc(bytes int64, s Stream, tag string) (Block, error)

	// Free gives b back after the work queued on s so far. The block may be
	// handed out again at once to work on the same stream. A block freed
	// before is [ErrDoubleFree]; one of another allocator, or none, is
	// [ErrUnknownBlock].
	Free(b Block, s Stream) error
}

// An Allocator owns device memory and hands it out in blocks. All methods may
// be called from any goroutine.
type Allocator interface {
	MemoryResource

	// Stats returns the counters of this moment.
	Stats() Stats

	// ResetPeaks starts the peaks in Stats again from the current values.
	ResetPeaks()

	// Trim gives unused memory back to the driver, in whole segments or chunks,
	// until no more than keep bytes are reserved or none is unused. It may wait on
	// the host for the work that used them, and so may a request that the driver
	// has no memory for. [Pool.Trim] says which calls then wait as well.
	Trim(keep int64) error

	// Live lists the blocks that are handed out now, in address order.
	Live() []LiveBlock

	// Close returns all memory to the driver. Blocks still handed out are a
	// [*LeakError] that names their tags; their memory is returned too.
	// The work on the memory must be done: synchronise first.
	//
	// After it every call that can fail is [ErrClosed], Close too if the driver took all
	// back. Live is empty, and in Stats nothing is allocated or reserved; the other
	// counters, and the peaks, stay.
	Close() error
}

// A StreamRecorder is what an [Allocator] also is that can be told of a second stream. [As]
// finds one inside others.
type StreamRecorder interface {
	// RecordStream says that work on s uses b as well: the memory's next use will
	// come after what is queued on s when b is freed. What cannot order streams returns
	// errors.ErrUnsupported; a block freed before is [ErrDoubleFree], one of another
	// allocator [ErrUnknownBlock].
	RecordStream(b Block, s Stream) error
}

// A StreamReleaser is what an [Allocator] also is that is to be told of the end of a
// stream. [As] finds one inside others.
type StreamReleaser interface {
	// ReleaseStream is to be called before stream s is destroyed. It waits on the host
	// for the work queued on s. Blocks that were allocated on s, or named it with
	// RecordStream, may still be freed on streams that exist.
	ReleaseStream(s Stream) error
}

// What the calls of an Allocator can fail with, apart from the driver's own
// errors, *OutOfMemoryError and *LeakError.
var (
	ErrBadSize      = errors.New("allocator: size is negative")
	ErrDoubleFree   = errors.New("allocator: block was freed before")
	ErrUnknownBlock = errors.New("allocator: block is not of this allocator")
	ErrClosed       = errors.New("allocator: already closed")
)

// LiveBlock describes a block that is handed out.
type LiveBlock struct {
	Addr   uintptr
	Bytes  int64 // as asked for
	Stream Stream
	Tag    string
}

// Stats counts what an allocator did since it was made. Bytes allocated are
// those of blocks handed out, after rounding; bytes reserved are those held
// from the driver.
type Stats struct {
	Allocs, Frees int64
	// Refused counts the requests that failed with an *OutOfMemoryError.
	Refused int64
	// DriverCalls counts every call to the driver, DriverMallocs only those
	// that asked it for memory.
	DriverCalls, DriverMallocs int64
	// HostWaits counts the calls of SyncEvent, in which the host waits for queued work.
	HostWaits int64
	// Mappings counts the chunks that were mapped at an address, in stitches too;
	// Stitches the stitches that were made.
	Mappings, Stitches int64

	Allocated, PeakAllocated int64 // bytes
	Reserved, PeakReserved   int64 // bytes
}
