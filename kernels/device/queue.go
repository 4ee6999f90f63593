package device

import (
	"time"

	"mlpool/kernels"
)

// A Queue runs operations in order on memory of one device: a CUDA stream on a
// GPU, the calling goroutine on host memory. Calls return when the work is queued, not
// when it is done, and report faults of the launch itself; Synchronize reports those
// of the work. Any size is valid; an operation on no elements does nothing.
type Queue interface {
	kernels.Launches // the precision of GEMMs is the queue's

	// FusesWgrad says whether DgradWgrad does both parts of g in one launch, in less time than
	// GEMM and GroupedGEMM would take; WantsTransposed whether g, a wgrad, takes less time with b
	// transposed at T.
	FusesWgrad(g kernels.GEMM) bool
	WantsTransposed(g kernels.GEMM) bool

	Fill(dst uintptr, value byte, bytes int) error

	// Upload copies src to the device, Download the other way; both return
	// when the copy is done.
	Upload(dst uintptr, src []byte) error
	Download(dst []byte, src uintptr) error

	// Checksum returns [ref.Checksum] of n float32 once all that was queued is done.
	Checksum(addr uintptr, n int) (uint64, error)

	// Mark notes when the work queued so far is done, under a number from 0
	// on, which costs memory when it is first used; Elapsed gives the time from
	// one mark to another, after a Synchronize.
	Mark(i int) error
	Elapsed(from, to int) (time.Duration, error)
	// DownloadAfter is Download of what Mark(i) noted: it waits for no work that was queued later.
	DownloadAfter(i int, dst []byte, src uintptr) error

	// BeginCapture makes the queue keep the operations from here on, rather than
	// do them, until EndCapture returns them as a Graph. Uploads, downloads and
	// what else waits for the queue are errors meanwhile, and spoil the capture;
	// after an error of EndCapture there is no graph, and the queue can be used on.
	BeginCapture() error
	EndCapture() (Graph, error)

	// NewSideQueue makes another queue of the device.
	NewSideQueue() (SideQueue, error)

	// Synchronize waits for all that was queued and reports its faults.
	Synchronize() error
	// Handle is what an allocator knows this queue by.
	Handle() uintptr
	Close() error
}

// A Graph is operations that a Queue has kept, with all their arguments.
type Graph interface {
	// Launch queues them on the queue that they were captured from.
	Launch() error
	// Close frees the graph; its work must be done.
	Close() error
}
