package kernels_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

var _ allocator.Filler = kernels.Driver{}

func TestWords(t *testing.T) {
	kerneltest.RequireGPU(t)
	const bytes = 40 << 20
	var d kernels.Driver
	s, err := kernels.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	addr, err := d.Malloc(bytes)
	if err != nil {
		t.Fatal(errors.Join(err, s.Close()))
	}
	defer func() {
		if err := errors.Join(s.Close(), d.Free(addr)); err != nil {
			t.Error(err)
		}
	}()
	differing := func(from, length, want int64, value uint32) {
		t.Helper()
		if n, err := d.Differing(addr+uintptr(from), value, length, s.Handle()); n != want || err != nil {
			t.Errorf("%d words of %d bytes from %d on differ from %#x, want %d; error %v", n, length, from, value, want, err)
		}
	}
	fill := func(from, length int64, value uint32) {
		t.Helper()
		if err := d.Fill(addr+uintptr(from), value, length, s.Handle()); err != nil {
			t.Error(err)
		}
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
		if err := d.Fill(addr+uintptr(wrong[0]), 1, wrong[1], s.Handle()); err == nil {
			t.Errorf("Fill of %d bytes from %d on: no error", wrong[1], wrong[0])
		}
		if _, err := d.Differing(addr+uintptr(wrong[0]), 1, wrong[1], s.Handle()); err == nil {
			t.Errorf("Differing of %d bytes from %d on: no error", wrong[1], wrong[0])
		}
	}
	for _, cycles := range []int64{-1, 2e9 + 1} {
		if err := s.Spin(cycles); err == nil {
			t.Errorf("Spin(%d): no error", cycles)
		}
	}
	if err := errors.Join(s.Spin(0), s.Spin(1000), s.Synchronize()); err != nil {
		t.Error(err)
	}
}

// Several goroutines compare on streams that may share a place to count in.
func TestDifferingConcurrently(t *testing.T) {
	kerneltest.RequireGPU(t)
	const workers, rounds, words = 8, 50, 1 << 16
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			errs <- func() error {
				var d kernels.Driver
				s, err := kernels.NewStream()
				if err != nil {
					return err
				}
				addr, err := d.Malloc(4 * words)
				if err != nil {
					return errors.Join(err, s.Close())
				}
				for range rounds {
					err = errors.Join(err, d.Fill(addr, 1, 4*words, s.Handle()), d.Fill(addr, 2, int64(4*w), s.Handle()))
					n, e := d.Differing(addr, 1, 4*words, s.Handle())
					if err = errors.Join(err, e); n != int64(w) && err == nil {
						err = errors.New("wrong count")
					}
				}
				return errors.Join(err, s.Close(), d.Free(addr))
			}()
		}()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestMemPoolOptions(t *testing.T) {
	if err := kernels.Available(); err != nil {
		if _, err := kernels.NewMemPoolWith(kernels.DefaultMemPoolOptions()); err == nil {
			t.Error("NewMemPoolWith without a device: no error")
		}
	}
	kerneltest.RequireGPU(t)
	if _, err := kernels.NewMemPoolWith(kernels.MemPoolOptions{ReleaseThreshold: -1}); err == nil {
		t.Error("a release threshold of -1 is no error")
	}
	s, err := kernels.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []kernels.MemPoolOptions{{}, kernels.DefaultMemPoolOptions(), {ReleaseThreshold: 1 << 30, Opportunistic: true}} {
		p, err := kernels.NewMemPoolWith(o)
		if err != nil {
			t.Fatal(err)
		}
		addr, err := p.MallocAsync(64<<20, s.Handle())
		if err = errors.Join(err, p.FreeAsync(addr, s.Handle()), s.Synchronize()); err != nil {
			t.Fatal(err)
		}
		reserved, _, err := p.PoolReserved()
		if err != nil {
			t.Error(err)
		}
		if kept := reserved >= 64<<20; kept != (o.ReleaseThreshold > 0) {
			t.Errorf("%+v: %d bytes reserved after a synchronisation", o, reserved)
		}
		if err := p.ClosePool(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
