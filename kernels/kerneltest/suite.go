package kerneltest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// sizes are sizes that often fail: one, primes, a last batch, a tile and one more, the width of an
// image, and others.
var sizes = []int{1, 7, 10, 32, 64, 65, 784, 1000}

// Tolerance is the largest ‖out - want‖/‖want‖ of a float32 result of many numbers.
const Tolerance = 2e-6

// ToleranceBF16 is that of a GEMM in bf16, whose result is rounded.
const ToleranceBF16 = 4e-3

// scatter is the factor by which the rounding error of few independent sums may exceed that of many.
func scatter(few float64) float64 { return 1 + 6/math.Sqrt(few) }

// Seed is the environment variable with the seed of random numbers: a number, as a failure prints it,
// or "random". The default is 1.
const Seed = "KERNELTEST_SEED"

func seed(tb testing.TB) uint64 {
	tb.Helper()
	switch v := os.Getenv(Seed); v {
	case "":
		return 1
	case "random":
		return rand.Uint64()
	default:
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			tb.Fatalf("%s: %v", Seed, err)
		}
		return n
	}
}

// A suite is a test of one Impl. Its methods report faults and carry on.
type suite struct {
	t    *testing.T
	impl Impl
	r    *rand.Rand
	seed uint64
	// tolerance is the largest ‖out - want‖/‖want‖ of a GEMM.
	tolerance float64
	bf16      bool // values are
}

func newSuite(t *testing.T, impl Impl, seed uint64, tolerance float64) *suite {
	return &suite{t, impl, rand.New(rand.NewPCG(seed, 0)), seed, tolerance, impl.values() == kernels.BF16}
}

func (s *suite) close() {
	if err := s.impl.Close(); err != nil {
		s.t.Error(err)
	}
}

// slow reports whether the suite should leave out sizes that only a GPU computes fast: on an emulated one
// they take minutes, and package ref has no tiles that they would fill.
func (s *suite) slow() bool { return !s.onGPU() || Emulated() }

// onGPU reports whether the suite tests kernels, on a real or an emulated GPU.
func (s *suite) onGPU() bool {
	_, cuda := s.impl.(cuda)
	return cuda
}

// guard is the number of elements after the end of an array, which must be neither read nor written.
const guard = 9

var nan = float32(math.NaN())

// padded appends the guard.
func padded(x []float32) []float32 {
	return append(slices.Clip(x), slices.Repeat([]float32{nan}, guard)...)
}

// output returns an array of which the operation must write every element.
func output(n int) []float32 { return slices.Repeat([]float32{nan}, n+guard) }

// outputValues is output of values.
func (s *suite) outputValues(n int) any { return s.values(output(n)) }

// values returns x as an array of values. If those are bf16, it rounds x as well.
func (s *suite) values(x []float32) any {
	if !s.bf16 {
		return x
	}
	values := make([]ref.BF16, len(x))
	ref.Round(values, x, len(x))
	ref.Widen(x, values, len(x))
	return values
}

// valueTolerance is the tolerance of values: that of floats, or in bf16 that of a rounding.
func (s *suite) valueTolerance(floats float64) float64 {
	if s.bf16 {
		return max(floats, 1./256)
	}
	return floats
}

// floatsOf returns an array of floats: a copy of one of bf16, nil of any other.
func floatsOf(x any) []float32 {
	switch x := x.(type) {
	case []float32:
		return x
	case []ref.BF16:
		y := make([]float32, len(x))
		ref.Widen(y, x, len(x))
		return y
	}
	return nil
}

// floats are uniform in -1..1, zero now and then, as an activation is.
func (s *suite) floats(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		if s.r.IntN(16) > 0 {
			x[i] = 2*s.r.Float32() - 1
		}
	}
	return padded(x)
}

// integers are small enough that sums of their products are exact.
func (s *suite) integers(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(s.r.IntN(7) - 3)
	}
	return padded(x)
}

// labels is in 0..classes-1.
func (s *suite) labels(n, classes int) []int32 {
	x := slices.Repeat([]int32{-1}, n+guard)
	for i := range n {
		x[i] = int32(s.r.IntN(classes))
	}
	return x
}

// do runs c twice. Arrays from index outputs on, and the guards of the others, must not change, and
// both runs must give the same bits.
func (s *suite) do(c Call, outputs int) {
	s.t.Helper()
	before := clone(c.arrays)
	c.nothing = !slices.ContainsFunc(before[:outputs], func(x any) bool { return len(floatsOf(x)) > guard })
	if err := s.run(c); err != nil {
		s.fail(c, "%v", err)
		return
	}
	for i, x := range c.arrays {
		if i >= outputs {
			if !same(x, before[i]) {
				s.fail(c, "changed its argument %d", i)
			}
		} else if x := floatsOf(x); x != nil && !same(x[len(x)-guard:], floatsOf(before[i])[len(x)-guard:]) {
			s.fail(c, "wrote past the end of argument %d", i)
		}
	}
	again := c
	again.arrays = before
	if err := s.run(again); err != nil {
		s.fail(c, "the second time: %v", err)
	}
	for i := range outputs {
		if !same(c.arrays[i], again.arrays[i]) {
			s.fail(c, "gave other bits the second time")
		}
	}
}

// run runs c once.
func (s *suite) run(c Call) error {
	err := s.impl.Do(c)
	if c.clear != nil {
		c.clear(c.arrays)
	}
	return err
}

func (s *suite) fail(c Call, format string, args ...any) {
	s.t.Helper()
	s.t.Errorf("%s unaligned=%v seed=%d: %s", c.name, c.unaligned, s.seed, fmt.Sprintf(format, args...))
}

func clone(a arrays) arrays {
	out := make(arrays, len(a))
	for i, x := range a {
		if x != nil {
			v := reflect.ValueOf(x)
			out[i] = reflect.AppendSlice(reflect.Zero(v.Type()), v).Interface()
		}
	}
	return out
}

// same compares bits.
func same(a, b any) bool { return bytes.Equal(bytesOf(a), bytesOf(b)) }

// near checks that got, without its guard, is want within tolerance of
// ‖want‖, or of least if that is larger, and NaN where want is.
func (s *suite) near(c Call, got []float32, want []float64, tolerance, least float64) {
	s.t.Helper()
	var off, norm float64
	for i, w := range want {
		if math.IsNaN(w) {
			if got[i] == got[i] {
				off = math.Inf(1)
			}
			continue
		}
		d := float64(got[i]) - w
		off += d * d
		norm += w * w
	}
	off, norm = math.Sqrt(off), max(math.Sqrt(norm), least)
	if !(off <= tolerance*norm) {
		at := slices.IndexFunc(got, func(v float32) bool { return v != v })
		s.fail(c, "off by %.3g of %.3g; first NaN at %d of %d", off, norm, at, len(want))
	}
}

// equal checks that got, without its guard, is want, and NaN where want is.
func (s *suite) equal(c Call, got []float32, want []float64) {
	s.t.Helper()
	for i, w := range want {
		if v := float64(got[i]); v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
			s.fail(c, "element %d is %v, want exactly %v", i, got[i], w)
			return
		}
	}
}
