package ref

import "math"

// A BF16 is the upper half of the bits of a float32: 8 bits of mantissa.
type BF16 uint16

// Float32 returns b, which a float32 has exactly.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// ToBF16 returns the nearest to x, of two equally near the even one. Every NaN becomes 0x7fff, as on a
// GPU.
func ToBF16(x float32) BF16 {
	if x != x {
		return 0x7fff
	}
	bits := math.Float32bits(x)
	return BF16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Round: y[n] = x[n], rounded.
func Round(y []BF16, x []float32, n int) {
	for i, v := range x[:n] {
		y[i] = ToBF16(v)
	}
}

// Widen: y[n] = x[n].
func Widen(y []float32, x []BF16, n int) {
	for i, v := range x[:n] {
		y[i] = v.Float32()
	}
}
