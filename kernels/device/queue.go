package device

import (
	"fmt"
	"time"

	"mlpool/kernels"
)

// A Queue runs operations in order on memory of one device: a CUDA stream on a GPU, the calling
// goroutine on host memory. Calls return when the work is queued, with faults of the launch;
// Synchronize returns faults of the work. Any size is valid; an operation on no elements does
// nothing.
type Queue interface {
	kernels.Launches // the precision is the queue's

	// Values is the type of values: BF16 in precision bf16, else Float32.
	Values() Kind

	// What the queue's kernels can do, or do faster: see the functions of these names in package kernels.
	FusesWgrad(g kernels.GEMM) bool
	WantsTransposed(g kernels.GEMM) bool
	TakesStride(g kernels.GEMM) bool
	Chains(g kernels.GEMM) bool

	Fill(dst uintptr, value byte, bytes int) error

	// Upload copies src to the device, Download the other way; both return
	// when the copy is done.
	Upload(dst uintptr, src []byte) error
	Download(dst []byte, src uintptr) error

	// Checksum returns [ref.Checksum] of n float32 after the work queued so far.
	Checksum(addr uintptr, n int) (uint64, error)

	// Mark records when the work queued so far is done, under a number from 0 on, which costs memory
	// at its first use. In a capture each launch of the graph records it anew. Elapsed returns the
	// time between two marks, after a Synchronize.
	Mark(i int) error
	Elapsed(from, to int) (time.Duration, error)
	// DownloadAfter is Download that waits only for the work before Mark(i), which was in no capture.
	DownloadAfter(i int, dst []byte, src uintptr) error

	// BeginCapture makes the queue record operations rather than run them, until EndCapture returns
	// them as a Graph. Uploads, downloads and other calls that wait for the queue fail meanwhile, and
	// invalidate the capture. After an error of EndCapture there is no graph, and the queue works on.
	BeginCapture() error
	EndCapture() (Graph, error)

	// Do calls f with the queue's stream, to queue work on it. In a capture on the host, it is called
	// when the graph is launched.
	Do(f func(stream uintptr) error) error

	// NewSideQueue returns another queue of the device.
	NewSideQueue() (SideQueue, error)

	// Synchronize waits for all queued work and returns its faults.
	Synchronize() error
	// Handle is the stream that an allocator knows.
	Handle() uintptr
	Close() error
}

// A Graph has the operations of a capture, with all their arguments.
type Graph interface {
	// Launch queues them on the queue that they were captured from.
	Launch() error
	// Close frees the graph; its work must be done.
	Close() error
}

// A SideQueue is an additional queue of a device: on a GPU a stream of high priority. Fork makes it
// wait for the main queue's work so far. Join(i) makes the main queue wait for the side queue's work
// at the last Record(i). All of them work in a capture.
type SideQueue interface {
	Fork() error
	Record(i int) error // i is a number from 0 on
	Join(i int) error

	Do(f func(stream uintptr) error) error // as the main queue's

	// StampSide and StampQueue record when the side queue's or the main queue's work so far is done,
	// under a number from 0 on. Each launch of a graph renews its stamps. Elapsed returns the time
	// between two stamps, once all work is done.
	StampSide(i int) error
	StampQueue(i int) error
	Elapsed(from, to int) (time.Duration, error)

	Close() error
}

func areMarks(from, to, count int) bool { return 0 <= min(from, to) && max(from, to) < count }

func noMarks(from, to int) error {
	return fmt.Errorf("device: no time from mark %d to mark %d: not both were made", from, to)
}
