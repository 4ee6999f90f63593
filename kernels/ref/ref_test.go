package ref_test

import (
	"fmt"
	"testing"

	"mlpool/kernels/kerneltest"
	"mlpool/kernels/ref"
)

func Test(t *testing.T) { kerneltest.Run(t, kerneltest.Reference) }

// The products of a step of a 784-128-128-10 network, batch 64.
func BenchmarkMatMul(b *testing.B) {
	type form func(c, a, b []float32, m, n, k int)
	for _, bm := range []struct {
		name    string
		f       form
		m, n, k int
	}{
		{"NN", ref.MatMulReLU, 64, 128, 784},
		{"NN", ref.MatMulReLU, 64, 128, 128},
		{"NN", ref.MatMul, 64, 10, 128},
		{"NT", ref.MatMulNT, 64, 128, 10},
		{"NT", ref.MatMulNT, 64, 128, 128},
		{"TN", ref.MatMulTN, 128, 10, 64},
		{"TN", ref.MatMulTN, 128, 128, 64},
		{"TN", ref.MatMulTN, 784, 128, 64},
	} {
		b.Run(fmt.Sprintf("%s/%dx%dx%d", bm.name, bm.m, bm.n, bm.k), func(b *testing.B) {
			x, y, z := make([]float32, bm.m*bm.k), make([]float32, bm.k*bm.n), make([]float32, bm.m*bm.n)
			for i := range x {
				x[i] = float32(i%7) - 3.5
			}
			for i := range y {
				y[i] = float32(i%5) - 2.5
			}
			b.ReportAllocs()
			for b.Loop() {
				bm.f(z, x, y, bm.m, bm.n, bm.k)
			}
			b.ReportMetric(2*float64(bm.m*bm.n*bm.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
