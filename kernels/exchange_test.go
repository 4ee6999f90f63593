package kernels_test

import (
	"math/rand/v2"
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
	"mlpool/kernels/ref"
)

// TestExchangeOfOne does exchanges of a single rank, for which it needs no other process: part of a tile,
// and more tiles than an SM has, three times each, without and with weights in bf16. Package gpu has the
// test of several.
func TestExchangeOfOne(t *testing.T) {
	kerneltest.RequireGPU(t)
	const most, times = 64 * 40_001, 3
	s := newStream(t)
	addr, _, err := kernels.NewIPC(kernels.ExchangeFlags + (2*4+2)*most)
	abort, err2 := kernels.NewAbortFlag()
	must.OK(t, err, err2)
	t.Cleanup(func() { must.OK(t, s.Synchronize(), kernels.FreeIPC(addr), abort.Free()) })
	e := kernels.Exchange{Memory: []uintptr{addr}, Weights: kernels.ExchangeFlags, Updates: kernels.ExchangeFlags + 4*most, Abort: abort}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = rng.Float32() - 0.5
		}
		return v
	}
	sizes := []int{0, 64, 64 * 3, 64 * 1000, most}
	for i, n := range append(sizes, sizes...) {
		w, x, got, inBF16 := random(n), random(n), make([]float32, n), make([]ref.BF16, n)
		if e.Rounded = 0; i >= len(sizes) {
			e.Rounded = e.Updates + 4*most
			must.OK(t, s.Fill(addr+uintptr(e.Rounded), 0, 2*n))
		}
		must.OK(t, s.Upload(addr+uintptr(e.Weights), bytesOf(w)), s.Upload(addr+uintptr(e.Updates), bytesOf(x)))
		e.N = n
		for range times {
			must.OK(t, s.Exchange(e))
		}
		must.OK(t, s.Download(bytesOf(got), addr+uintptr(e.Weights)), s.Download(bytesOf(inBF16), addr+uintptr(e.Rounded)))
		for i, v := range got {
			for range times {
				w[i] += x[i]
			}
			if v != w[i] {
				t.Fatalf("%d numbers: number %d is %v, want %v", n, i, v, w[i])
			}
			if e.Rounded != 0 && inBF16[i] != ref.ToBF16(v) {
				t.Fatalf("%d numbers: number %d in bf16 is %v, want %v", n, i, inBF16[i].Float32(), v)
			}
		}
	}
	for name, wrong := range map[string]func(*kernels.Exchange){
		"no ranks":         func(e *kernels.Exchange) { e.Memory = nil },
		"another rank":     func(e *kernels.Exchange) { e.Rank = 1 },
		"no memory":        func(e *kernels.Exchange) { e.Memory = []uintptr{0} },
		"32 numbers":       func(e *kernels.Exchange) { e.N = 32 },
		"too many numbers": func(e *kernels.Exchange) { e.N = 1<<32 + 64 },
		"weights in flags": func(e *kernels.Exchange) { e.Weights = 0 },
		"no whole float4":  func(e *kernels.Exchange) { e.Updates += 4 },
		"bf16 in flags":    func(e *kernels.Exchange) { e.Rounded = 16 },
		"bf16 unaligned":   func(e *kernels.Exchange) { e.Rounded = kernels.ExchangeFlags + 8 },
		"no abort flag":    func(e *kernels.Exchange) { e.Abort = 0 },
	} {
		bad := e
		bad.N = 64
		wrong(&bad)
		if err := s.Exchange(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
