// Package allocator hands out device memory in stream order.
//
// An [Allocator] has two main calls: Alloc returns a block for use on a stream, and Free returns
// the block once the work already queued on that stream is done with it. Three allocators implement
// it:
//
//   - [Pool] takes segments from the driver and splits them into blocks itself, so that in a
//     steady state it never calls the driver;
//   - [Async] passes every request to the driver's own stream-ordered pool (cudaMallocAsync and
//     cudaFreeAsync on a GPU);
//   - [Malloc] has no pool, and shows what that costs.
//
// Code that only uses memory takes a [MemoryResource], which has just these two calls.
//
// [Timed], [Limit], [Trace] and [Poison] wrap any allocator; without them there is no overhead.
// [As] finds the wrapped allocator.
//
// A program that embeds a Pool may also ask for memory without waiting ([Pool.TryAlloc]) or at a multiple
// of more than Alignment ([AlignedAllocator]), change what is reserved ([Pool.Reserve], [Pool.SetMaxBytes])
// and find the physical memory of a block, for another process to map ([Pool.Backing]). [Limit.SetTag]
// limits the blocks with a tag.
//
// Stats are counters. [Pool.Detail] has them by stream and by size, [ByTag] sums memory up by tag,
// and [MapOf] returns where each block is. A [Trace] keeps the last calls; package observe writes
// them for tools/allocbench, Perfetto and PyTorch's memory_viz.
//
// # Words
//
// A block is what Alloc returns. A segment is memory reserved in one piece; a block is part of one
// segment. A page is 2 MiB, the least that a GPU's driver maps. A chunk is the memory of one
// cuMemCreate, of one or more pages. A stitch is chunks that are mapped a second time, side by side.
// A heap has the segments and free blocks of one stream. To split is to cut a free block in two, to
// coalesce is to join two; a size class is a range of sizes that share a list of free blocks.
//
// Memory is reserved when it is held from the driver, allocated when it is handed out, with sizes
// rounded up, and live when it is handed out, with sizes as requested. Slack is reserved memory beyond
// the peak allocated. To trim is to return unused memory to the driver. The release threshold is what
// cudaMallocAsync's pool keeps. A memory node is an allocation in a CUDA graph.
//
// # Stream order
//
// A block is used by work queued on the stream that it was allocated for. Free says that this work
// is queued, not that it is done. Memory freed on a stream serves the same stream at once, since its
// work runs in order. It serves another stream only as [Reuse] allows: after a wait that is queued
// on the device, once an event shows that the work is done, or never. No event is recorded until
// memory changes streams.
//
// A block that a second stream uses is named with RecordStream. Its Free records an event on that
// stream, and the block is not handed out before the event has passed. The pool uses other memory
// meanwhile, so that copies and computation on two streams overlap. If the blocks of four rounds are
// waiting, the block's own stream waits for the oldest one's event. A round is the blocks of one size
// that the program frees before it next requests that size.
//
// ReleaseStream must be called before a stream is destroyed; all streams may then use its memory.
//
// # CUDA graphs
//
// While a stream is captured into a graph, use a Pool that has only ever served that stream, also in
// RecordStream. Alloc and Free then use no events, with three exceptions: when memory runs out, when
// GCThreshold is passed and when there are thousands of stitches. They only ask the driver for memory,
// and the graph contains only addresses. Over package cudadriver any capture mode will do. With another
// driver capture in the mode cudaStreamCaptureModeRelaxed, unless the driver sets that mode for its
// calls: in the global mode, cudaMalloc on any thread invalidates the capture; in the thread-local mode,
// only one on the capturing thread does.
//
// With several streams a request may record an event on the captured stream. The event then belongs to
// the graph: a stream that waits for it joins the capture, and the host cannot query it: a query
// invalidates the capture. So do Trim, ReleaseStream, and a request for which the pool looks for memory
// to release. Poison and Malloc always invalidate it.
//
// A graph uses its addresses whenever it is launched. Use a separate pool for captured work, with
// PoolOptions.KeepMapped: addresses stay mapped until Close or Sleep. The calls of an Async over
// cudadriver.NewGraphPool become part of the graph.
//
// # Growth
//
// A [Pool] reserves memory in segments of one of two kinds, PoolOptions.Segments.
//
// A malloc segment is one call of Driver.Malloc, a multiple of SegmentBytes. In a heap below 192 MiB the
// next segment is close to a multiple of the requested size; in a larger heap it is an eighth of the
// heap. A segment is larger than MaxSegmentBytes only for a single block that needs it.
//
// A virtual segment is a range of addresses that grows by chunks. A chunk has one page or, in a
// large pool or for a large request, several. It stays mapped at one address as long as it exists.
// The heap of each stream has its own range, so that its new chunks are neighbours and a block may
// span them.
//
// A request that no free block of its heap fits is served by the first of these that is possible:
//
//   - Unused chunks of the heap that are side by side, in its range or in an earlier stitch.
//   - New chunks, as long as reserved memory stays within 65/64 of the peak allocated. This slack keeps
//     stitches and moves between streams rare. If stitches never stop, as with random sizes, it grows to
//     a third of the peak; if moves never stop, to a half. PoolOptions.Slack changes it.
//   - Unused chunks of other heaps that are side by side. A chunk moves by a change of its owner:
//     its address stays, nothing is mapped, and the stream that gets it waits on the device for an
//     event of the stream that had it.
//   - A stitch: unused chunks from anywhere, mapped a second time, side by side (virtual memory
//     stitching: Guo et al., GMLake, ASPLOS 2024). The same bytes then have two addresses. CUDA orders
//     accesses through both only if one kernel or copy is complete before the next makes its access, as
//     stream order and the pool's events ensure.
//   - New chunks, as many as are missing.
//
// If stitches or moves never stop, small blocks get separate chunks, so that long-lived ones do not
// fragment the others.
//
// A stitch is kept for the next block of its size while its chunks are free, unless there are very
// many. So a program that repeats itself finds its earlier chunks and stitches, and calls the driver
// only to order streams.
//
// Trim returns unused memory to the driver: malloc segments without live blocks, and chunks without
// live blocks, which are also unmapped in stitches. After Trim or ResetPeaks the peak counts again
// from the current value. A pool also releases memory by itself, before it grows beyond GCThreshold
// and when memory runs out, if the released and the free memory can serve a request.
//
// # Sleep
//
// [Pool.Sleep] gives all memory of virtual segments to other programs, such as the trainer that takes turns
// with an inference server, and keeps the addresses. [Pool.Wake] maps new memory there, also in stitches, so
// pointers and captured graphs stay valid. Sleep can keep the contents of live blocks in host memory. In
// between nothing may use the memory, Alloc returns [ErrAsleep], and blocks may be freed.
//
// # Out of memory
//
// A request fails at once if it is larger than the pool's unused memory plus the memory that the device
// has free, or that the limit leaves. The pool then waits for nothing and keeps its memory.
//
// With malloc segments a Pool waits for all blocks that wait for other streams, tries the memory of
// other streams, asks the driver again after releasing unused segments, and tries every free block
// for any strategy. Free memory in several segments does not help a request that none of them fits.
//
// With virtual segments it also waits for those blocks, and stitches unused chunks of all streams. So
// fragmentation matters only within chunks that are partly in use: a request fails only if the chunks
// with live blocks, plus its own pages, exceed the limit or the device. With a [Reuse] that keeps memory
// from other streams, unused chunks of the requested size first go back to the driver.
//
// An Async trims the driver's pool and tries again. A Pool calls PoolOptions.OnOutOfMemory, which may free
// caches of the program. If the request still fails, the [*OutOfMemoryError] says what was requested, held and free, and what would have helped. It
// suggests a limit only if that limit would certainly have been enough. Live blocks are not affected, and
// the next Alloc works.
//
// # Drivers
//
// The package is for Go programs; cmd/libmlpool makes it a C library, for other languages. It knows no GPU.
// It needs a [Driver], and for virtual segments a [PageDriver]. So the same code runs on a GPU (package cudadriver), on host memory,
// and on the fake of package allocatortest, which reports errors that would corrupt memory on a GPU.
// A [Pool] has memory of one device: a program with several devices makes one for each, over a driver of
// that device.
//
// A program may have its own driver, its own allocator that wraps one of these, and its own [Placement],
// which chooses among free blocks in place of one of [Strategies]. The examples show an allocator and a
// placement; kernels/device/host.go is a driver, and bump in own_test.go an allocator that wraps none.
// allocatortest.Run checks that an allocator keeps the rules, or a Pool over a driver of the program.
//
// Another module imports the package with "replace mlpool => ../mlpool" in its go.mod, where ../mlpool
// is the folder of this module, and then go mod tidy.
package allocator

