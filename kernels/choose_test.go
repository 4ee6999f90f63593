package kernels_test

import (
	"math"
	"slices"
	"testing"

	"mlpool/internal/must"
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
	g := kernels.GEMM{C: malloc(t, 4*m*n), A: waves(t, s, m*k), B: waves(t, s, k*n), M: m, N: n, K: k}
	bits := func(p kernels.Precision, kernel string) []float32 {
		t.Helper()
		out := make([]float32, m*n)
		must.OK(t, kernels.Choose(p, g, kernel), s.GEMM(p, g), s.Download(bytesOf(out), g.C), kernels.Choose(p, g, ""))
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

// waves returns n numbers on the GPU.
func waves(t testing.TB, s kernels.Stream, n int) uintptr {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(float64(i*i))) / 16
	}
	p := malloc(t, 4*n)
	must.OK(t, s.Upload(p, bytesOf(x)))
	return p
}
