package device

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/internal/stats"
)

// A Profile says where the time of a step goes.
type Profile struct {
	Steps int // that were timed, of which everything here is a median
	// Step is the time from one step to the next when they are queued one
	// after the other, with nothing between their operations.
	Step time.Duration
	Ops  []OpTime // in the order of their first use
}

// OpTime is what the operations of one name and shape take in a step, alone on
// the device.
type OpTime struct {
	Name, Shape  string
	Count        int
	Time         time.Duration // of all of them
	FLOPs, Bytes float64       // of all of them; FLOPs is 0 where bytes are what counts
}

// Gaps is the time of a step that is in no operation: the device waits for the
// host, or for a kernel to start. It is below zero where kernels overlap, or where
// gaps are smaller than what times vary by.
func (p Profile) Gaps() time.Duration {
	gaps := p.Step
	for _, o := range p.Ops {
		gaps -= o.Time
	}
	return gaps
}

// A profile has at most maxRounds rounds. On a GPU one has steadySteps, in which what
// the first of them waits for the host is next to nothing.
const (
	maxRounds   = 1000
	steadySteps = 100
)

// Profile times step, which must do the same whenever it is called, in rounds: n times
// operation by operation, and n times as a whole. Both are in each round, so that a clock
// that changes changes both. It uses the queue's marks.
//
// Operations are timed with a mark before and after each, from which what two
// marks take by themselves is subtracted: for a kernel of a few microseconds
// that is good to about half of one. They are queued while the device is busy
// with something else, so that it never waits for the host.
func (d *Device) Profile(n int, step func() error) (p Profile, err error) {
	p.Steps = n
	rounds := min(n, maxRounds)
	if _, late := d.bare().(behind); late {
		rounds = min(max(n/steadySteps, 1), maxRounds)
	}
	var ops []Launch
	var alone [][]time.Duration // of each operation, in each round
	var whole []time.Duration
	for r := range rounds {
		steps := n*(r+1)/rounds - n*r/rounds
		now, times, err := d.alone(steps, step)
		if err != nil {
			return p, err
		}
		if r == 0 {
			ops, alone = now, make([][]time.Duration, len(now))
		}
		if len(now) != len(ops) {
			return p, differs(len(ops), len(now))
		}
		for i, t := range times {
			alone[i] = append(alone[i], t/time.Duration(steps))
		}
		all, err := d.together(steps, step)
		if err != nil {
			return p, err
		}
		whole = append(whole, all/time.Duration(steps))
	}
	for i, w := range ops {
		p.add(w, stats.Median(alone[i]))
	}
	p.Step = stats.Median(whole)
	return p, nil
}

// together returns the time of n steps, queued one after the other.
func (d *Device) together(n int, step func() error) (time.Duration, error) {
	annotated, queue := d.queue, d.bare()
	defer func() { d.queue = annotated }()
	d.queue = queue
	if err := queue.Mark(0); err != nil {
		return 0, err
	}
	for range n {
		if err := step(); err != nil {
			return 0, err
		}
	}
	if err := queue.Mark(1); err != nil {
		return 0, err
	}
	took, err := between(queue, 1)
	if err != nil {
		return 0, err
	}
	return took[0], nil
}

// bare returns the queue without what records its launches.
func (d *Device) bare() Queue {
	if r, ok := d.queue.(*recorder); ok {
		return r.Queue
	}
	return d.queue
}

// alone returns the operations of step, and the time of each, summed up over n steps,
// where the device never waits for the host. It does one step more, which makes marks.
func (d *Device) alone(n int, step func() error) (ops []Launch, times []time.Duration, err error) {
	annotated, queue := d.queue, d.bare()
	keepBusy, done, err := d.busy(queue)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		d.queue = annotated
		err = errors.Join(err, done())
	}()
	d.queue = Observe(queue, func(w Launch, f func() error) error {
		before := 2 * len(ops)
		ops = append(ops, w)
		return errors.Join(queue.Mark(before), f(), queue.Mark(before+1))
	})
	if err := step(); err != nil {
		return nil, nil, err
	}
	for range n {
		if err := keepBusy(len(ops)); err != nil {
			return nil, nil, err
		}
		ops = ops[:0]
		if err := step(); err != nil {
			return nil, nil, err
		}
		took, err := between(queue, len(ops))
		if err != nil {
			return nil, nil, err
		}
		if times == nil {
			times = make([]time.Duration, len(ops))
		}
		if len(times) != len(ops) {
			return nil, nil, differs(len(times), len(ops))
		}
		for i := range took {
			times[i] += took[i]
		}
	}
	return ops, times, nil
}

// differs is the error of a step that is not the one before again.
func differs(before, now int) error {
	return fmt.Errorf("device: a step of %d operations, and then one of %d", before, now)
}

// between waits for n operations, and returns the times between their marks
// less that of two marks by themselves.
func between(q Queue, n int) ([]time.Duration, error) {
	if err := errors.Join(q.Mark(2*n), q.Mark(2*n+1), q.Synchronize()); err != nil {
		return nil, err
	}
	took := make([]time.Duration, n+1)
	for i := range took {
		var err error
		if took[i], err = q.Elapsed(2*i, 2*i+1); err != nil {
			return nil, err
		}
	}
	for i := range n {
		took[i] = max(took[i]-took[n], 0)
	}
	return took[:n], nil
}

// add puts operations of the same name and shape together.
func (p *Profile) add(w Launch, t time.Duration) {
	at := slices.IndexFunc(p.Ops, func(o OpTime) bool { return o.Name == w.Name && o.Shape == w.Shape })
	if at < 0 {
		at = len(p.Ops)
		p.Ops = append(p.Ops, OpTime{Name: w.Name, Shape: w.Shape})
	}
	o := &p.Ops[at]
	o.Count++
	o.Time += t
	o.FLOPs += w.FLOPs
	o.Bytes += w.Bytes
}

// busyBytes is memory that a GPU takes some 30 µs to fill, in which the host queues
// busyOps operations and their marks. Where there is less, it is filled more often, but
// what is less than leastBusyBytes takes the GPU no longer than the host takes to say so.
const (
	busyBytes      = 128 << 20
	leastBusyBytes = 16 << 20
	busyOps        = 4
)

// behind is a queue whose operations are done after the calls that queue them.
type behind interface{ behind() }

func (*CUDAQueue) behind() {}

// busy takes memory, and returns what gives a GPU enough to do for the host to
// queue so many operations, and what gives the memory back.
func (d *Device) busy(queue Queue) (with func(ops int) error, done func() error, err error) {
	if _, ok := queue.(behind); !ok {
		return func(int) error { return nil }, func() error { return nil }, nil
	}
	size := busyBytes
	b, err := d.alloc.Alloc(int64(size), d.stream, "profile")
	for oom := new(allocator.OutOfMemoryError); errors.As(err, &oom) && size > leastBusyBytes; {
		size /= 2
		b, err = d.alloc.Alloc(int64(size), d.stream, "profile")
	}
	with = func(ops int) error {
		for range (ops/busyOps + 4) * (busyBytes / size) {
			if err := queue.Fill(b.Addr, 0, size); err != nil {
				return err
			}
		}
		return nil
	}
	return with, func() error { return d.alloc.Free(b, d.stream) }, err
}