import (
	"errors"
	"unsafe"

	"mlpool/allocator/internal/block"
)

// Alignment is the multiple of every block's address and size, in bytes: that of cudaMalloc,
// enough for 16-byte vector loads.
const Alignment = block.Alignment

// Stream names one queue of device work, such as a cudaStream_t; 0 is the default stream.
// cudaStreamPerThread is a different queue on each thread, so only one thread may use it. Stream is an
// alias, so that drivers need not import this package.
type Stream = uintptr

// A MemoryResource is the part of an [Allocator] for code that only uses memory.
type MemoryResource interface {
	// Alloc returns a block of at least bytes bytes, with undefined contents, for work queued on s from
	// now on. The tag, a constant string such as the name of the operation, appears in reports of leaks
	// and of memory that ran out. Alloc of 0 bytes returns a valid block. A negative size is
	// [ErrBadSize]. If there is not enough memory, the error is an [*OutOfMemoryError], and the
	// allocator works on.
	Alloc(bytes int64, s Stream, tag string) (Block, error)

	// Free frees b after the work queued on s so far. Its memory may be handed out again at
	// once to work on the same stream. A block freed before is [ErrDoubleFree]; a block of
	// another allocator, or the zero Block, is [ErrUnknownBlock].
	Free(b Block, s Stream) error
}

