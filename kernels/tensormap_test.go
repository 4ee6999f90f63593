package kernels_test

import (
	"sync"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestTensorMaps does GEMMs of other shapes at the same addresses, and of the same shapes at other
// addresses, many times on several threads. A tensor map that is kept for one matrix must never be
// used for another.
func TestTensorMaps(t *testing.T) {
	kerneltest.RequireGPU(t)
	if kernels.TF32.Usable() != nil {
		t.Skip("no tensor cores")
	}
	const rows, most, threads, times = 2, 64 * 64, 4, 3
	var all sync.WaitGroup
	for range threads {
		s := newStream(t)
		x, w, y := malloc(t, 4*rows*64), malloc(t, 4*(most+4)), malloc(t, 4*rows*64)
		ints := func(n int) []float32 {
			v := make([]float32, n)
			for i := range v {
				v[i] = float32(i%7 - i%5)
			}
			return v
		}
		a, b := ints(rows*64), ints(most+4)
		all.Go(func() {
			for _, upload := range []error{s.Upload(x, bytesOf(a)), s.Upload(w, bytesOf(b))} {
				if upload != nil {
					t.Error(upload)
					return
				}
			}
			for i := range 12 * times {
				n, k, first := []int{20, 24, 64}[i%3], []int{48, 64}[i/3%2], i/6%2*4
				layout := []kernels.Layout{kernels.NN, kernels.NT}[i%2]
				got := make([]float32, rows*n)
				if err := s.GEMM(kernels.TF32, kernels.GEMM{Layout: layout, C: y, A: x, B: w + uintptr(4*first), M: rows, N: n, K: k}); err != nil {
					t.Error(err)
					return
				}
				if err := s.Download(bytesOf(got), y); err != nil {
					t.Error(err)
					return
				}
				for e, v := range got {
					var want float32
					for j := range k {
						at := j*n + e%n
						if layout == kernels.NT {
							at = e%n*k + j
						}
						want += a[e/n*k+j] * b[first+at]
					}
					if v != want {
						t.Errorf("layout %v, %d×%d from %d on: element %d is %v, want %v", layout, n, k, first, e, v, want)
						return
					}
				}
			}
		})
	}
	all.Wait()
}
