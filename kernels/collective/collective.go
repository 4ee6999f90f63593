// Package collective says what a training on several GPUs asks of the library that moves
// its data: an all-reduce, an all-gather, and an end in order or in haste.
//
// A rank is one of the processes, or of the goroutines, that train together; ranks count
// from 0. [Local] is the reference: ranks are goroutines, and their arrays host memory.
// Package nccl has the same on GPUs.
package collective

// A Collective is a rank's part in what all ranks do together. Err and Abort may be called
// from any goroutine; the other methods are for one.
type Collective interface {
	Rank() int
	Size() int

	// AllReduce queues on a stream: x[i] = the sum of x[i] over the ranks, for n float32, in
	// place. All ranks get the same bits, and the same in every run of as many ranks. Each
	// must call it as often as the others, with the same n in the same order.
	AllReduce(x uintptr, n int, stream uintptr) error

	// AllGather queues on a stream: part r of x becomes what it is on rank r. x is Size()
	// parts of n float32 in memory of AllocSymmetric. On GPUs copy engines do it, so that it
	// needs no SM. Each rank must call it as AllReduce.
	AllGather(x uintptr, n int, stream uintptr) error

	// AllocSymmetric returns memory that the other ranks can write to, and what frees it once
	// all work is done. All ranks call it together, with as many bytes; where one of them
	// cannot have such memory, none can, and the error is [errors.ErrUnsupported].
	AllocSymmetric(bytes int) (addr uintptr, free func() error, err error)

	// Err is what ended the collective before its time, or nil.
	Err() error
	// Abort ends it, here, for a reason that is not nil: an AllReduce that is queued ends
	// unfinished, an AllGather on GPUs when the other ranks come, and what comes after fails with
	// the first reason.
	Abort(reason error)

	// Close gives back what the rank holds, once its work is done.
	Close() error
}
