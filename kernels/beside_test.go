package kernels_test

import (
	"fmt"
	"slices"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestBeside multiplies with and without shared memory for an exchange: the bits are the same.
func TestBeside(t *testing.T) {
	kerneltest.RequireGPU(t)
	for _, precision := range []kernels.Precision{kernels.TF32, kernels.TF32X3} {
		// On 132 SMs by tiles of 128, some of them partly outside, and by tiles of 256, which 3xtf32 does
		// not have.
		for _, shape := range [][3]int{{1000, 2044, 256}, {1796, 2044, 256}} {
			t.Run(fmt.Sprint(precision, shape), func(t *testing.T) {
				g := kernels.GEMM{Epilogue: kernels.Activate, M: shape[0], N: shape[1], K: shape[2]}
				s := newStream(t)
				g.A, g.B, g.C = waves(t, s, g.M*g.K), waves(t, s, g.K*g.N), malloc(t, 4*g.M*g.N)
				var results [2][]float32
				for i := range results {
					g.Beside, results[i] = i > 0, make([]float32, g.M*g.N)
					must.OK(t, s.Fill(g.C, 0xff, 4*g.M*g.N), s.GEMM(precision, g), s.Download(bytesOf(results[i]), g.C))
				}
				if !slices.Equal(results[0], results[1]) {
					t.Error("other numbers")
				}
			})
		}
	}
}
