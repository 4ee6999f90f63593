package plotstyle

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func text(v float64) string { return fmt.Sprint(v, "x") }

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high, closest float64
		want               string
	}{
		{0, 9380, 1, "0 2000 4000 6000 8000"},
		{0, 3, 1, "0 1 2 3"},
		{0, 689, 138, "0 200 400 600"},
		{0, 0.31, 0, "0.00 0.05 0.10 0.15 0.20 0.25 0.30"},
		{94.1, 99.3, 0, "95 96 97 98 99"},
		{-0.4, 1.2, 0.5, "0.0 0.5 1.0"},
	} {
		if got := labels(Ticks(c.low, c.high, c.closest, nil)); got != c.want {
			t.Errorf("%g to %g: %q, want %q", c.low, c.high, got, c.want)
		}
	}
	for _, c := range []struct {
		low, high float64
		n         int
		text      func(float64) string
		want      string
	}{
		{1, 3, 5, nil, "1.0 1.5 2.0 2.5 3.0"},
		{3, 120, 6, nil, "5 10 20 50 100"},
		{0.5, 2e4, 9, nil, "1 10 100 1e+03 1e+04"},
		{9, 2e3, 9, text, "10x 20x 50x 100x 200x 500x 1000x 2000x"},
		{1, 1e7, 5, text, "1x 100x 10000x 1e+06x"},
		{0.1, 20, 5, nil, "0.1 1 10"},
	} {
		if got := labels(LogTicks(c.low, c.high, c.n, c.text)); got != c.want {
			t.Errorf("%g to %g: %q, want %q", c.low, c.high, got, c.want)
		}
	}
}

// TestTicksEnd wants few ticks of ranges that damaged files may have.
func TestTicksEnd(t *testing.T) {
	inf := math.Inf(1)
	for _, r := range [][2]float64{
		{0, 0}, {1e18, 1e18}, {1, 0}, {0, 1e-323}, {5e-324, 2e-323}, {1e300, math.Nextafter(1e300, inf)}, {-math.MaxFloat64, math.MaxFloat64},
		{0, inf}, {-inf, inf}, {math.NaN(), 1}, {1, math.NaN()}, {-1, 10}, {0, 10}, {1e-323, 1e308},
	} {
		for _, closest := range []float64{0, 5e-324, 1, 1e300, inf, math.NaN()} {
			for _, all := range [][]Tick{Ticks(r[0], r[1], closest, nil), LogTicks(r[0], r[1], 8, nil)} {
				if len(all) > 10_000 {
					t.Errorf("%v, none closer than %v: %d ticks", r, closest, len(all))
				}
			}
		}
	}
}

func labels(ticks []Tick) string {
	var all []string
	for _, tick := range ticks {
		if tick.Label != "" {
			all = append(all, tick.Label)
		}
	}
	return strings.Join(all, " ")
}

// TestAllocators wants a different style for each allocator, and the same style for its names
// in train and allocbench.
func TestAllocators(t *testing.T) {
	seen := map[int]string{}
	for _, group := range AllocatorGroups {
		if len(group.Allocators) > len(Palette) {
			t.Errorf("%s: more than %d", group.Title, len(Palette))
		}
		for _, name := range group.Allocators {
			i := Allocator(name)
			if other := seen[i]; other != "" || i < 0 {
				t.Errorf("%s has style %d, as has %q", name, i, other)
			}
			seen[i] = name
		}
	}
	for name, as := range map[string]string{"custom": "tlsf", "custom:bestfit": "bestfit", "custom:slack=1/64": "slack 1/64"} {
		if Allocator(name) != Allocator(as) {
			t.Errorf("%s has style %d", name, Allocator(name))
		}
	}
	if i := Allocator("hoard"); i != -1 {
		t.Errorf("an unknown one has style %d", i)
	}
}

// TestTextWidth compares with the widths of Helvetica, in thousandths of an em, which Liberation Sans shares.
func TestTextWidth(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "0": 556, "iM": 222 + 833, "µs": 576 + 500, "−": 584} {
		if got := TextWidth(text, 12); math.Abs(got-want*12/1000) > 0.25 {
			t.Errorf("%q: %g pixels, want %g", text, got, want*12/1000)
		}
	}
}
