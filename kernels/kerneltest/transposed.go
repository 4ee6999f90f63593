package kerneltest

import (
	"fmt"
	"math"
	"slices"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// transposeOp is [kernels.Stream.Transpose]; the arrays are t and x.
func transposeOp(rows, cols int) op {
	return op{
		name:   fmt.Sprintf("Transpose[%d,%d]", rows, cols),
		launch: func(d cuda, p []uintptr) error { return d.s.Transpose(p[0], p[1], rows, cols) },
		ref:    func(a arrays) { ref.Transpose(a.f32(0), a.f32(1), rows, cols, kernels.TransposedStride(rows)) },
		clear:  func(a arrays) { clearPadding(a.f32(0), rows, cols) },
	}
}

// dgradTransposedOp is [kernels.Stream.GEMM] of g, NT with T; the arrays are its C, T, A, B
// and Y.
func dgradTransposedOp(g kernels.GEMM) op {
	return op{
		name:  fmt.Sprintf("GEMM%+v with T", g),
		early: early(g, []int{0, 2, 3, 4}),
		launch: func(d cuda, p []uintptr) error {
			return d.s.GEMM(d.precision, placed(g, p[0], 0, []uintptr{p[2], p[3], p[4], 0, p[1]}))
		},
		ref: func(a arrays) {
			reference(g, arrays{a[0], nil}, arrays{a[2], a[3], a[4], nil})
			ref.Transpose(a.f32(1), a.f32(0), g.M, g.N, kernels.TransposedStride(g.M))
		},
		clear: func(a arrays) { clearPadding(a.f32(1), g.M, g.N) },
	}
}

// transposes checks transposes, and GEMMs that store or read one, of large batches and others. In BF16
// none does.
func (s *suite) transposes() {
	sizes := [][3]int{{0, 5, 5}, {7, 10, 20}, {65, 40, 64}, {100, 33, 70}, {130, 260, 36}}
	if d, onGPU := s.impl.(cuda); onGPU {
		// Enough work for warpgroup MMA, in tiles that are cut off on all sides: as many as SMs, for
		// tf32 of 256 columns; more; and so few that CTAs share one.
		large := [][3]int{
			{1605, 2052, 260}, {260, 2052, 1604}, {2058, 2580, 260}, {1003, 784, 516}, {256, 784, 1028}, {264, 776, 5128},
			// Few rows by large weights, and tiles of 192 that two CTAs share.
			{129, 1032, 1536}, {192, 4300, 2048}, {255, 1028, 1032}, {40, 2304, 2312}, {40, 4304, 1200}, {72, 2152, 1400},
		}
		switch {
		case s.slow() && !d.hasWarpgroup(): // no other kernel than at a smaller size
			large = nil
		case s.slow() && s.bf16: // on 132 SMs tiles of 128 columns, and of 64 shared by two CTAs
			large = [][3]int{{1032, 784, 264}, {264, 784, 1032}}
			if info, _ := kernels.Device(); info.SMs < 100 { // on 20 of 256, by consumers in turns, of 160 and of 192, and of 128 and of 192 shared by two
				large = [][3]int{{1032, 784, 264}, {264, 784, 1032}, {264, 1144, 680}, {264, 264, 2872}, {192, 776, 2048}}
			}
		case s.slow():
			large = [][3]int{{259, 784, 1028}, {1026, 784, 260}, {1144, 260, 684}, {192, 648, 1612}} // on 20 SMs, and on 132, all of that too
		}
		if s.bf16 {
			for some := range slices.Chunk(large, 6) { // the test's memory has no room for more
				s.largeBF16(some)
			}
			large = nil
		}
		for _, z := range large {
			s.gemm(kernels.GEMM{Layout: kernels.NN, Epilogue: kernels.Activate}, z[0], z[1], z[2])
			if !s.slow() {
				s.gemm(kernels.GEMM{Layout: kernels.NN}, z[0], z[1], z[2])
				s.nanGEMM(kernels.GEMM{Layout: kernels.NN, Epilogue: kernels.Activate}, z[0], z[1], z[2])
			}
			s.gemm(kernels.GEMM{Layout: kernels.NT}, z[0], z[1], z[2])
		}
		sizes = append(sizes, large...)
	}
	if s.bf16 {
		s.group(sizes...)
		return
	}
	for _, z := range sizes {
		for _, unaligned := range []bool{false, true} {
			if unaligned && s.slow() && z[0] >= 256 {
				continue // no other kernel than at a smaller size
			}
			x, t := s.floats(z[0]*z[1]), output(kernels.TransposedStride(z[0])*z[1])
			c := Call{op: transposeOp(z[0], z[1]), arrays: arrays{t, x}, unaligned: unaligned}
			s.do(c, 1)
			s.equal(c, t, transposed(x, z[0], z[1]))
			for _, exact := range []bool{true, false} {
				s.dgradTransposed(z[0], z[1], z[2], exact, unaligned)
			}
		}
		s.wgradsTransposed(z)
	}
	for some := range slices.Chunk(sizes, kernels.MaxGroup) {
		s.wgradsTransposed(some...)
	}
}

// largeBF16 checks all that GEMMs in BF16 do to their sums, on sizes near these whose rows are whole
// multiples of 16 bytes, alone and as a group.
func (s *suite) largeBF16(sizes [][3]int) {
	for _, exact := range []bool{true, false} {
		var group []operands
		for _, z := range sizes {
			for i := range z {
				z[i] = (z[i] + 7) &^ 7
			}
			for _, g := range gemms {
				if g.Indices == 0 {
					s.single(s.operands(g, z[0], z[1], z[2], exact), false)
				}
			}
			group = append(group, s.operands(wgrad, z[1], z[2], z[0], exact), s.operands(kernels.GEMM{Layout: kernels.TN}, z[2], z[1], z[0]+3, exact))
		}
		s.grouped(group, false)
	}
}

// wantsTransposed reports whether a wgrad must read T and not B, in the precision.
func wantsTransposed(p kernels.Precision, g kernels.GEMM) bool {
	g.C, g.A, g.B = 1<<12, 1<<12, 1<<12
	return kernels.WantsTransposed(p, g)
}

// hasWarpgroup reports whether large GEMMs use warpgroup MMA. In BF16 none want a transpose.
func (d cuda) hasWarpgroup() bool {
	g := wgrad
	g.M, g.N, g.K = 2048, 2048, 2048
	p := d.precision
	if p == kernels.BF16 {
		p = kernels.TF32
	}
	return wantsTransposed(p, g)
}

func (s *suite) dgradTransposed(m, n, k int, exact, unaligned bool) {
	o := s.operands(dgrad, m, n, k, exact)
	t := output(kernels.TransposedStride(m) * n)
	c := Call{op: dgradTransposedOp(o.g), arrays: arrays{o.out, t, o.in[0], o.in[1], o.in[2]}, unaligned: unaligned}
	s.do(c, 2)
	s.compare(c, o)
	s.equal(c, t, transposed(floatsOf(o.out), m, n))
}

// wgradsTransposed compares wgrads that may read dyᵀ, as one operation.
func (s *suite) wgradsTransposed(sizes ...[3]int) {
	for _, exact := range []bool{true, false} {
		var all []operands
		for _, z := range sizes {
			o := s.operands(wgrad, z[1], z[2], z[0], exact)
			b, stride := o.in.f32(1), kernels.TransposedStride(z[0])
			t := output(stride * z[2])
			ref.Transpose(t, b, z[0], z[2], stride)
			if o.in[4] = t; s.onGPU() && wantsTransposed(s.impl.(cuda).precision, o.g) {
				o.in[1] = output(len(b) - guard) // which it must not read
			}
			all = append(all, o)
		}
		s.grouped(all, false)
	}
}

// clearPadding makes what follows the rows in each line of a transpose of x[rows,cols] NaN.
func clearPadding(t []float32, rows, cols int) {
	for i := range cols {
		line := t[i*kernels.TransposedStride(rows):]
		for j := rows; j < kernels.TransposedStride(rows); j++ {
			line[j] = nan
		}
	}
}

// transposed is x[rows,cols]ᵀ, with the padding that clearPadding leaves.
func transposed(x []float32, rows, cols int) []float64 {
	stride := kernels.TransposedStride(rows)
	t := make([]float64, stride*cols)
	for i := range t {
		t[i] = math.NaN()
		if r, c := i%stride, i/stride; r < rows {
			t[i] = float64(x[r*cols+c])
		}
	}
	return t
}
