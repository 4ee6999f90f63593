package kernels_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
	"mlpool/kernels/nn"
)

// TestBeside multiplies with and without room for another kernel: the bits are the same.
func TestBeside(t *testing.T) {
	kerneltest.RequireGPU(t)
	for _, precision := range []kernels.Precision{kernels.TF32, kernels.TF32X3} {
		// On 132 SMs by tiles of 128, and the last by tiles of 256, of which they need one wave and not two.
		for _, shape := range [][3]int{{300, 260, 96}, {1000, 132, 256}, {2048, 1152, 256}} {
			t.Run(fmt.Sprint(precision, shape), func(t *testing.T) {
				s, rng := newStream(t), rand.New(rand.NewPCG(1, 2))
				random := func(n int) uintptr {
					v := make([]float32, n)
					for i := range v {
						v[i] = rng.Float32() - 0.5
					}
					addr := malloc(t, 4*n)
					try(t, s.Upload(addr, bytesOf(v)))
					return addr
				}
				g := kernels.GEMM{Epilogue: kernels.Activate, Activation: nn.ReLU, M: shape[0], N: shape[1], K: shape[2]}
				g.A, g.B, g.C = random(g.M*g.K), random(g.K*g.N), malloc(t, 4*g.M*g.N)
				var results [2][]float32
				for i := range results {
					try(t, s.Fill(g.C, 0xff, 4*g.M*g.N))
					g.Beside = i > 0
					try(t, s.GEMM(precision, g))
					results[i] = make([]float32, g.M*g.N)
					try(t, s.Download(bytesOf(results[i]), g.C))
				}
				if !slices.Equal(results[0], results[1]) {
					t.Error("other numbers")
				}
			})
		}
	}
}
