package ref_test

import (
	"math"
	"testing"

	"mlpool/kernels/ref"
)

// TestBF16 compares every interval between two neighbours: below and above the middle, and at it.
func TestBF16(t *testing.T) {
	for low := range ref.BF16(0x7f80) { // positive, up to the largest
		x, y := low.Float32(), (low + 1).Float32()
		if ref.ToBF16(x) != low {
			t.Fatalf("%v is rounded to %#x, want %#x", x, ref.ToBF16(x), low)
		}
		middle := math.Float32frombits(uint32(low)<<16 | 0x8000)
		even := low + low&1
		for v, want := range map[float32]ref.BF16{middle: even, math.Nextafter32(middle, x): low, math.Nextafter32(middle, y): low + 1} {
			if got, negative := ref.ToBF16(v), ref.ToBF16(-v); got != want || negative != want|0x8000 {
				t.Fatalf("%v is rounded to %#x, and its negative to %#x; want %#x", v, got, negative, want)
			}
		}
	}
	for _, bits := range []uint32{0x7f800001, 0x7fffffff, 0xff800001, 0xffffffff} {
		if v := ref.ToBF16(math.Float32frombits(bits)).Float32(); v == v {
			t.Errorf("NaN %#x is rounded to %v", bits, v)
		}
	}
	x, back := []float32{1, -3, 0.1}, make([]float32, 3)
	y := make([]ref.BF16, 3)
	ref.Round(y, x, 3)
	ref.Widen(back, y, 3)
	if back[0] != 1 || back[1] != -3 || back[2] != 0.10009765625 {
		t.Errorf("%v became %v", x, back)
	}
}
