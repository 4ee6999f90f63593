package kerneltest

import (
	"fmt"
	"math"
	"slices"

	"mlpool/kernels/ref"
)

// activateOp is [kernels.Launches.Activate].
func activateOp(n int) op {
	return op{
		name:   fmt.Sprintf("Activate[%d]", n),
		launch: func(d cuda, p []uintptr) error { return d.s.Activate(d.precision, p[0], p[1], n) },
		ref:    func(x arrays) { x.write(0, func(y []float32) { ref.Activate(y, x.f32(1), n) }) },
	}
}

// activateBackwardOp is [kernels.Launches.ActivateBackward].
func activateBackwardOp(n int) op {
	return op{
		name:   fmt.Sprintf("ActivateBackward[%d]", n),
		launch: func(d cuda, p []uintptr) error { return d.s.ActivateBackward(d.precision, p[0], p[1], p[2], n) },
		ref:    func(x arrays) { x.write(0, func(dx []float32) { ref.ActivateBackward(dx, x.f32(1), x.f32(2), n) }) },
	}
}

// stepOp is [kernels.Launches.Step]; the arrays are w and dw.
func stepOp(rate float32, n int) op {
	return op{
		name:   fmt.Sprintf("Step[%v, %d]", rate, n),
		launch: func(d cuda, p []uintptr) error { return d.s.Step(p[0], p[1], rate, n) },
		ref:    func(x arrays) { ref.Step(x.f32(0), x.f32(1), rate, n) },
	}
}

// roundOp is [kernels.Launches.Round]; the arrays are y and x.
func roundOp(n int) op {
	return op{
		name:   fmt.Sprintf("Round[%d]", n),
		launch: func(d cuda, p []uintptr) error { return d.s.Round(d.precision, p[0], p[1], n) },
		ref:    func(a arrays) { a.write(0, func(y []float32) { copy(y[:n], a.f32(1)) }) },
	}
}

func (s *suite) elementwise() {
	for _, n := range append(sizes, 4096, 100_003) {
		s.elements(n)
	}
}

// elements checks the operations on n elements.
func (s *suite) elements(n int) {
	x, y := s.floats(n), s.floats(n)
	each := func(c Call, outputs int, out any, f func(i int) float64) {
		want := make([]float64, n)
		for i := range want {
			want[i] = f(i)
		}
		c.unaligned = s.r.IntN(2) == 0
		s.do(c, outputs)
		// An element is below 2: two roundings are off by less than 1e-7.
		tolerance := 1e-7
		if _, rounds := out.([]ref.BF16); rounds {
			tolerance = s.valueTolerance(tolerance)
		}
		s.near(c, floatsOf(out), want, tolerance, math.Sqrt(float64(n)))
	}

	out, outputs := s.outputValues(n), s.values(y)
	x[n/2] = nan // stays NaN
	each(Call{op: activateOp(n), arrays: arrays{out, x}}, 1, out, func(i int) float64 { return max(0, float64(x[i])) })
	x[n/2] = 1
	out = s.outputValues(n)
	each(Call{op: activateBackwardOp(n), arrays: arrays{out, x, outputs}}, 1, out, func(i int) float64 {
		if y[i] > 0 {
			return float64(x[i])
		}
		return 0
	})
	rounded, exact := s.outputValues(n), make([]float64, n)
	for i, v := range x[:n] {
		if s.bf16 {
			v = ref.ToBF16(v).Float32()
		}
		exact[i] = float64(v)
	}
	c := Call{op: roundOp(n), arrays: arrays{rounded, x}, unaligned: s.r.IntN(2) == 0}
	s.do(c, 1)
	s.equal(c, floatsOf(rounded), exact)
	for _, rate := range []float32{0.3, -1} {
		w := slices.Clone(y)
		each(Call{op: stepOp(rate, n), arrays: arrays{w, x}}, 1, w, func(i int) float64 {
			return float64(y[i]) - float64(rate)*float64(x[i])
		})
	}
}
