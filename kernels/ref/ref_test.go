package ref_test

import (
	"fmt"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
	"mlpool/kernels/ref"
)

func Test(t *testing.T) { kerneltest.Run(t, kerneltest.Reference(kernels.FP32), kerneltest.Tolerance) }

func TestValuesInBF16(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	kerneltest.Run(t, kerneltest.Reference(kernels.BF16), kerneltest.ToleranceBF16)
}

// The GEMMs of a step of a 784-128-128-10 network, batch 64.
func BenchmarkGEMM(b *testing.B) {
	for _, bm := range []struct {
		layout  string
		m, n, k int
	}{
		{"NN", 64, 128, 784},
		{"NN", 64, 128, 128},
		{"NN", 64, 10, 128},
		{"NT", 64, 128, 10},
		{"NT", 64, 128, 128},
		{"TN", 128, 10, 64},
		{"TN", 128, 128, 64},
		{"TN", 784, 128, 64},
	} {
		b.Run(fmt.Sprintf("%s/%dx%dx%d", bm.layout, bm.m, bm.n, bm.k), func(b *testing.B) {
			x, y, z := make([]float32, bm.m*bm.k), make([]float32, bm.k*bm.n), make([]float32, bm.m*bm.n)
			for i := range x {
				x[i] = float32(i%7) - 3.5
			}
			for i := range y {
				y[i] = float32(i%5) - 2.5
			}
			b.ReportAllocs()
			for b.Loop() {
				ref.GEMM(bm.layout == "TN", bm.layout == "NT", 1, x, y, 0, z, bm.m, bm.n, bm.k)
			}
			b.ReportMetric(2*float64(bm.m*bm.n*bm.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
