package kernels_test

import (
	"math"
	"slices"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestChoose has a kernel for CUDA cores compute a GEMM in TF32: its bits are then those of the same kernel
// in FP32, until the choice is undone.
func TestChoose(t *testing.T) {
	kerneltest.RequireGPU(t)
	if err := kernels.TF32.Usable(); err != nil {
		t.Skip(err)
	}
	const m, n, k = 40, 48, 64
	s := newStream(t)
	a, b, c := malloc(t, 4*m*k), malloc(t, 4*k*n), malloc(t, 4*m*n)
	fillWaves(t, s, a, m*k)
	fillWaves(t, s, b, k*n)
	g := kernels.GEMM{C: c, A: a, B: b, M: m, N: n, K: k}
	bits := func(p kernels.Precision, kernel string) []float32 {
		t.Helper()
		out := make([]float32, m*n)
		try(t, kernels.Choose(p, g, kernel))
		try(t, s.GEMM(p, g))
		try(t, s.Download(bytesOf(out), c))
		try(t, kernels.Choose(p, g, ""))
		return out
	}
	exact, rounded := bits(kernels.FP32, "simt"), bits(kernels.TF32, "")
	if !slices.Equal(bits(kernels.TF32, "simt"), exact) {
		t.Error("the chosen kernel gave other bits than in FP32")
	}
	if slices.Equal(rounded, exact) {
		t.Error("TF32 does not round")
	}
	if !slices.Equal(bits(kernels.TF32, ""), rounded) {
		t.Error("a choice that was undone has an effect")
	}
	want(t, kernels.Choose(kernels.TF32, g, "none such"), 1)
	if names := kernels.Candidates(kernels.TF32, g); !slices.Contains(names, "simt") || slices.Contains(names, "bf16-medium") {
		t.Errorf("candidates %q", names)
	}
	if names := kernels.Candidates(kernels.TF32, kernels.GEMM{M: -1}); names != nil {
		t.Errorf("candidates %q of no GEMM", names)
	}
}

func fillWaves(t *testing.T, s kernels.Stream, p uintptr, count int) {
	f := make([]float32, count)
	for i := range f {
		f[i] = float32(math.Sin(float64(i*i))) / 16
	}
	try(t, s.Upload(p, bytesOf(f)))
}
