package bench

import (
	"math"
	"testing"

	"mlpool/allocator"
	"mlpool/internal/must"
)

var _ allocator.PageDriver = (*null)(nil)

// TestRandomFollowsTheRules counts the requests of random_allocations.
func TestRandomFollowsTheRules(t *testing.T) {
	a := &counting{Allocator: None{}}
	b := &Bench{Device: NewNull(), A: a, Streams: make([]allocator.Stream, 1), ctx: t.Context(), Limits: Limits{true, math.MaxInt64}}
	must.OK(t, b.random("x", 1000, 64*MiB))
	if len(b.Rows) != 2 || b.Rows[0].Case != "x cold" || b.Rows[1].Case != "x warm" {
		t.Fatalf("rows %+v", b.Rows)
	}
	if a.allocs != a.frees || a.live != 0 {
		t.Errorf("%d allocations, %d frees, %d bytes left", a.allocs, a.frees, a.live)
	}
	if a.peak > 16000*MiB || a.peak < 15000*MiB || a.peak != b.Rows[0].PeakLive {
		t.Errorf("peak live %d, and %d in the row", a.peak, b.Rows[0].PeakLive)
	}
	if a.largest > 64*MiB || a.largest < 60*MiB {
		t.Errorf("largest request %d", a.largest)
	}
	if a.allocs > 3*1000 || a.allocs+a.frees != 3*int(b.Rows[0].Ops) {
		t.Errorf("%d allocations, %d operations", a.allocs, b.Rows[0].Ops)
	}
}

// counting counts the calls of an allocator.
type counting struct {
	allocator.Allocator
	allocs, frees       int
	live, peak, largest int64
}

func (c *counting) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	c.allocs++
	c.live += bytes
	c.peak = max(c.peak, c.live)
	c.largest = max(c.largest, bytes)
	return c.Allocator.Alloc(bytes, s, tag)
}

func (c *counting) Free(b allocator.Block, s allocator.Stream) error {
	c.frees++
	c.live -= b.Size
	return c.Allocator.Free(b, s)
}

// A busy device counts its kernels.
type busy struct {
	*null
	worked int
}

func (d *busy) Prepare() error                       { return nil }
func (d *busy) Work(allocator.Stream, uintptr) error { d.worked++; return nil }

func TestPrewarmedStreamsWork(t *testing.T) {
	d := &busy{null: NewNull()}
	b := &Bench{Device: d, A: None{}, Streams: make([]allocator.Stream, 2), ctx: t.Context(), Limits: Limits{true, math.MaxInt64}}
	if err := b.multiStream("x", true); err != nil || d.worked != 4 {
		t.Errorf("%d kernels were launched, want 4; error %v", d.worked, err)
	}
}

func TestMedian(t *testing.T) {
	m := Median([]Row{
		{Case: "c", Runs: 1, Mean: 9, P50: math.NaN(), PeakLive: 1, PeakReserved: 5},
		{Case: "c", Runs: 1, Mean: 1, P50: math.NaN(), PeakLive: 2, PeakReserved: 4, Cut: true},
		{Case: "c", Runs: 1, Mean: 2, P50: math.NaN(), PeakLive: 3, PeakReserved: 3},
	})
	if m.Case != "c" || m.Runs != 3 || m.Mean != 2 || m.Least != 1 || m.Most != 9 || !math.IsNaN(m.P50) || m.PeakLive != 3 || m.PeakReserved != 5 || !m.Cut {
		t.Errorf("%+v", m)
	}
	if m := Median([]Row{{Mean: 1}, {Mean: 2}}); m.Mean != 1.5 {
		t.Errorf("median of 1 and 2 is %v", m.Mean)
	}
}

// TestSegmentsOfPools opens the pools on a device that maps pages.
func TestSegmentsOfPools(t *testing.T) {
	pools := 0
	for _, a := range Contenders() {
		opened, err := a.Open(NewNull())
		if err != nil {
			t.Fatalf("%s: %v", a.Name, err)
		}
		want := allocator.SegmentsVirtual
		if a.Name == MallocSegments || a.Name == "buddy" {
			want = allocator.SegmentsMalloc
		}
		if p, isPool := allocator.As[*allocator.Pool](opened); isPool {
			pools++
			if got := p.Segments(); got != want {
				t.Errorf("%s has %s segments, want %s", a.Name, got, want)
			}
		}
		if err := opened.Close(); err != nil {
			t.Errorf("%s: %v", a.Name, err)
		}
	}
	if least := len(allocator.Strategies()) + 1; pools < least {
		t.Errorf("%d pools, want %d at least", pools, least)
	}
}
