package device

import (
	"errors"
	"time"

	"mlpool/allocator"
)

// A Timeline has the operations of a device in one step.
type Timeline struct {
	Begin  time.Time     // when the host began; the device was idle
	Length time.Duration // until both were done
	Ops    []OpSpan      // in the order of their queueing
}

// OpSpan is one operation. Start is the time since the step began.
type OpSpan struct {
	Name, Shape   string
	Start, Length time.Duration
}

// timelineSteps is the number of steps that are timed for the lengths of operations.
const timelineSteps = 3

// Timeline does step, which must always do the same, and returns when the device did its
// operations. It uses the queue's marks.
//
// On a GPU a mark after each operation tells when that ended. It is not known when it began: the device
// passes a mark ahead of it when the host makes it, before the operation is queued. So an operation gets
// its length in [Device.Profile], for which step is first done a few times; it is shorter if the one before
// it ended later. The rest are gaps, in which the device waits. Marks cost the host time, and no operation
// begins before the last one is done. The clocks of host and device agree within some microseconds.
func (d *Device) Timeline(step func() error) (t Timeline, err error) {
	annotated, queue := d.queue, d.bare()
	defer func() { d.queue = annotated }()
	_, late := queue.(behind)
	var alone []time.Duration
	if late {
		if _, alone, err = d.alone(timelineSteps, step); err != nil {
			return t, err
		}
	}
	var ops []Launch
	d.queue = Observe(queue, func(w Launch, f func() error) error {
		ops = append(ops, w)
		var before error
		if !late {
			before = queue.Mark(2*len(ops) - 1)
		}
		return errors.Join(before, f(), queue.Mark(2*len(ops)))
	})
	if err := queue.Synchronize(); err != nil {
		return t, err
	}
	asked := time.Now()
	if err := errors.Join(queue.Mark(0), queue.Synchronize()); err != nil {
		return t, err
	}
	t.Begin = time.Now()
	zero := -t.Begin.Sub(asked) / 2 // roughly when mark 0 was passed
	if err := step(); err != nil {
		return t, err
	}
	t.Length = time.Since(t.Begin)
	if err := queue.Synchronize(); err != nil {
		return t, err
	}
	if late && len(ops) != len(alone) {
		return t, differs(len(alone), len(ops))
	}
	ended := zero
	for i, w := range ops {
		end, err := queue.Elapsed(0, 2*i+2)
		if err != nil {
			return t, err
		}
		end += zero
		start := ended
		if late {
			start = max(start, end-alone[i]/timelineSteps)
		} else if start, err = queue.Elapsed(0, 2*i+1); err != nil {
			return t, err
		} else {
			start += zero
		}
		t.Ops = append(t.Ops, OpSpan{w.Name, w.Shape, start, end - start})
		ended = end
	}
	t.Length = max(t.Length, ended)
	return t, nil
}

// Through does f with a in place of the device's allocator, which a wraps. Each must be able to free
// blocks of the other.
func (d *Device) Through(a allocator.Allocator, f func() error) error {
	own := d.alloc
	d.alloc = a
	defer func() { d.alloc = own }()
	return f()
}