// An Allocator owns device memory and hands it out in blocks. All methods may be called from any
// goroutine.
type Allocator interface {
	MemoryResource

	// Stats returns the current counters.
	Stats() Stats

	// ResetPeaks starts the peaks in Stats again from the current values.
	ResetPeaks()

	// Trim returns unused memory to the driver, in whole segments or chunks, until at most
	// keep bytes are reserved or no memory is unused. It may wait on the host for the work
	// that used them, and so may a request for which the driver has no memory. [Pool.Trim]
	// says which calls wait meanwhile.
	Trim(keep int64) error

	// Live lists the live blocks, in address order.
	Live() []LiveBlock

	// Close returns all memory to the driver. The work on the memory must be done:
	// synchronise first. Live blocks are a [*LeakError] that names their tags; their memory is
	// returned too.
	//
	// After Close every call that can fail returns [ErrClosed]. A second Close first retries what the
	// driver refused, and returns ErrClosed if nothing was left. Live is empty, and in Stats nothing is
	// allocated or reserved; the other counters, and the peaks, stay.
	Close() error
}

// A StreamRecorder is an [Allocator] whose blocks a second stream may use. [As] finds one that is
// wrapped.
type StreamRecorder interface {
	// RecordStream says that work on s also uses b: the next use of the memory will come after
	// the work queued on s when b is freed. The error is errors.ErrUnsupported if the driver
	// cannot order streams, [ErrDoubleFree] for a block freed before, and [ErrUnknownBlock] for
	// one of another allocator.
	RecordStream(b Block, s Stream) error
}

// A StreamReleaser is an [Allocator] that must be told of the end of a stream. [As] finds one that is
// wrapped.
type StreamReleaser interface {
	// ReleaseStream must be called before stream s is destroyed. It waits on the host for the
	// work queued on s. Blocks that were allocated on s, or named it with RecordStream, may
	// still be freed on other streams.
	ReleaseStream(s Stream) error
}

