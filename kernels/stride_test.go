package kernels_test

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestStride wants the parts of a wgrad, by rows of its weights, to be those of the whole wgrad.
func TestStride(t *testing.T) {
	kerneltest.RequireGPU(t)
	d, err := kernels.Device()
	must.OK(t, err)
	for _, precision := range []kernels.Precision{kernels.FP32, kernels.TF32, kernels.TF32X3, kernels.BF16} {
		t.Run(fmt.Sprint(precision), func(t *testing.T) {
			s := newStream(t)
			whole := kernels.GEMM{Layout: kernels.TN, Alpha: 1, M: 1800, N: 1096, K: 512}
			whole.A, whole.B = integers(t, s, precision, whole.K*whole.M), integers(t, s, precision, whole.K*whole.N)
			if stride := kernels.TransposedStride(whole.K); kernels.WantsTransposed(precision, whole) {
				whole.T = malloc(t, 4*stride*whole.N)
				must.OK(t, s.Transpose(whole.T, whole.B, whole.K, whole.N))
			}
			want, got := make([]float32, whole.M*whole.N), make([]float32, whole.M*whole.N)
			whole.C = malloc(t, 4*len(want))
			must.OK(t, s.GEMM(precision, whole), s.Download(bytesOf(want), whole.C), s.Fill(whole.C, 0xff, 4*len(want)))
			bytes := 4
			if precision == kernels.BF16 {
				bytes = 2
			}
			for first, ends := 0, []int{384, 1280, whole.M}; len(ends) > 0; first, ends = ends[0], ends[1:] {
				part := whole
				part.A, part.C = whole.A+uintptr(bytes*first), whole.C+uintptr(4*first*whole.N)
				part.M, part.Stride = ends[0]-first, whole.M
				if !kernels.TakesStride(precision, part) {
					if hasWarpgroup(d) && precision != kernels.FP32 {
						t.Error("no kernel takes a stride")
					}
					if err := s.GEMM(precision, part); err == nil {
						t.Error("a GEMM with a stride that no kernel takes has no error")
					}
					return
				}
				must.OK(t, s.GroupedGEMM(precision, []kernels.GEMM{part}))
			}
			must.OK(t, s.Download(bytesOf(got), whole.C))
			if !slices.Equal(got, want) {
				t.Error("other numbers")
			}
		})
	}
}

// integers returns an operand of small integers, whose products have exact sums.
func integers(t *testing.T, s kernels.Stream, precision kernels.Precision, n int) uintptr {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i*i%9 - 4)
	}
	return operand(t, s, precision, x)
}

// operand returns the address of the values of x.
func operand(t *testing.T, s kernels.Stream, precision kernels.Precision, x []float32) uintptr {
	n := len(x)
	p := malloc(t, 4*n)
	must.OK(t, s.Upload(p, bytesOf(x)))
	if precision != kernels.BF16 {
		return p
	}
	rounded := malloc(t, 2*n)
	must.OK(t, s.Round(precision, rounded, p, n))
	return rounded
}
