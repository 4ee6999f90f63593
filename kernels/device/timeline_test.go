package device

import (
	"errors"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/kernels"
)

// TestTimeline checks a step on the host, where operations run at once.
func TestTimeline(t *testing.T) {
	b := newBench(t, new(HostQueue), true)
	steps := 0
	from := time.Now()
	l, err := b.Timeline(func() error {
		steps++
		return b.step(0, 10, 0)
	})
	if err != nil || steps != 1 {
		t.Fatalf("error %v, %d steps, want one", err, steps)
	}
	apart := l.Begin.Sub(from) / 2 // at most, of the clocks of host and device
	if apart < 0 || l.Begin.Add(l.Length-apart).After(time.Now()) {
		t.Errorf("a step of %v from %v on", l.Length, l.Begin.Sub(from))
	}
	names := []string{"gather+gemm+relu", "classifier+gradients", "wgrad+sgd"}
	if len(l.Ops) != len(names) {
		t.Fatalf("operations %+v, want %q", l.Ops, names)
	}
	ended := -apart
	for i, o := range l.Ops {
		if o.Name != names[i] || o.Shape == "" || o.Length < 0 || o.Start < ended || o.Start+o.Length > l.Length {
			t.Errorf("operation %d: %+v, want %s, not before %v", i, o, names[i], ended)
		}
		ended = o.Start + o.Length
	}
	if _, ok := b.queue.(*HostQueue); !ok {
		t.Errorf("the device is left with a queue of type %T", b.queue)
	}
}

// lateQueue is a tickQueue whose device waits 5 µs for the host before each operation, unless it is
// busy filling memory.
type lateQueue struct {
	tickQueue
	busy   bool
	filled int // bytes
}

func (*lateQueue) behind() {}

func (q *lateQueue) Fill(_ uintptr, _ byte, bytes int) error {
	q.busy, q.filled = true, q.filled+bytes
	return nil
}

func (q *lateQueue) Synchronize() error {
	q.busy = false
	return nil
}

func (q *lateQueue) GroupedGEMM([]kernels.GEMM) error { return q.late() }

func (q *lateQueue) Classifier(kernels.Classifier) error { return q.late() }

func (q *lateQueue) late() error {
	if !q.busy {
		q.now += 5 * time.Microsecond
	}
	return q.tick()
}

// TestTimelineOfADeviceThatWaits shows the waits as gaps.
func TestTimelineOfADeviceThatWaits(t *testing.T) {
	b := newBench(t, new(lateQueue), true)
	l, err := b.Timeline(func() error { return b.step(0, 10, 0) })
	if err != nil || len(l.Ops) != 3 {
		t.Fatalf("error %v, %+v", err, l)
	}
	us := time.Microsecond
	// The first has no length; a mark of 1 µs is behind each.
	for i, want := range []struct{ gap, length time.Duration }{{us, 0}, {us + 5*us, 10 * us}, {us + 5*us, 10 * us}} {
		before := l.Ops[0].Start - us
		if i > 0 {
			before = l.Ops[i-1].Start + l.Ops[i-1].Length
		}
		if o := l.Ops[i]; o.Length != want.length || o.Start-before != want.gap {
			t.Errorf("operation %d: %+v, %v after the one before, want %+v", i, o, o.Start-before, want)
		}
	}
	if end := l.Ops[2].Start + l.Ops[2].Length; l.Length < end {
		t.Errorf("a step of %v, whose last operation ends after %v", l.Length, end)
	}
}

// TestTimelineOfLittleMemory has too little memory to keep the device busy with one fill, so it is
// filled more often.
func TestTimelineOfLittleMemory(t *testing.T) {
	var all []int
	for _, limit := range []int64{1 << 30, 40 << 20, 8 << 20} {
		q := new(lateQueue)
		b := newBench(t, q, true)
		own := allocator.NewLimit(b.alloc, limit)
		err := b.Through(own, func() error {
			_, err := b.Timeline(func() error { return b.step(0, 10, 0) })
			return err
		})
		var oom *allocator.OutOfMemoryError
		if little := limit < leastBusyBytes; errors.As(err, &oom) != little || err != nil && !little {
			t.Errorf("within %d bytes: error %v", limit, err)
		}
		all = append(all, q.filled)
	}
	if all[0] == 0 || all[1] != all[0] || all[2] != 0 {
		t.Errorf("filled %d bytes, the same in little memory, and none in less", all)
	}
}

// TestTimelineFaults makes each step fail or differ, and each mark fail.
func TestTimelineFaults(t *testing.T) {
	for bad := range timelineSteps + 2 {
		b := newBench(t, new(lateQueue), true)
		b.fails(t, bad, func(step func() error) error { _, err := b.Timeline(step); return err })
	}
	b := newBench(t, new(lateQueue), true)
	steps := 0
	_, err := b.Timeline(func() error {
		if steps++; steps > timelineSteps+1 {
			return nil
		}
		return b.step(0, 10, 0)
	})
	if err == nil || err.Error() != "device: a step of 3 operations, and then one of 0" {
		t.Errorf("another step at last: error %v", err)
	}
	marks := 0
	for ; ; marks++ {
		b := newBench(t, &lateQueue{tickQueue: tickQueue{fails: marks + 1}}, true)
		if _, err := b.Timeline(func() error { return b.step(0, 10, 0) }); err == nil {
			break
		}
	}
	if marks < 10 {
		t.Errorf("%d marks were enough", marks)
	}
	b = newBench(t, new(HostQueue), true)
	b.fails(t, 0, func(step func() error) error { _, err := b.Timeline(step); return err })
}
