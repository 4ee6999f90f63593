package kernels_test

import (
	"math"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestPrefetch runs a chain of GEMMs that depend on each other, with and without
// saying which operands the launch before did not write: the bits must be the same. On an
// emulated GPU each case of the suite shows that.
func TestPrefetch(t *testing.T) {
	kerneltest.RequireRealGPU(t)
	const rows, n, times = 64, 784, 50
	s := newStream(t)
	x, y, z, w, v := malloc(t, 4*rows*n), malloc(t, 4*rows*n), malloc(t, 4*rows*n), malloc(t, 4*n*n), malloc(t, 4*n*n)
	fill := func(p uintptr, count int) { fillWaves(t, s, p, count) }
	for _, p := range []kernels.Precision{kernels.FP32, kernels.TF32X3, kernels.TF32} {
		if p.Usable() != nil {
			continue
		}
		var got [2][]float32
		for run := range got {
			fill(x, rows*n)
			fill(w, n*n)
			fill(v, n*n)
			prefetch := func(p kernels.Prefetch) kernels.Prefetch { return p * kernels.Prefetch(run) }
			for i := range times {
				first := kernels.PrefetchA
				if i == 0 {
					first = 0
				}
				try(t, s.GEMM(p, kernels.GEMM{Epilogue: kernels.Activate, C: y, A: x, B: w, M: rows, N: n, K: n, Prefetch: prefetch(first)}))
				try(t, s.GEMM(p, kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.ActivateBackward, C: z, A: y, B: v, Y: x, M: rows, N: n, K: n,
					Prefetch: prefetch(kernels.PrefetchB | kernels.PrefetchC)}))
				try(t, s.GroupedGEMM(p, []kernels.GEMM{
					{Layout: kernels.TN, Epilogue: kernels.SGD, C: w, A: x, B: z, Alpha: -0.003, M: n, N: n, K: rows, Prefetch: prefetch(kernels.PrefetchA | kernels.PrefetchC)},
					{Layout: kernels.TN, Epilogue: kernels.SGD, C: v, A: x, B: y, Alpha: -0.003, M: n, N: n, K: rows,
						Prefetch: prefetch(kernels.PrefetchA | kernels.PrefetchB | kernels.PrefetchC)},
				}))
			}
			got[run] = make([]float32, 2*n*n)
			try(t, s.Download(bytesOf(got[run][:n*n]), w))
			try(t, s.Download(bytesOf(got[run][n*n:]), v))
		}
		sameBits(t, p, got[0], got[1])
	}
}

func fillWaves(t *testing.T, s kernels.Stream, p uintptr, count int) {
	f := make([]float32, count)
	for i := range f {
		f[i] = float32(math.Sin(float64(i*i))) / 16
	}
	try(t, s.Upload(p, bytesOf(f)))
}

func sameBits(t *testing.T, p kernels.Precision, without, with []float32) {
	t.Helper()
	for i, v := range without {
		if math.Float32bits(v) != math.Float32bits(with[i]) || v != v {
			t.Errorf("%v: element %d is %v, and %v where operands are prefetched", p, i, v, with[i])
			return
		}
	}
}

// TestPrefetchDgradWgrad is TestPrefetch for dgrads with their wgrads: one behind the
// gradient that it takes, one behind that update of its weights, one behind its input.
func TestPrefetchDgradWgrad(t *testing.T) {
	kerneltest.RequireRealGPU(t)
	const rows, n, k = 9, 1904, 1028 // of which there are kernels in both precisions
	s := newStream(t)
	x, dy, wave, w, out := malloc(t, 4*rows*n), malloc(t, 4*rows*k), malloc(t, 4*rows*n), malloc(t, 4*n*k), malloc(t, 3*4*rows*n)
	for _, p := range []kernels.Precision{kernels.TF32, kernels.TF32X3} {
		if p.Usable() != nil {
			continue
		}
		var got [2][]float32
		for run := range got {
			fillWaves(t, s, x, rows*n)
			fillWaves(t, s, dy, rows*k)
			fillWaves(t, s, wave, rows*n)
			fillWaves(t, s, w, n*k)
			for i, c := range []struct {
				write    uintptr
				count    int
				prefetch kernels.Prefetch
			}{{dy, rows * k, kernels.PrefetchB | kernels.PrefetchC}, {0, 0, kernels.PrefetchA | kernels.PrefetchC}, {x, rows * n, kernels.PrefetchA | kernels.PrefetchB}} {
				if c.write != 0 {
					try(t, s.Step(c.write, wave, -1, c.count))
				}
				try(t, s.DgradWgrad(p, kernels.GEMM{Layout: kernels.NT, Epilogue: kernels.ActivateBackward, C: out + uintptr(i*4*rows*n), A: dy, B: w, Y: x,
					M: rows, N: n, K: k, Alpha: -0.3, Prefetch: c.prefetch * kernels.Prefetch(run)}))
			}
			got[run] = make([]float32, n*k+3*rows*n)
			try(t, s.Download(bytesOf(got[run][:n*k]), w))
			try(t, s.Download(bytesOf(got[run][n*k:]), out))
		}
		sameBits(t, p, got[0], got[1])
	}
}
