package allocator

import (
	"cmp"
	"errors"
	"slices"
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

func sortByAddress(blocks []LiveBlock) {
	slices.SortFunc(blocks, func(a, b LiveBlock) int { return cmp.Compare(a.Addr, b.Addr) })
}

// Stats has the counters of an allocator since it was made. Allocated bytes are those of live blocks,
// rounded up; reserved bytes are held from the driver.
type Stats struct {
	Allocs, Frees int64
	// Refused counts the requests that failed with an *OutOfMemoryError.
	Refused int64
	// DriverCalls counts every driver call, DriverMallocs requests for memory, and DriverFrees memory given
	// back.
	DriverCalls, DriverMallocs, DriverFrees int64
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
func (h *handle) handOut(addr uintptr, asked int64, s Stream, tag string) Block {
	h.gen++
	h.asked, h.stream = asked, s
	if len(h.tag) != len(tag) || unsafe.StringData(h.tag) != unsafe.StringData(tag) {
		h.tag = tag // usually the same constant, so this is rare
	}
	return Block{Addr: addr, Size: asked, Gen: h.gen, rec: h}
}

// isLive reports whether the handle's block is live.
func (h *handle) isLive() bool { return h.gen&1 != 0 }

// check returns an error unless b, whose handle is h and whose memory is at addr, is live.
func (h *handle) check(b Block, addr uintptr) error {
	if h.gen != b.Gen || !h.isLive() {
		return ErrDoubleFree
	}
	if addr != b.Addr {
		return ErrUnknownBlock
	}
	return nil
}

func (h *handle) describe(addr uintptr) LiveBlock {
	return LiveBlock{Addr: addr, Bytes: h.asked, Stream: h.stream, Tag: h.tag}
}

// owner returns the owner of b's handle, nil if it has none.
func (b Block) owner() any {
	if b.rec == nil {
		return nil
	}
	return b.rec.owner
}

// An AlignedAllocator is an [Allocator] that can place a block at a multiple of more than [Alignment]. A Pool
// is one, and Limit, Timed, Trace and Poison pass the call on; [As] finds the outermost of them.
type AlignedAllocator interface {
	// AllocAligned is Alloc of a block whose address is a multiple of alignment, a power of two of at most
	// 1 GiB; another one is [ErrBadAlignment]. Up to Alignment it is Alloc. The error is
	// errors.ErrUnsupported if the allocator, or the one that it wraps, cannot.
	AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error)
}

// maxAlignment is the largest alignment of a block, in bytes.
const maxAlignment = 1 << 30
