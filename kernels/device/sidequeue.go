package device

import (
	"errors"
	"fmt"
	"time"

	"mlpool/kernels"
)

// A SideQueue is an additional queue of a device: on a GPU a stream of high priority. Fork makes it
// wait for the main queue's work so far. Join(i) makes the main queue wait for the side queue's work
// at the last Record(i), After(other, i) makes this queue wait for that of other. All of them work in
// a capture.
type SideQueue interface {
	Fork() error
	Record(i int) error // i is a number from 0 on
	Join(i int) error
	After(other SideQueue, i int) error

	AddUpdates(all []kernels.Updates) error // as the main queue's

	// Do calls f with the side queue's stream, to queue work on it. In a capture on the host, it is
	// called when the graph is launched.
	Do(f func(stream uintptr) error) error

	// StampSide and StampQueue record when the side queue's or the main queue's work so far is done,
	// under a number from 0 on. Each launch of a graph renews its stamps. Elapsed returns the time
	// between two stamps, once all work is done.
	StampSide(i int) error
	StampQueue(i int) error
	Elapsed(from, to int) (time.Duration, error)

	Close() error
}

// hostSideQueue runs work at once, as its queue does.
type hostSideQueue struct {
	queue  *HostQueue
	stamps HostQueue // its marks are the stamps
}

func (q *HostQueue) NewSideQueue() (SideQueue, error) { return &hostSideQueue{queue: q}, nil }

func (*hostSideQueue) Fork() error      { return nil }
func (*hostSideQueue) Record(int) error { return nil }
func (*hostSideQueue) Join(int) error   { return nil }

func (*hostSideQueue) After(SideQueue, int) error { return nil }

func (*hostSideQueue) Close() error { return nil }

func (s *hostSideQueue) Do(f func(uintptr) error) error {
	return s.queue.try(func() error { return f(s.queue.Handle()) })
}

func (s *hostSideQueue) AddUpdates(all []kernels.Updates) error { return s.queue.AddUpdates(all) }

func (s *hostSideQueue) StampSide(i int) error {
	return s.queue.try(func() error { return s.stamps.Mark(i) })
}

func (s *hostSideQueue) StampQueue(i int) error { return s.StampSide(i) }

func (s *hostSideQueue) Elapsed(from, to int) (time.Duration, error) {
	return s.stamps.Elapsed(from, to)
}

// cudaSideQueue is another stream of a queue, and events between the two.
type cudaSideQueue struct {
	queue, stream    kernels.Stream
	forked           kernels.Event
	recorded, stamps []kernels.Event
}

func (q *CUDAQueue) NewSideQueue() (SideQueue, error) {
	// At normal priority its work would begin only when a GEMM that fills the GPU ends.
	stream, err := kernels.NewHighPriorityStream()
	if err != nil {
		return nil, err
	}
	forked, err := kernels.NewUntimedEvent()
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return &cudaSideQueue{queue: q.Stream, stream: stream, forked: forked}, nil
}

func (s *cudaSideQueue) Fork() error {
	if err := s.forked.Record(s.queue); err != nil {
		return err
	}
	return s.stream.WaitEvent(s.forked)
}

// numbered returns the event of a number, and creates it at its first use.
func numbered(events *[]kernels.Event, i int, newEvent func() (kernels.Event, error)) (kernels.Event, error) {
	for len(*events) <= i {
		e, err := newEvent()
		if err != nil {
			return 0, err
		}
		*events = append(*events, e)
	}
	return (*events)[i], nil
}

func (s *cudaSideQueue) Record(i int) error {
	e, err := numbered(&s.recorded, i, kernels.NewUntimedEvent)
	if err != nil {
		return err
	}
	return e.Record(s.stream)
}

func (s *cudaSideQueue) Join(i int) error { return s.waitedFor(i, s.queue) }

func (s *cudaSideQueue) After(other SideQueue, i int) error {
	return other.(*cudaSideQueue).waitedFor(i, s.stream)
}

// waitedFor makes a stream wait for the work at Record(i).
func (s *cudaSideQueue) waitedFor(i int, stream kernels.Stream) error {
	if i >= len(s.recorded) {
		return fmt.Errorf("device: a side queue has not recorded mark %d", i)
	}
	return stream.WaitEvent(s.recorded[i])
}

func (s *cudaSideQueue) AddUpdates(all []kernels.Updates) error { return s.stream.AddUpdates(all) }

func (s *cudaSideQueue) Do(f func(uintptr) error) error { return f(s.stream.Handle()) }
func (s *cudaSideQueue) StampSide(i int) error          { return s.stamp(i, s.stream) }
func (s *cudaSideQueue) StampQueue(i int) error         { return s.stamp(i, s.queue) }

func (s *cudaSideQueue) stamp(i int, on kernels.Stream) error {
	e, err := numbered(&s.stamps, i, kernels.NewEvent)
	if err != nil {
		return err
	}
	return e.RecordExternal(on)
}

func (s *cudaSideQueue) Elapsed(from, to int) (time.Duration, error) {
	if !areMarks(from, to, len(s.stamps)) {
		return 0, noMarks(from, to)
	}
	return s.stamps[to].Since(s.stamps[from])
}

// Close waits for the side queue's work, then frees its stream and its events.
func (s *cudaSideQueue) Close() error {
	errs := []error{s.stream.Close(), s.forked.Close()}
	for _, e := range append(s.recorded, s.stamps...) {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}
