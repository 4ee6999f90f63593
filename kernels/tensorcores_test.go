package kernels_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestTensorCores checks that TF32 and TF32X3 multiply on the tensor cores, by what only those do: TF32
// rounds 1 + 2^-12 to 1, and TF32X3 makes an infinity NaN. Which kernel multiplies also depends on the number
// of SMs.
func TestTensorCores(t *testing.T) {
	kerneltest.RequireGPU(t)
	must.OK(t, kernels.TF32.Usable())
	const many = 5 // more rows or columns of tiles than a GPU with few SMs takes at once
	s := newStream(t)
	for _, c := range []struct {
		name    string
		layouts []kernels.Layout
		m, n, k int
	}{
		{"few rows", []kernels.Layout{kernels.NN, kernels.NT}, 16, 48, 100},
		{"few rows, large weights", []kernels.Layout{kernels.NN, kernels.NT}, 32, 36, 1100},
		{"many rows", []kernels.Layout{kernels.NN, kernels.NT}, 260, 36, 1100},
		{"ten columns", []kernels.Layout{kernels.NN, kernels.NT, kernels.TN}, 100, 10, 300},
		{"unaligned", []kernels.Layout{kernels.NN, kernels.NT, kernels.TN}, 33, 35, 37},
		{"small batch", []kernels.Layout{kernels.TN}, 112, 48, 64},
		{"batch of 132", []kernels.Layout{kernels.TN}, 60, 36, 132},
		{"batch of 132, many tiles", []kernels.Layout{kernels.TN}, 64 * many, 80 * many, 132},
		{"large batch", []kernels.Layout{kernels.TN}, 64, 80, 300},
	} {
		for _, layout := range c.layouts {
			for _, p := range []kernels.Precision{kernels.TF32, kernels.TF32X3} {
				t.Run(fmt.Sprint(c.name, ", ", layout, ", ", p), func(t *testing.T) {
					if got := multiplyOnes(t, s, p, layout, c.m, c.n, c.k); !onTensorCores(p, got, c.k) {
						t.Errorf("a result is %v, as of the CUDA cores", got)
					}
				})
			}
		}
	}
}

// multiplyOnes returns the last element of a·b, where b is ones, and a is 1 + 2^-12, or for TF32X3 infinite.
func multiplyOnes(t *testing.T, s kernels.Stream, p kernels.Precision, layout kernels.Layout, m, n, k int) float32 {
	t.Helper()
	a := float32(1 + 1./4096)
	if p == kernels.TF32X3 {
		a = float32(math.Inf(1))
	}
	g := kernels.GEMM{Layout: layout, C: malloc(t, 4*m*n), A: malloc(t, 4*m*k), B: malloc(t, 4*k*n), M: m, N: n, K: k, Alpha: 1}
	c := make([]float32, m*n)
	must.OK(t, s.Upload(g.A, bytesOf(slices.Repeat([]float32{a}, m*k))), s.Upload(g.B, bytesOf(slices.Repeat([]float32{1}, k*n))),
		s.GEMM(p, g), s.Download(bytesOf(c), g.C))
	return c[m*n-1]
}

func onTensorCores(p kernels.Precision, got float32, k int) bool {
	if p == kernels.TF32X3 {
		return got != got
	}
	return got == float32(k)
}

// TestFastTF32 has GPUs of each kind.
func TestFastTF32(t *testing.T) {
	for _, c := range []struct {
		gpu          string
		major, minor int
		want         bool
	}{
		{"T4", 7, 5, false}, {"A100", 8, 0, true}, {"RTX 3090", 8, 6, false}, {"L4", 8, 9, false},
		{"H200", 9, 0, true}, {"B200", 10, 0, true}, {"RTX 5090", 12, 0, false},
	} {
		if got := (kernels.Info{Major: c.major, Minor: c.minor}).FastTF32(); got != c.want {
			t.Errorf("%s: %v", c.gpu, got)
		}
	}
}
