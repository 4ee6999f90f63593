package kerneltest

import (
	"fmt"
	"math"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// reluOp is [kernels.Stream.ReLU].
func reluOp(n int) op {
	return op{
		name:   fmt.Sprintf("ReLU[%d]", n),
		launch: func(d cuda, p []uintptr) error { return d.s.ReLU(p[0], p[1], n) },
		ref:    func(a arrays) { ref.ReLU(a.f32(0), a.f32(1), n) },
	}
}

// reluBackwardOp is [kernels.Stream.ReLUBackward].
func reluBackwardOp(n int) op {
	return op{
		name:   fmt.Sprintf("ReLUBackward[%d]", n),
		launch: func(d cuda, p []uintptr) error { return d.s.ReLUBackward(p[0], p[1], p[2], n) },
		ref:    func(a arrays) { ref.ReLUBackward(a.f32(0), a.f32(1), a.f32(2), n) },
	}
}

// axpyOp is [kernels.Stream.Axpy].
func axpyOp(alpha float32, n int) op {
	return op{
		name:   fmt.Sprintf("Axpy[%d]", n),
		launch: func(d cuda, p []uintptr) error { return d.s.Axpy(p[0], p[1], alpha, n) },
		ref:    func(a arrays) { ref.Axpy(a.f32(0), a.f32(1), alpha, n) },
	}
}

// addAndZeroOp is [kernels.Stream.AddAndZero] of an array, and of its first half once more.
func addAndZeroOp(n int) op {
	return op{
		name: fmt.Sprintf("AddAndZero[%d]", n),
		launch: func(d cuda, p []uintptr) error {
			return d.s.AddAndZero([]kernels.AddPair{{Y: p[0], X: p[1], N: n}, {Y: p[2], X: p[3], N: n / 2}})
		},
		ref: func(a arrays) {
			ref.AddAndZero(a.f32(0), a.f32(1), n)
			ref.AddAndZero(a.f32(2), a.f32(3), n/2)
		},
	}
}

func (s *suite) elementwise() {
	for _, n := range append(sizes, 4096, 100_003) {
		s.elements(n)
	}
}

// elements checks what works on n elements.
func (s *suite) elements(n int) {
	x, y := s.floats(n), s.floats(n)
	each := func(c Call, outputs int, out []float32, f func(i int) float64) {
		want := make([]float64, n)
		for i := range want {
			want[i] = f(i)
		}
		c.unaligned = s.r.IntN(2) == 0
		s.do(c, outputs)
		// An element is below 2: two roundings are off by less than 1e-7.
		s.near(c, out, want, 1e-7, math.Sqrt(float64(n)))
	}

	out := output(n)
	each(Call{op: reluOp(n), arrays: arrays{out, x}}, 1, out, func(i int) float64 { return max(0, float64(x[i])) })
	out = output(n)
	each(Call{op: reluBackwardOp(n), arrays: arrays{out, x, y}}, 1, out, func(i int) float64 {
		if y[i] > 0 {
			return float64(x[i])
		}
		return 0
	})
	was, out := append([]float32(nil), y...), append([]float32(nil), y...)
	each(Call{op: axpyOp(-0.3, n), arrays: arrays{out, x}}, 1, out, func(i int) float64 {
		return float64(was[i]) - float64(float32(0.3))*float64(x[i])
	})

	out, from := append([]float32(nil), y...), append([]float32(nil), x...)
	half, halfFrom := append([]float32(nil), y...), append([]float32(nil), x...)
	each(Call{op: addAndZeroOp(n), arrays: arrays{out, from, half, halfFrom}}, 4, out, func(i int) float64 { return float64(y[i]) + float64(x[i]) })
	for i := range n {
		if from[i] != 0 || i < n/2 && (halfFrom[i] != 0 || half[i] != out[i]) || i >= n/2 && (halfFrom[i] != x[i] || half[i] != y[i]) {
			s.t.Fatalf("AddAndZero[%d]: element %d: %v and %v of it are left, %v came of half of it", n, i, from[i], halfFrom[i], half[i])
		}
	}
}
