package kerneltest

import (
	"fmt"

	"mlpool/kernels"
	"mlpool/kernels/ref"
)

// gemmOp is [kernels.Stream.GEMM] of g; the arrays are its C, Rounded, A, B, Y, Indices and T.
func gemmOp(g kernels.GEMM) op {
	return op{
		name:   fmt.Sprintf("GEMM%+v", g),
		launch: func(d cuda, p []uintptr) error { return d.s.GEMM(d.precision, placed(g, p[0], p[1], p[2:])) },
		early:  early(g, []int{0, 2, 3, 4, 5}),
		ref:    func(a arrays) { reference(g, a[:2], a[2:]) },
	}
}

// groupOp is [kernels.Stream.GroupedGEMM]; the arrays are the C of each, then the Rounded of each, then
// A, B, Y, Indices and T of the first, of the second, ...
func groupOp(group []kernels.GEMM) op {
	n := len(group)
	var all []int
	for i, g := range group {
		in := 2*n + 5*i
		all = append(all, early(g, []int{i, in, in + 1, in + 2, in + 3})...)
	}
	return op{
		name:  fmt.Sprintf("GroupedGEMM%+v", group),
		early: all,
		launch: func(d cuda, p []uintptr) error {
			all := make([]kernels.GEMM, n)
			for i, g := range group {
				all[i] = placed(g, p[i], p[n+i], p[2*n+5*i:])
			}
			return d.s.GroupedGEMM(d.precision, all)
		},
		ref: func(a arrays) {
			for i, g := range group {
				reference(g, arrays{a[i], a[n+i]}, a[2*n+5*i:])
			}
		},
	}
}

// dgradWgradOp is [kernels.Stream.DgradWgrad] of g; the arrays are its C, B, Rounded, A and Y.
func dgradWgradOp(g kernels.GEMM) op {
	return op{
		name:  fmt.Sprintf("DgradWgrad%+v", g),
		early: early(g, []int{0, 3, 1, 4}),
		launch: func(d cuda, p []uintptr) error {
			return d.s.DgradWgrad(d.precision, placed(g, p[0], p[2], []uintptr{p[3], p[1], p[4], 0, 0}))
		},
		ref: func(a arrays) {
			b := a[1]
			if a[2] != nil {
				b = a[2]
			}
			_, wgrad := g.Parts()
			reference(g, arrays{a[0], nil}, arrays{a[3], b, a[4], nil})
			reference(wgrad, arrays{a[1], a[2]}, arrays{a[4], a[3], nil, nil})
		},
	}
}

// early returns the arrays that g may read before the kernel queued ahead of it is done. Its argument
// has their places in a call: C, A, B, Y and Indices, or the first of these.
func early(g kernels.GEMM, at []int) (all []int) {
	if g.Indices != 0 {
		all = append(all, at[1], at[4])
	} else if g.Prefetch&kernels.PrefetchA != 0 {
		all = append(all, at[1])
	}
	if g.Prefetch&kernels.PrefetchB != 0 {
		all = append(all, at[2])
	}
	if g.Prefetch&kernels.PrefetchC != 0 {
		switch g.Epilogue {
		case kernels.SGD:
			all = append(all, at[0])
		case kernels.ActivateBackward:
			all = append(all, at[3])
		}
	}
	return all
}

// placed is g with its addresses: of C and Rounded, and of A, B, Y, Indices and T.
func placed(g kernels.GEMM, c, rounded uintptr, in []uintptr) kernels.GEMM {
	g.C, g.Rounded, g.A, g.B, g.Y, g.Indices, g.T = c, rounded, in[0], in[1], in[2], in[3], in[4]
	return g
}

// reference does g on its C and Rounded, and A, B, Y and Indices, with package ref.
func reference(g kernels.GEMM, out, in arrays) {
	a, rows, cols := in.f32(0), g.M, g.K
	if g.Layout == kernels.TN {
		rows, cols = g.K, g.M
	}
	if images, ok := in[0].([]uint8); ok {
		a = make([]float32, rows*cols)
		ref.Images(a, images, in.i32(3), rows, cols)
	}
	alpha, beta := g.Scales()
	out.write(0, func(c []float32) {
		ref.GEMM(g.Layout == kernels.TN, g.Layout == kernels.NT, alpha, a, in.f32(1), beta, c, g.M, g.N, g.K)
		switch g.Epilogue {
		case kernels.Activate:
			ref.Activate(c, c, g.M*g.N)
		case kernels.ActivateBackward:
			ref.ActivateBackward(c, c, in.f32(2), g.M*g.N)
		}
	})
	if out[1] != nil {
		ref.Round(out[1].([]ref.BF16), out.f32(0), g.M*g.N)
	}
}
