// Package collective defines the operations that ranks of a training do together: all-reduce,
// all-gather and all-to-all.
//
// A rank is one of the processes, or goroutines, that train together; ranks count from 0. An
// all-reduce gives each rank the sum over all ranks. An all-gather gives each rank the data
// of all ranks. An all-to-all gives each rank its part of the data of all ranks. Symmetric
// memory, or a window, is memory of all ranks that each of them can write to. A copy engine is
// a unit of a GPU that copies memory and needs no SM.
//
// [Local] is the reference: its ranks are goroutines, its arrays host memory. Package nccl
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

	// AllGather queues on a stream: part r of x becomes that of rank r. x is Size() parts of
	// n float32 in memory of AllocSymmetric. On GPUs copy engines do it, so it needs no SM.
	// All ranks must make the same calls, as with AllReduce.
	AllGather(x uintptr, n int, stream uintptr) error

	// AllToAll queues on a stream: part r of to becomes part Rank() of from of rank r. from and
	// to are Size() parts of n float32 each, in memory of AllocSymmetric, and do not overlap. On
	// GPUs copy engines do it. All ranks must make the same calls, as with AllReduce.
	AllToAll(from, to uintptr, n int, stream uintptr) error

	// AllocSymmetric returns memory that the other ranks can write to, and a function that
	// frees it once all work is done. All ranks call it together, with the same number of
	// bytes. If one of them cannot have such memory, all return [errors.ErrUnsupported].
	AllocSymmetric(bytes int) (addr uintptr, free func() error, err error)

	// Err returns the reason of the first Abort, or nil.
	Err() error
	// Abort ends this rank's part for a reason that is not nil. A queued AllReduce ends
	// unfinished, a queued AllGather or AllToAll on GPUs once the other ranks come. Later calls
	// fail with the first reason.
	Abort(reason error)

	// Close releases the rank's resources, once its work is done.
	Close() error
}
