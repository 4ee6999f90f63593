package observe_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
)

// TestPeaks keeps the counts of few events as they are.
func TestPeaks(t *testing.T) {
	p := observe.NewPeaks(2000)
	if all := p.All(); len(all) != 0 {
		t.Errorf("no event is %v", all)
	}
	want := []observe.Peak{{0, 1, 9}, {time.Millisecond, 5, 9}, {2 * time.Millisecond, 2, 8}}
	for _, e := range want {
		p.Add(allocator.TraceEvent{Time: e.Time, Live: e.Live, Reserved: e.Reserved})
	}
	if all := p.All(); !slices.Equal(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
}

// TestPeaksOfManyEvents thins out many events: the peak of every hundredth of the time stays.
func TestPeaksOfManyEvents(t *testing.T) {
	const events, parts, intervals = 100_000, 100, 2000
	random := rand.New(rand.NewPCG(1, 1))
	p := observe.NewPeaks(intervals)
	var live, reserved [parts]int64
	for i := range events {
		e := allocator.TraceEvent{Time: time.Duration(i) * time.Microsecond, Live: random.Int64N(1 << 40), Reserved: random.Int64N(1 << 41)}
		part := i * parts / events
		live[part], reserved[part] = max(live[part], e.Live), max(reserved[part], e.Reserved)
		p.Add(e)
	}
	all := p.All()
	if len(all) > intervals || len(all) < intervals/2-1 {
		t.Errorf("%d peaks", len(all))
	}
	if !slices.IsSortedFunc(all, func(a, b observe.Peak) int { return int(a.Time - b.Time) }) {
		t.Error("the peaks are not in order of time")
	}
	for _, o := range all {
		part := int(o.Time.Milliseconds())
		if o.Live == live[part] {
			live[part] = 0
		}
		for i := max(part-1, 0); i <= min(part+1, parts-1); i++ { // parts may share an interval
			if o.Reserved == reserved[i] {
				reserved[i] = 0
			}
		}
	}
	for part := range parts {
		if live[part] != 0 || reserved[part] != 0 {
			t.Errorf("part %d lacks %d bytes live, or %d reserved", part, live[part], reserved[part])
		}
	}
}
