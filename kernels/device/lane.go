package device

import (
	"errors"
	"time"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// A Lane is a second queue of a device, for work beside that of the first, from which it
// was made: on a GPU a stream of its own. What each may begin only after work of the other
// is said with Fork, Done and Await, within captures as well.
type Lane interface {
	// Fork makes what the lane is given next come after what the queue was given so far.
	Fork() error
	// Done marks the lane's work so far with a number from 0 on, and Await makes what the
	// queue is given next come after the work that was so marked last.
	Done(i int) error
	Await(i int) error

	// Do calls f to queue work on the lane, whose stream it is given; in a capture on the
	// host, when the graph is launched.
	Do(f func(stream uintptr) error) error
	// AddAndZero is [kernels.Stream.AddAndZero].
	AddAndZero(pairs []kernels.AddPair) error

	// StampLane and StampQueue note when the lane's work so far is done, or the queue's,
	// under a number from 0 on. A stamp that is captured is made by each launch of the
	// graph. Elapsed gives the time from one to another, once all work is done.
	StampLane(i int) error
	StampQueue(i int) error
	Elapsed(from, to int) (time.Duration, error)

	Close() error
}

// hostLane runs work at once, as its queue does.
type hostLane struct {
	queue  *HostQueue
	stamps HostQueue // whose marks they are
}

func (q *HostQueue) NewLane() (Lane, error) { return &hostLane{queue: q}, nil }

func (*hostLane) Fork() error     { return nil }
func (*hostLane) Done(int) error  { return nil }
func (*hostLane) Await(int) error { return nil }
func (*hostLane) Close() error    { return nil }

func (l *hostLane) Do(f func(uintptr) error) error {
	return l.queue.try(func() error { return f(l.queue.Handle()) })
}

func (l *hostLane) AddAndZero(pairs []kernels.AddPair) error {
	return l.queue.do(func() {
		for _, p := range pairs {
			ref.AddAndZero(f32(p.Y, p.N), f32(p.X, p.N), p.N)
		}
	})
}

func (l *hostLane) StampLane(i int) error {
	return l.queue.try(func() error { return l.stamps.Mark(i) })
}

func (l *hostLane) StampQueue(i int) error { return l.StampLane(i) }

func (l *hostLane) Elapsed(from, to int) (time.Duration, error) { return l.stamps.Elapsed(from, to) }

// cudaLane is a stream beside that of a queue, and events between the two.
type cudaLane struct {
	queue, stream kernels.Stream
	forked        kernels.Event
	done, stamps  []kernels.Event
}

func (q *CUDAQueue) NewLane() (Lane, error) {
	// Else an all-reduce would begin where a GEMM that fills the GPU ends.
	stream, err := kernels.NewHighPriorityStream()
	if err != nil {
		return nil, err
	}
	forked, err := kernels.NewEvent()
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return &cudaLane{queue: q.Stream, stream: stream, forked: forked}, nil
}

func (l *cudaLane) Fork() error {
	if err := l.forked.Record(l.queue); err != nil {
		return err
	}
	return l.stream.WaitEvent(l.forked)
}

// numbered is the event of a number.
func numbered(events *[]kernels.Event, i int) (kernels.Event, error) {
	for len(*events) <= i {
		e, err := kernels.NewEvent()
		if err != nil {
			return 0, err
		}
		*events = append(*events, e)
	}
	return (*events)[i], nil
}

func (l *cudaLane) Done(i int) error {
	e, err := numbered(&l.done, i)
	if err != nil {
		return err
	}
	return e.Record(l.stream)
}

func (l *cudaLane) Await(i int) error {
	if i >= len(l.done) {
		return errors.New("device: no work of the lane was marked so")
	}
	return l.queue.WaitEvent(l.done[i])
}

func (l *cudaLane) Do(f func(uintptr) error) error           { return f(l.stream.Handle()) }
func (l *cudaLane) AddAndZero(pairs []kernels.AddPair) error { return l.stream.AddAndZero(pairs) }
func (l *cudaLane) StampLane(i int) error                    { return l.stamp(i, l.stream) }
func (l *cudaLane) StampQueue(i int) error                   { return l.stamp(i, l.queue) }

func (l *cudaLane) stamp(i int, s kernels.Stream) error {
	e, err := numbered(&l.stamps, i)
	if err != nil {
		return err
	}
	return e.RecordExternal(s)
}

func (l *cudaLane) Elapsed(from, to int) (time.Duration, error) {
	if !areMarks(from, to, len(l.stamps)) {
		return 0, noMarks(from, to)
	}
	return l.stamps[to].Since(l.stamps[from])
}

// Close waits for the lane's work, then frees its stream and its events.
func (l *cudaLane) Close() error {
	errs := []error{l.stream.Close(), l.forked.Close()}
	for _, e := range append(l.done, l.stamps...) {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
