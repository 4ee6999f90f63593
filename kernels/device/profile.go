package device

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/internal/stats"
)

// A Profile breaks down the time of a step.
type Profile struct {
	Steps int // number of timed steps, of which all other fields are medians
	// Step is the time from one step to the next when they are queued one after the other, with no
	// marks between their operations.
	Step time.Duration
	Ops  []OpTime // in the order of their first use
}

// OpTime is the time of the operations of one name and shape in a step, alone on the device.
type OpTime struct {
	Name, Shape  string
	Count        int
	Time         time.Duration // of all of them
	FLOPs, Bytes float64       // of all of them; FLOPs is 0 for operations that bytes limit
}

// Gaps returns the time of a step that is in no operation: the device waits for the host, or for
// a kernel to start. It is negative if kernels overlap, or if gaps are smaller than the noise.
func (p Profile) Gaps() time.Duration {
	gaps := p.Step
	for _, o := range p.Ops {
		gaps -= o.Time
	}
	return gaps
}

// A profile has at most maxRounds rounds. On a GPU a round has steadySteps, so that the wait of the
// first one for the host hardly counts.
const (
	maxRounds   = 1000
	steadySteps = 100
)

// Profile times step, which must always do the same, in rounds: n times operation by operation,
// and n times as a whole. Each round has both, so that a change of the clock affects both. It
// uses the queue's marks.
//
// Operations are timed with a mark before and after each, and the time of two marks alone is
// subtracted. They are queued while the device is busy with other work, so that it never waits
// for the host.
func (d *Device) Profile(n int, step func() error) (p Profile, err error) {
	p.Steps = n
	rounds := min(n, maxRounds)
	if _, late := d.bare().(behind); late {
		rounds = min(max(n/steadySteps, 1), maxRounds)
	}
	var ops []Launch
	var alone [][]time.Duration // by round, of each operation
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

// bare returns the queue without Observe.
func (d *Device) bare() Queue {
	if r, ok := d.queue.(*recorder); ok {
		return r.Queue
	}
	return d.queue
}

// alone returns the operations of step and the time of each, summed up over n steps, while the
// device never waits for the host. It does one more step, which creates the marks.
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

// differs is the error of a step that is not the same as the one before.
func differs(before, now int) error {
	return fmt.Errorf("device: a step of %d operations, and then one of %d", before, now)
}

// between waits for n operations, and returns the times between their marks, less that of two
// marks alone.
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

// While a GPU fills busyBytes of memory, the host queues busyOps operations with their marks. If
// there is less memory, it is filled more often; below leastBusyBytes the GPU would be done
// before the host has queued the next fill.
const (
	busyBytes      = 128 << 20
	leastBusyBytes = 16 << 20
	busyOps        = 4
)

// behind is a queue whose operations run after the calls that queue them.
type behind interface{ behind() }

func (*CUDAQueue) behind() {}

// busy allocates memory, and returns a function that keeps a GPU busy while the host queues a
// number of operations, and one that frees the memory.
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
