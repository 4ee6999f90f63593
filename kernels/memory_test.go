package kernels_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"mlpool/allocator"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
	"mlpool/kernels/ref"
)

var _ allocator.Filler = kernels.Filler{}

func TestWords(t *testing.T) {
	kerneltest.RequireGPU(t)
	const bytes = 40 << 20
	var filler kernels.Filler
	s, addr := newStream(t), malloc(t, bytes)
	differing := func(from, length, want int64, value uint32) {
		t.Helper()
		if n, err := filler.Differing(addr+uintptr(from), value, length, s.Handle()); n != want || err != nil {
			t.Errorf("%d words of %d bytes from %d on differ from %#x, want %d; error %v", n, length, from, value, want, err)
		}
	}
	fill := func(from, length int64, value uint32) {
		t.Helper()
		must.OK(t, filler.Fill(addr+uintptr(from), value, length, s.Handle()))
	}
	fill(0, bytes, 0xfdfdfdfd)
	differing(0, bytes, 0, 0xfdfdfdfd)
	differing(0, bytes, bytes/4, 0xfdfdfdfc)
	for _, length := range []int64{4, 256, 1028, 8 << 20} {
		fill(512, length, 7)
		differing(512, length, 0, 7)
		differing(0, bytes, length/4, 0xfdfdfdfd)
	}
	fill(bytes-4, 4, 8)
	differing(bytes-8, 8, 1, 0xfdfdfdfd)
	fill(0, 0, 1)
	differing(0, 0, 0, 1)
	for _, wrong := range [][2]int64{{2, 4}, {4, 6}, {4, -4}} {
		if err := filler.Fill(addr+uintptr(wrong[0]), 1, wrong[1], s.Handle()); err == nil {
			t.Errorf("Fill of %d bytes from %d on: no error", wrong[1], wrong[0])
		}
		if _, err := filler.Differing(addr+uintptr(wrong[0]), 1, wrong[1], s.Handle()); err == nil {
			t.Errorf("Differing of %d bytes from %d on: no error", wrong[1], wrong[0])
		}
	}
	for _, cycles := range []int64{-1, 2e9 + 1} {
		if err := s.Spin(cycles); err == nil {
			t.Errorf("Spin(%d): no error", cycles)
		}
	}
	must.OK(t, s.Spin(0), s.Spin(1000), s.Synchronize())
}

// TestMove moves words twice. What the second kernel reads early it must not have from the first, but may
// have from one before that; an emulated GPU shows the difference.
func TestMove(t *testing.T) {
	kerneltest.RequireGPU(t)
	const n = 3000
	device, err := kernels.Device()
	must.OK(t, err)
	hostile := kerneltest.Emulated() && device.Major >= 9 // where there is PDL
	s := newStream(t)
	p := malloc(t, 4*4*n)
	x, got := make([]float32, n), make([]float32, n)
	for i := range x {
		x[i] = float32(i + 1)
	}
	a, b, c, d := p, p+4*n, p+8*n, p+12*n
	for _, early := range []bool{false, true} {
		for _, between := range []bool{false, true} {
			must.OK(t, s.Fill(p, 0, 4*4*n), s.Upload(a, bytesOf(x)), s.Move(b, a, 4*n, false))
			if between {
				must.OK(t, s.Move(d, a, 4*n, false))
			}
			must.OK(t, s.Move(c, b, 4*n, early), s.Download(bytesOf(got), c))
			switch right := slices.Equal(got, x); {
			case !right && (!early || between):
				t.Errorf("early %v, with another kernel between %v: other words arrived", early, between)
			case right && early && !between && hostile:
				t.Error("what was read too early is as new as what was not")
			}
		}
	}
	for _, wrong := range []error{s.Move(a+2, b, 4, false), s.Move(a, b+2, 4, false), s.Move(a, b, 6, false), s.Move(a, b, -4, false)} {
		want(t, wrong, 1)
	}
	must.OK(t, s.Move(a, b, 0, false))
}

// Several goroutines compare on streams that may share a place to count in.
func TestDifferingConcurrently(t *testing.T) {
	kerneltest.RequireGPU(t)
	const workers, rounds, words = 8, 50, 1 << 16
	var filler kernels.Filler
	var all sync.WaitGroup
	for w := range int64(workers) {
		s, addr := newStream(t), malloc(t, 4*words)
		all.Go(func() {
			for range rounds {
				err := errors.Join(filler.Fill(addr, 1, 4*words, s.Handle()), filler.Fill(addr, 2, 4*w, s.Handle()))
				if n, err2 := filler.Differing(addr, 1, 4*words, s.Handle()); n != w || err != nil || err2 != nil {
					t.Errorf("%d words differ, want %d; errors %v, %v", n, w, err, err2)
				}
			}
		})
	}
	all.Wait()
}

// TestChecksum compares with the reference: another bit, or the same bits elsewhere, are
// another sum.
func TestChecksum(t *testing.T) {
	seen := map[uint64]string{ref.Checksum(nil): "nothing"}
	note := func(name string, x []float32) {
		sum := ref.Checksum(x)
		if was, there := seen[sum]; there {
			t.Errorf("%s has the sum of %s", name, was)
		}
		seen[sum] = name
	}
	x := make([]float32, 100_003)
	note("zeros", x)
	x[7] = 1
	note("a one", x)
	x[7], x[8] = 0, 1
	note("a one elsewhere", x)
	x[8] = math.Float32frombits(1 << 31)
	note("a negative zero", x)
	note("a part", x[:100_002])
	kerneltest.RequireGPU(t)
	s, addr := newStream(t), malloc(t, 4*len(x))
	must.OK(t, s.Upload(addr, bytesOf(x)))
	for _, n := range []int{0, 1, 9, 4096, len(x)} {
		if sum, err := s.Checksum(addr, 4*int64(n)); sum != ref.Checksum(x[:n]) || err != nil {
			t.Errorf("%d numbers: %016x, %v, want %016x", n, sum, err, ref.Checksum(x[:n]))
		}
	}
	if _, err := s.Checksum(addr, 3); err == nil {
		t.Error("a checksum of 3 bytes")
	}
}
