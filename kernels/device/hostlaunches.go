package device

import (
	"fmt"
	"slices"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// read returns n values as float32.
func (q *HostQueue) read(addr uintptr, n int) []float32 {
	if q.Values() == Float32 || addr == 0 {
		return f32(addr, n)
	}
	x := make([]float32, n)
	ref.Widen(x, sliceAt[ref.BF16](addr, n), n)
	return x
}

// write stores n values that f computes.
func (q *HostQueue) write(addr uintptr, n int, f func(y []float32)) {
	if q.Values() == Float32 || addr == 0 {
		f(f32(addr, n))
		return
	}
	y := make([]float32, n)
	f(y)
	ref.Round(sliceAt[ref.BF16](addr, n), y, n)
}

// GEMM and the other operations: see [Queue].
func (q *HostQueue) GEMM(g kernels.GEMM) error {
	if !g.Valid() {
		return noGEMM(g)
	}
	return q.do(func() { q.gemm(g) })
}

func (q *HostQueue) GroupedGEMM(group []kernels.GEMM) error {
	if len(group) > kernels.MaxGroup {
		return fmt.Errorf("device: a group of %d GEMMs, of %d at most", len(group), kernels.MaxGroup)
	}
	for _, g := range group {
		if !g.Valid() || g.Layout != kernels.TN {
			return noGEMM(g)
		}
	}
	group = slices.Clone(group)
	return q.do(func() {
		for _, g := range group {
			q.gemm(g)
		}
	})
}

func (q *HostQueue) DgradWgrad(g kernels.GEMM) error {
	if !g.Valid() || g.Epilogue != kernels.ActivateBackward || (q.Values() == BF16) != (g.Rounded != 0) {
		return noGEMM(g)
	}
	dgrad, wgrad := g.Parts()
	return q.do(func() {
		q.gemm(dgrad)
		q.gemm(wgrad)
	})
}

// FusesWgrad returns false: two loops take as long in one operation as in two.
func (q *HostQueue) FusesWgrad(kernels.GEMM) bool { return false }

// WantsTransposed returns false: package ref reads a matrix in any order.
func (q *HostQueue) WantsTransposed(kernels.GEMM) bool { return false }

// TakesStride returns true, and Chains false.
func (q *HostQueue) TakesStride(kernels.GEMM) bool { return true }
func (q *HostQueue) Chains(kernels.GEMM) bool      { return false }

func noGEMM(g kernels.GEMM) error { return fmt.Errorf("device: no GEMM %+v", g) }

func (q *HostQueue) gemm(g kernels.GEMM) {
	a, b, n := q.operandA(g), q.read(g.B, g.K*g.N), g.M*g.N
	alpha, beta := g.Scales()
	multiply := func(c []float32) {
		ref.GEMM(g.Layout == kernels.TN, g.Layout == kernels.NT, alpha, a, b, beta, c, g.M, g.N, g.K)
	}
	switch g.Epilogue {
	case kernels.Activate:
		q.write(g.C, n, func(c []float32) { multiply(c); ref.Activate(c, c, n) })
	case kernels.ActivateBackward:
		q.write(g.C, n, func(c []float32) { multiply(c); ref.ActivateBackward(c, c, q.read(g.Y, n), n) })
	default:
		multiply(f32(g.C, n))
	}
	if g.Layout == kernels.NT && g.T != 0 {
		stride := kernels.TransposedStride(g.M)
		ref.Transpose(f32(g.T, stride*g.N), f32(g.C, n), g.M, g.N, stride)
	}
	if g.Rounded != 0 {
		ref.Round(sliceAt[ref.BF16](g.Rounded, n), f32(g.C, n), n)
	}
}

// operandA returns the elements of a. Those of a gathered view are valid until the next call.
func (q *HostQueue) operandA(g kernels.GEMM) []float32 {
	if g.Stride != 0 {
		x, bytes := make([]float32, 0, g.M*g.K), q.Values().Size()
		for row := range g.K {
			x = append(x, q.read(g.A+uintptr(row*g.Stride*bytes), g.M)...)
		}
		return x
	}
	if g.Indices == 0 {
		return q.read(g.A, g.M*g.K)
	}
	rows, cols := g.M, g.K
	if g.Layout == kernels.TN {
		rows, cols = g.K, g.M
	}
	if n := rows * cols; cap(q.scratch) < n {
		q.scratch = make([]float32, n)
	}
	indices := sliceAt[int32](g.Indices, rows)
	ref.Images(q.scratch, sliceAt[uint8](g.A, tableRows(indices)*cols), indices, rows, cols)
	return q.scratch
}

// tableRows returns the least number of rows of a table with these indices.
func tableRows(indices []int32) (n int) {
	for _, i := range indices {
		n = max(n, int(i)+1)
	}
	return n
}

func (q *HostQueue) Classifier(c kernels.Classifier) error {
	return q.do(func() {
		indices := sliceAt[int32](c.Indices, c.Rows)
		labels := sliceAt[uint8](c.Labels, tableRows(indices))
		x, w := q.read(c.X, c.Rows*c.K), q.read(c.W, c.K*c.Classes)
		q.write(c.DLogits, c.Rows*c.Classes, func(dlogits []float32) {
			q.write(c.DX, c.Rows*c.K, func(dx []float32) {
				ref.Classifier(dlogits, dx, f32(c.Loss, c.Rows), f32(c.Correct, c.Rows), x, w, labels, indices, c.Rows, c.Classes, c.K)
			})
		})
	})
}

func (q *HostQueue) Activate(y, x uintptr, n int) error {
	return q.do(func() { q.write(y, n, func(y []float32) { ref.Activate(y, f32(x, n), n) }) })
}

func (q *HostQueue) ActivateBackward(dx, dy, y uintptr, n int) error {
	return q.do(func() {
		q.write(dx, n, func(dx []float32) { ref.ActivateBackward(dx, f32(dy, n), q.read(y, n), n) })
	})
}

func (q *HostQueue) SoftmaxCrossEntropyBackward(dx, p, labels uintptr, rows, cols int) error {
	return q.do(func() {
		q.write(dx, rows*cols, func(dx []float32) {
			ref.SoftmaxCrossEntropyBackward(dx, f32(p, rows*cols), sliceAt[int32](labels, rows), rows, cols)
		})
	})
}

func (q *HostQueue) Round(y, x uintptr, n int) error {
	return q.do(func() { q.write(y, n, func(y []float32) { copy(y, f32(x, n)) }) })
}

func (q *HostQueue) ReduceLoss(out, loss, correct uintptr, rows, batch int) error {
	if batch < 1 {
		return fmt.Errorf("device: losses of batches of %d", batch)
	}
	return q.do(func() {
		ref.ReduceLoss(f32(out, 2*batches(rows, batch)), f32(loss, rows), f32(correct, rows), rows, batch)
	})
}

// batches returns the number of batches of rows; batch must be positive.
func batches(rows, batch int) int {
	if rows <= 0 {
		return 0
	}
	return (rows-1)/batch + 1
}

func (q *HostQueue) Gather(x, y, images, labels, indices uintptr, rows, cols int) error {
	return q.do(func() {
		at := sliceAt[int32](indices, rows)
		n := tableRows(at)
		q.write(x, rows*cols, func(x []float32) {
			if y == 0 {
				ref.Images(x, sliceAt[uint8](images, n*cols), at, rows, cols)
				return
			}
			ref.Gather(x, sliceAt[int32](y, rows), sliceAt[uint8](images, n*cols), sliceAt[uint8](labels, n), at, rows, cols)
		})
	})
}