// The errors of an Allocator, in addition to the driver's, *OutOfMemoryError and *LeakError.
var (
	ErrBadSize      = errors.New("allocator: size is negative")
	ErrDoubleFree   = errors.New("allocator: block was freed before")
	ErrUnknownBlock = errors.New("allocator: block is not of this allocator")
	ErrClosed       = errors.New("allocator: already closed")
	ErrAsleep       = errors.New("allocator: the pool is asleep: call Wake first")
	// ErrBadAlignment is only of an [AlignedAllocator].
	ErrBadAlignment = errors.New("allocator: alignment is not a power of two of at most 1 GiB")
	// ErrWouldBlock is only of [Pool.TryAlloc].
	ErrWouldBlock = errors.New("allocator: no free memory without waiting or a call of the driver: use Alloc")
)

// LiveBlock describes a live block.
type LiveBlock struct {
	Addr   uintptr
	Bytes  int64 // as requested
	Stream Stream
	Tag    string
}

// Stats has the counters of an allocator since it was made. Allocated bytes are those of live blocks,
// rounded up; reserved bytes are held from the driver.
type Stats struct {
	Allocs, Frees int64
	// Refused counts the requests that failed with an *OutOfMemoryError.
	Refused int64
	// DriverCalls counts every driver call, DriverMallocs only requests for memory.
	DriverCalls, DriverMallocs int64
	// HostWaits counts the calls of SyncEvent, in which the host waits for queued work.
	HostWaits int64
	// Mappings counts mapped chunks, also in stitches; Stitches counts new stitches.
	Mappings, Stitches int64

	Allocated, PeakAllocated int64 // bytes
	Reserved, PeakReserved   int64 // bytes
}

// A Block is device memory that an [Allocator] handed out. It is a small value
// to be copied freely; the allocator that made it keeps the memory, so dropping
// a Block without Free leaks until Close. The zero Block is not valid.
type Block struct {
	Addr uintptr
	Size int64 // bytes requested; the memory may be larger
	// Gen distinguishes a Block from others that had its address. An allocator outside this
	// package may set it, to numbers that no other allocator uses.
	Gen uint64

	rec *handle // its generation was Gen when the block was handed out
}

// maxRequest is the largest request in bytes; a larger one is out of memory at once, so that no
// sum of sizes can overflow.
const maxRequest = 1 << 46

// blockSize returns the memory that a request of bytes takes: a whole number of
// units of Alignment, and at least one so that blocks of 0 bytes differ.
func blockSize(bytes int64) int64 {
	return max(block.RoundUp(bytes, Alignment), Alignment)
}

// A handle is the target of a [Block]. A handle that is reused keeps its owner, so the generation
// always distinguishes a stale Block from a current one.
type handle struct {
	owner  any    // the *record of a Pool or the *entry of a ledger
	gen    uint64 // number of Allocs and Frees: odd while the block is live
	asked  int64  // bytes requested
	stream Stream
	tag    string
}

// handOut marks the handle as live and returns its Block, whose memory is at addr.
func (d *handle) handOut(addr uintptr, asked int64, s Stream, tag string) Block {
	d.gen++
	d.asked, d.stream = asked, s
	if len(d.tag) != len(tag) || unsafe.StringData(d.tag) != unsafe.StringData(tag) {
		d.tag = tag // usually the same constant, so this is rare
	}
	return Block{Addr: addr, Size: asked, Gen: d.gen, rec: d}
}

// isLive reports whether the handle's block is live.
func (d *handle) isLive() bool { return d.gen&1 != 0 }

// check returns an error unless b, whose handle is d and whose memory is at addr, is live.
func (d *handle) check(b Block, addr uintptr) error {
	if d.gen != b.Gen || !d.isLive() {
		return ErrDoubleFree
	}
	if addr != b.Addr {
		return ErrUnknownBlock
	}
	return nil
}

func (d *handle) describe(addr uintptr) LiveBlock {
	return LiveBlock{Addr: addr, Bytes: d.asked, Stream: d.stream, Tag: d.tag}
}

// owner returns the owner of b's handle, nil if it has none.
func (b Block) owner() any {
	if b.rec == nil {
		return nil
	}
	return b.rec.owner
}
