package kernels_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestExchangeOfOne does exchanges of a single rank, for which it needs no other process: part of a tile, and more
// tiles than an SM has, three times each. Package gpu has the test of several.
func TestExchangeOfOne(t *testing.T) {
	kerneltest.RequireGPU(t)
	const most, times = 64 * 40_001, 3
	s, err := kernels.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	addr, _, err := kernels.NewIPC(kernels.ExchangeFlags + 2*4*most)
	if err != nil {
		t.Fatal(err)
	}
	abort, err := kernels.NewAbortFlag()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(s.Close(), kernels.FreeIPC(addr), abort.Free()); err != nil {
			t.Error(err)
		}
	}()
	e := kernels.Exchange{Memory: []uintptr{addr}, Weights: kernels.ExchangeFlags, Updates: kernels.ExchangeFlags + 4*most, Abort: abort}
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) (v []float32, raw []byte) {
		for range n {
			v = append(v, rng.Float32()-0.5)
			raw = binary.NativeEndian.AppendUint32(raw, math.Float32bits(v[len(v)-1]))
		}
		return v, raw
	}
	for _, n := range []int{0, 64, 64 * 3, 64 * 1000, most} {
		w, raw := random(n)
		x, updates := random(n)
		got := make([]byte, 4*n)
		err := errors.Join(s.Upload(addr+uintptr(e.Weights), raw), s.Upload(addr+uintptr(e.Updates), updates))
		e.N = n
		for range times {
			err = errors.Join(err, s.Exchange(e))
		}
		if err := errors.Join(err, s.Download(got, addr+uintptr(e.Weights))); err != nil {
			t.Fatal(n, err)
		}
		for i := range w {
			for range times {
				w[i] += x[i]
			}
			if v := math.Float32frombits(binary.NativeEndian.Uint32(got[4*i:])); v != w[i] {
				t.Fatalf("%d numbers: number %d is %v, want %v", n, i, v, w[i])
			}
		}
	}
	for name, wrong := range map[string]func(*kernels.Exchange){
		"no ranks":         func(e *kernels.Exchange) { e.Memory = nil },
		"another rank":     func(e *kernels.Exchange) { e.Rank = 1 },
		"no memory":        func(e *kernels.Exchange) { e.Memory = []uintptr{0} },
		"32 numbers":       func(e *kernels.Exchange) { e.N = 32 },
		"weights in flags": func(e *kernels.Exchange) { e.Weights = 0 },
		"no whole float4":  func(e *kernels.Exchange) { e.Updates += 4 },
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
