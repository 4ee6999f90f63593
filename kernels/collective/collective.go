// Package collective defines the operations that ranks of a training do together: all-reduce, and the
// exchange of updates.
//
// A rank is one of the processes, or goroutines, that train together; ranks count from 0. An
// all-reduce gives each rank the sum over all ranks. Symmetric memory is memory of all ranks
// that each of them reads and writes.
//
// [Local] is the reference: its ranks are goroutines, its arrays host memory. Package gpu
// does the same on GPUs.
package collective

// A Collective is one rank's connection to the others. Err and Abort may be called from any
// goroutine, the other methods from one at a time.
type Collective interface {
	Rank() int
	Size() int

	// AllReduce queues on a stream: x[i] = the sum of x[i] over the ranks, for n float32, in
	// place. All ranks get the same bits, and the same in every run with this number of
	// ranks. All ranks must make the same calls, with the same n, in the same order.
	AllReduce(x uintptr, n int, stream uintptr) error

	// Exchange queues an exchange of updates on a stream. All ranks must make the same calls, as with
	// AllReduce, each after the one before it has ended.
	Exchange(u Updates, stream uintptr) error

	// AllocSymmetric returns memory that all ranks read and write, and a function that gives it
	// back once all work is done. All ranks call it together, with the same number of bytes. If one
	// of them cannot have such memory, all return [errors.ErrUnsupported].
	AllocSymmetric(bytes int) (addr uintptr, free func() error, err error)

	// Err returns the reason of the first Abort, or nil.
	Err() error
	// Abort ends this rank's part for a reason that is not nil. What is queued ends unfinished. Later
	// calls fail with the first reason.
	Abort(reason error)

	// Close releases the rank's resources, once its work is done.
	Close() error
}

// Updates are what an exchange adds to weights: W[N] += the sum of X[N] over the ranks. Both are float32. X
// is undefined afterwards. Each rank owns one part of W, N/Size() elements in the order of the ranks, and
// computes it from its own W.
//
// If Rounded is 0, all ranks get all parts, with the same bits. Otherwise a rank changes only its part of
// W, and all ranks get all of the new weights at Rounded, in bf16.
//
// In memory of one AllocSymmetric, at the same places on all ranks, updates are added in the order of the
// ranks. In other memory the order is the library's, the same in every run. The arrays are aligned to 16
// bytes. N is a multiple of 64·Size().
type Updates struct {
	W, X, Rounded uintptr
	N             int
}
