package kerneltest

import (
	"fmt"
	"math"
	"slices"

	"mlpool/kernels/nn"
	"mlpool/kernels/ref"
)

// activateOp is [kernels.Launches.Activate].
func activateOp(a nn.Activation, n int) op {
	return op{
		name:   fmt.Sprintf("Activate[%v, %d]", a, n),
		launch: func(d cuda, p []uintptr) error { return d.s.Activate(d.precision, a, p[0], p[1], n) },
		ref:    func(x arrays) { x.write(0, func(y []float32) { ref.Activate(a, y, x.f32(1), n) }) },
	}
}

// activateBackwardOp is [kernels.Launches.ActivateBackward].
func activateBackwardOp(a nn.Activation, n int) op {
	return op{
		name:   fmt.Sprintf("ActivateBackward[%v, %d]", a, n),
		launch: func(d cuda, p []uintptr) error { return d.s.ActivateBackward(d.precision, a, p[0], p[1], p[2], n) },
		ref:    func(x arrays) { x.write(0, func(dx []float32) { ref.ActivateBackward(a, dx, x.f32(1), x.f32(2), n) }) },
	}
}

// stepOp is [kernels.Launches.Step]; the arrays are w, state and dw.
func stepOp(u nn.Update, n int) op {
	return op{
		name:   fmt.Sprintf("Step[%+v, %d]", u, n),
		launch: func(d cuda, p []uintptr) error { return d.s.Step(u, p[0], p[1], p[2], n) },
		ref:    func(x arrays) { ref.Step(u, x.f32(0), x.f32(1), x.f32(2), n) },
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

// activations are the activations in float64, and their derivatives: at the output of a fused one,
// else at the input.
var activations = map[nn.Activation]struct{ value, derivative func(x float64) float64 }{
	nn.ReLU: {func(x float64) float64 { return max(0, x) }, func(y float64) float64 {
		if y > 0 {
			return 1
		}
		return 0
	}},
}

// update is an update to check, with its result for a weight and its state in float64.
type update struct {
	nn.Update
	f func(w, state, dw float64) (newW, newState float64)
}

var updates = []update{
	{nn.Update{Rule: nn.SGD, Rate: 0.3}, func(w, _, dw float64) (float64, float64) { return w - float64(float32(0.3))*dw, 0 }},
	{nn.Update{Rule: nn.SGD, Rate: -1}, func(w, _, x float64) (float64, float64) { return w + x, 0 }},
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

	for _, a := range nn.Activations() {
		f, ok := activations[a]
		if !ok {
			s.t.Fatalf("activations has no formula of %v", a)
		}
		if f.value(0) != 0 {
			s.t.Fatalf("%v of 0 is %v: units that pad a layer would not stay 0", a, f.value(0))
		}
		out, outputs := s.outputValues(n), s.values(y)
		x[n/2] = nan // stays NaN
		each(Call{op: activateOp(a, n), arrays: arrays{out, x}}, 1, out, func(i int) float64 { return f.value(float64(x[i])) })
		x[n/2] = 1
		out = s.outputValues(n)
		each(Call{op: activateBackwardOp(a, n), arrays: arrays{out, x, outputs}}, 1, out, func(i int) float64 {
			return float64(x[i]) * f.derivative(float64(y[i]))
		})
	}
	rounded := s.outputValues(n)
	each(Call{op: roundOp(n), arrays: arrays{rounded, x}}, 1, rounded, func(i int) float64 { return float64(x[i]) })
	for _, r := range nn.Rules() {
		if !slices.ContainsFunc(updates, func(u update) bool { return u.Rule == r }) {
			s.t.Fatalf("updates has no formula of %v", r)
		}
	}
	for _, u := range updates {
		w := slices.Clone(y)
		c := Call{op: stepOp(u.Update, n), arrays: arrays{w, nil, x}}
		outputs, was := 1, s.floats(n)
		if u.Rule.Stateful() {
			c.arrays[1], outputs = slices.Clone(was), 2
		}
		each(c, outputs, w, func(i int) float64 { v, _ := u.f(float64(y[i]), float64(was[i]), float64(x[i])); return v })
		if outputs == 2 {
			want := make([]float64, n)
			for i := range want {
				_, want[i] = u.f(float64(y[i]), float64(was[i]), float64(x[i]))
			}
			s.near(c, c.f32(1), want, 1e-7, math.Sqrt(float64(n)))
		}
	}
}
