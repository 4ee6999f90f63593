package recording

import (
	"math/rand/v2"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/internal/report"
)

func TestPeaks(t *testing.T) {
	m := newPeaks()
	if list := m.list(); len(list) != 0 {
		t.Errorf("no event is %v", list)
	}
	few := []allocator.TraceEvent{{Time: 0, Live: 1, Reserved: 9}, {Time: time.Millisecond, Live: 5, Reserved: 9}, {Time: 2 * time.Millisecond, Live: 2, Reserved: 8}}
	for _, e := range few {
		m.add(e)
	}
	want := []report.Moment{{MS: 0, Live: 1, Reserved: 9}, {MS: 1, Live: 5, Reserved: 9}, {MS: 2, Live: 2, Reserved: 8}}
	list := m.list()
	if len(list) != len(want) {
		t.Fatalf("%v, want %v", list, want)
	}
	for i := range want {
		if list[i] != want[i] {
			t.Errorf("moment %d is %v, want %v", i, list[i], want[i])
		}
	}
}

// TestPeaksKeepTheMost thins out many events: the most of every hundredth of the time
// is still there.
func TestPeaksKeepTheMost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	m := newPeaks()
	const events, parts = 100_000, 100
	var live, reserved [parts]int64
	for i := range events {
		e := allocator.TraceEvent{Time: time.Duration(i) * time.Microsecond, Live: random.Int64N(1 << 40), Reserved: random.Int64N(1 << 41)}
		part := i * parts / events
		live[part], reserved[part] = max(live[part], e.Live), max(reserved[part], e.Reserved)
		m.add(e)
	}
	list := m.list()
	if len(list) > mostPeaks || len(list) < mostPeaks/2-1 {
		t.Errorf("%d moments", len(list))
	}
	before := -1.0
	for _, o := range list {
		if o.MS <= before {
			t.Fatalf("a moment at %v ms after one at %v", o.MS, before)
		}
		before = o.MS
		part := int(o.MS)
		if o.Live == live[part] {
			live[part] = 0
		}
		for _, p := range []int{part - 1, part, part + 1} { // the most reserved may be in a piece that two share
			if p >= 0 && p < parts && o.Reserved == reserved[p] {
				reserved[p] = 0
			}
		}
	}
	for part := range parts {
		if live[part] != 0 || reserved[part] != 0 {
			t.Errorf("part %d lacks %d bytes live, or %d reserved", part, live[part], reserved[part])
		}
	}
}
