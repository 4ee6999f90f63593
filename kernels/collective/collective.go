// Package collective says what a training on several GPUs asks of the library that moves
// its data: an all-reduce, and an end in order or in haste.
//
// A rank is one of the processes, or of the goroutines, that train together; ranks count
// from 0. [Local] is the reference: ranks are goroutines, and their arrays host memory.
// Package nccl has the same on GPUs.
package collective

// A Collective is a rank's part in what all ranks do together. AllReduce and Close are for
// one goroutine; the other methods may be called from any.
type Collective interface {
	Rank() int
	Size() int

	// AllReduce queues on a stream: x[i] = the sum of x[i] over the ranks, for n float32, in
	// place. All ranks get the same bits, and the same in every run of as many ranks. Each
	// must call it as often as the others, with the same n in the same order.
	AllReduce(x uintptr, n int, stream uintptr) error

	// Err is what ended the collective before its time, or nil.
	Err() error
	// Abort ends it, here, for a reason that is not nil: what is queued ends unfinished, and
	// what comes after fails with the first reason.
	Abort(reason error)

	// Close gives back what the rank holds, once its work is done.
	Close() error
}
