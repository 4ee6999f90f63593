package allocator_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestAs(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := newPool(t, f, allocator.PoolOptions{})
	a := allocator.NewTimed(allocator.NewTrace(allocator.NewLimit(p, 1<<20), 4))
	if got, ok := allocator.As[*allocator.Pool](a); !ok || got != p {
		t.Errorf("As[*Pool] = %v, %v, want the wrapped pool", got, ok)
	}
	if got, ok := allocator.As[*allocator.Plan](a); ok || got != nil {
		t.Errorf("As[*Plan] = %v, %v, want none", got, ok)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestLimit(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	l := allocator.NewLimit(newPool(t, f, allocator.PoolOptions{}), 1000*256)
	b, err := l.Alloc(999*256-1, 1, "within")
	if err != nil {
		t.Fatal(err)
	}
	var oom *allocator.OutOfMemoryError
	if _, err := l.Alloc(257, 1, "beyond"); !errors.As(err, &oom) || oom.Limit != 1000*256 || oom.Tag != "beyond" {
		t.Errorf("Alloc beyond the limit: %v", err)
	}
	c, err := l.Alloc(256, 1, "rest")
	if err != nil {
		t.Errorf("Alloc up to the limit: %v", err)
	}
	if err := errors.Join(l.Free(b, 1), l.Free(c, 1)); err != nil {
		t.Error(err)
	}
	if err := l.Free(c, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("double free: %v", err)
	}
	if _, err := l.Alloc(1000*256+1, 1, "more than ever"); !errors.As(err, &oom) {
		t.Errorf("Alloc of more than the limit: %v", err)
	}
	b, err = l.Alloc(1000*256, 1, "all")
	if err := errors.Join(err, l.Free(b, 1), l.Close()); err != nil {
		t.Error(err)
	}
}

// TestLimitError looks at what a Limit that is in the way says.
func TestLimitError(t *testing.T) {
	for _, c := range []struct {
		name         string
		most, beside int64 // bytes; those handed out by the pool itself
		used, asked  int64 // bytes
		want, advice string
	}{
		{"nothing used", 8 << 20, 0, 0, 9 << 20, "0 allocated", "the limit must be 9437184 at least"},
		{"full", 8 << 20, 0, 8 << 20, 256, "8388608 allocated", "the limit must be 8388864 at least"},
		{"beside others", 8 << 20, 4 << 20, 8 << 20, 256, "12582912 allocated", "the limit must be 8388864 at least"},
		{"of nothing", 0, 0, 0, 0, "0 allocated", "smaller"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{})
			l := allocator.NewLimit(p, c.most)
			for from, bytes := range map[allocator.Allocator]int64{p: c.beside, l: c.used} {
				if bytes == 0 {
					continue
				}
				if _, err := from.Alloc(bytes, 1, "held"); err != nil {
					t.Fatal(err)
				}
			}
			_, err := l.Alloc(c.asked, 1, "beyond")
			var oom *allocator.OutOfMemoryError
			if !errors.As(err, &oom) || oom.LargestFree != -1 || !strings.Contains(oom.Advice, c.advice) {
				t.Fatalf("Alloc beyond the limit: %v, want no largest free block, and the advice %q", err, c.advice)
			}
			if text := err.Error(); !strings.Contains(text, c.want) || strings.Contains(text, "fragmentation") {
				t.Errorf("text %q, want %q and no fragmentation", text, c.want)
			}
			var leak *allocator.LeakError
			if err := l.Close(); err != nil && !errors.As(err, &leak) {
				t.Error(err)
			}
			if _, err := l.Alloc(c.asked, 1, "late"); !errors.Is(err, allocator.ErrClosed) {
				t.Errorf("Alloc after Close: %v, want ErrClosed", err)
			}
		})
	}
}

// TestLimitBesideRefused asks for what fits while another goroutine asks, over
// and over, for more than the limit: its refusals take nothing.
func TestLimitBesideRefused(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	l := allocator.NewLimit(newPool(t, f, allocator.PoolOptions{}), 1<<20)
	started, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		close(started)
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			var oom *allocator.OutOfMemoryError
			if _, err := l.Alloc(1<<20+1, 2, "too large"); !errors.As(err, &oom) {
				stopped <- fmt.Errorf("Alloc of more than the limit: %w", err)
				return
			}
		}
	}()
	<-started
	for i := range 50_000 {
		b, err := l.Alloc(1<<20, 1, "fits")
		if err := errors.Join(err, l.Free(b, 1)); err != nil {
			t.Errorf("round %d: %v", i, err)
			break
		}
	}
	close(stop)
	if err := errors.Join(<-stopped, l.Close()); err != nil {
		t.Error(err)
	}
}

// foreign is an Allocator that a caller of the package wrote.
type foreign struct{ allocator.Allocator }

// TestLimitOfChangedBlocks changes the size of each Block before it is freed: the
// limit stays what it is.
func TestLimitOfChangedBlocks(t *testing.T) {
	const most = 1 << 20
	pool := func(f *allocatortest.Fake) allocator.Allocator { return newPool(t, f, allocator.PoolOptions{}) }
	for name, open := range map[string]func(*allocatortest.Fake) allocator.Allocator{
		"pool":    pool,
		"plan":    func(f *allocatortest.Fake) allocator.Allocator { return newPlan(t, f) },
		"malloc":  func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) },
		"async":   func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) },
		"poison":  func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewPoison(pool(f), f) },
		"limit":   func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewLimit(pool(f), 2*most) },
		"trace":   func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewTrace(pool(f), 10) },
		"timed":   func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewTimed(pool(f)) },
		"foreign": func(f *allocatortest.Fake) allocator.Allocator { return foreign{pool(f)} },
		"timed foreign": func(f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewTimed(foreign{pool(f)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			l := allocator.NewLimit(open(f), most)
			for _, size := range []int64{0, -most, most / 2, 1 << 40, math.MaxInt64, math.MinInt64} {
				b, err := l.Alloc(most, 1, "all")
				if err != nil {
					t.Fatalf("Alloc of all there is, before size %d: %v", size, err)
				}
				if _, err := l.Alloc(1, 1, "more"); err == nil {
					t.Fatalf("Alloc beyond the limit, before size %d, was met", size)
				}
				b.Size = size
				if err := l.Free(b, 1); err != nil {
					t.Fatalf("Free with size %d: %v", size, err)
				}
				if err := l.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
					t.Errorf("second Free with size %d: %v", size, err)
				}
			}
			f.Synchronize()
			if err := errors.Join(l.Close(), f.Faults(), f.Leftover()); err != nil {
				t.Error(err)
			}
		})
	}
}
