package steps

import (
	"fmt"
	"testing"
)

const unit = 256

// record makes the recording of a step from calls: a number asks for as many units, and a
// negative one frees the block of that call, counted from -1.
func record(calls ...int) *Recording {
	r := NewRecording(func(bytes int64) int64 { return max(bytes, unit) })
	for _, c := range calls {
		if c < 0 {
			r.Free(-c - 1)
		} else {
			r.Alloc(int64(c) * unit)
		}
	}
	return &r
}

func TestSolve(t *testing.T) {
	for _, c := range []struct {
		calls  []int
		arena  int64 // units
		places int   // blocks that have one
	}{
		{[]int{4, -1}, 4, 1},
		{[]int{4, -1, 6, -2}, 6, 2},
		{[]int{4, 6, -1, -2}, 10, 2},
		{[]int{4, 6, -2}, 6, 1}, // the first outlives the step
		{[]int{4}, 0, 0},
	} {
		s := record(c.calls...).Solve()
		if s.Arena != c.arena*unit || s.LowerBound > s.Arena || len(s.Layout) != c.places {
			t.Errorf("%v: an arena of %d for %d blocks, want %d for %d", c.calls, s.Arena, len(s.Layout), c.arena*unit, c.places)
		}
		for i, a := range s.Layout {
			for _, b := range s.Layout[:i] {
				if a.Start < b.End && b.Start < a.End && a.Offset < b.Offset+b.Size && b.Offset < a.Offset+a.Size {
					t.Errorf("%v: %+v and %+v overlap", c.calls, a, b)
				}
			}
		}
		if again := record(c.calls...).Solve(); again.Hash != s.Hash || fmt.Sprint(again.Layout) != fmt.Sprint(s.Layout) {
			t.Errorf("%v: two schedules differ", c.calls)
		}
	}
	if record(4, -1).Hash() == record(4, 4).Hash() {
		t.Error("two recordings have one hash")
	}
}

// TestWasteful has another stream hold memory while the step holds none of its own.
func TestWasteful(t *testing.T) {
	r := record(100, -1)
	r.Total(100*unit, 100*unit) // the other stream's, after the step's are freed
	if !r.Solve().Wasteful {
		t.Error("an arena is kept that another stream needs")
	}
	r = record(100)
	r.Total(200*unit, 100*unit)
	r.Free(0)
	if r.Solve().Wasteful {
		t.Error("an arena is not kept where both streams need their memory at once")
	}
}

// TestPredictor has steps come in turn, and then at random.
func TestPredictor(t *testing.T) {
	p := NewPredictor()
	if p.Predict(4*unit) != nil {
		t.Error("a schedule is predicted where there is none")
	}
	a, b := record(4, -1).Solve(), record(4, 4, -1, -2).Solve()
	p.Add(a)
	p.Add(b)
	for i := range 6 {
		actual := []*Schedule{a, b}[i%2]
		predicted := p.Predict(4 * unit)
		if i > 1 && predicted != actual {
			t.Errorf("step %d is not predicted", i)
		}
		p.Learn(predicted, actual)
		p.Follows(actual)
	}
	for range 5 {
		p.Learn(a, b)
	}
	if p.IsConfident() {
		t.Error("confident after five wrong predictions")
	}
	p.Learn(a, a)
	p.Learn(a, a)
	if !p.IsConfident() {
		t.Error("not confident after two right predictions")
	}
	p.Drop(b)
	if p.WithHash(b.Hash) != nil || p.Predict(4*unit) != a {
		t.Error("a dropped schedule is predicted")
	}
	if p.SeenBefore(7) || !p.SeenBefore(7) {
		t.Error("the second step of a hash counts as the first")
	}
}

func FuzzRecording(f *testing.F) {
	f.Add([]byte{4, 6, 0x80, 9, 0x81, 0x83})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := NewRecording(func(bytes int64) int64 { return max(bytes, unit) })
		live := map[int]bool{}
		for _, x := range data[:min(len(data), 24)] {
			if n := int(x & 0x7f); x < 0x80 {
				live[r.Alloc(int64(n)*unit)] = true
			} else if live[n] {
				delete(live, n)
				r.Free(n)
			}
		}
		s := r.Solve()
		for i, a := range s.Layout {
			if a.Offset < 0 || a.Offset+a.Size > s.Arena {
				t.Fatalf("%+v is outside an arena of %d bytes", a, s.Arena)
			}
			for _, b := range s.Layout[:i] {
				if a.Start < b.End && b.Start < a.End && a.Offset < b.Offset+b.Size && b.Offset < a.Offset+a.Size {
					t.Fatalf("%+v and %+v overlap", a, b)
				}
			}
		}
	})
}
