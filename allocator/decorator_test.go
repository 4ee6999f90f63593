package allocator_test

import (
	"errors"
	"maps"
	"math"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// allocFrom allocates a block, which must succeed.
func allocFrom(t testing.TB, a allocator.Allocator, bytes int64, s allocator.Stream, tag string) allocator.Block {
	b, err := a.Alloc(bytes, s, tag)
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
	return b
}

// closeOn closes a, whose work on f has ended, and finds no fault and nothing left behind.
func closeOn(t testing.TB, f *allocatortest.Fake, a allocator.Allocator) {
	t.Helper()
	f.Synchronize()
	must.OK(t, a.Close(), f.Faults(), f.Leftover())
}

// injected ends the test unless err is the fault that FailAt injected.
func injected(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, allocatortest.ErrInjected) {
		t.Fatalf("error %v, want the injected one", err)
	}
}

// openers open an allocator of each kind.
var openers = map[string]func(testing.TB, *allocatortest.Fake) allocator.Allocator{
	"pool": func(t testing.TB, f *allocatortest.Fake) allocator.Allocator {
		return newPool(t, f, allocator.PoolOptions{})
	},
	"malloc": func(_ testing.TB, f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) },
	"async":  func(_ testing.TB, f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) },
	"poison": func(t testing.TB, f *allocatortest.Fake) allocator.Allocator {
		return allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	},
}

// foreign is an Allocator from outside the package.
type foreign struct{ allocator.Allocator }

func TestAs(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := newPool(t, f, allocator.PoolOptions{})
	a := allocator.NewTimed(allocator.NewTrace(allocator.NewLimit(p, 1<<20), 4))
	if got, ok := allocator.As[*allocator.Pool](a); !ok || got != p {
		t.Errorf("As[*Pool] = %v, %v, want the wrapped pool", got, ok)
	}
	if got, ok := allocator.As[*allocator.Async](a); ok || got != nil {
		t.Errorf("As[*Async] = %v, %v, want none", got, ok)
	}
	must.OK(t, a.Close())
}

func TestLimit(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	l := allocator.NewLimit(newPool(t, f, allocator.PoolOptions{}), 1000*256)
	b := allocFrom(t, l, 999*256-1, 1, "within")
	var oom *allocator.OutOfMemoryError
	if _, err := l.Alloc(257, 1, "beyond"); !errors.As(err, &oom) || oom.Limit != 1000*256 || oom.Tag != "beyond" {
		t.Errorf("Alloc beyond the limit: %v", err)
	}
	c := allocFrom(t, l, 256, 1, "rest")
	must.OK(t, l.Free(b, 1), l.Free(c, 1))
	if err := l.Free(c, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("double free: %v", err)
	}
	if _, err := l.Alloc(1000*256+1, 1, "more than ever"); !errors.As(err, &oom) {
		t.Errorf("Alloc of more than the limit: %v", err)
	}
	must.OK(t, l.Free(allocFrom(t, l, 1000*256, 1, "all"), 1), l.Close())
}

// TestLimitError reads the errors of a Limit.
func TestLimitError(t *testing.T) {
	for _, c := range []struct {
		name         string
		most, others int64 // bytes; others are handed out by the pool itself
		used, asked  int64 // bytes
		want, advice string
	}{
		{"nothing used", 8 << 20, 0, 0, 9 << 20, "0 allocated", "the limit must be at least 9437184"},
		{"full", 8 << 20, 0, 8 << 20, 256, "8388608 allocated", "the limit must be at least 8388864"},
		{"pool in use", 8 << 20, 4 << 20, 8 << 20, 256, "12582912 allocated", "the limit must be at least 8388864"},
		{"of nothing", 0, 0, 0, 0, "0 allocated", "smaller"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{})
			l := allocator.NewLimit(p, c.most)
			for from, bytes := range map[allocator.Allocator]int64{p: c.others, l: c.used} {
				if bytes > 0 {
					allocFrom(t, from, bytes, 1, "held")
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

// TestLimitOfChangedBlocks changes the size of each Block before its Free: the count of
// used bytes ignores that.
func TestLimitOfChangedBlocks(t *testing.T) {
	const most = 1 << 20
	wrapped := maps.Clone(openers)
	for name, wrap := range map[string]func(allocator.Allocator) allocator.Allocator{
		"limit":         func(a allocator.Allocator) allocator.Allocator { return allocator.NewLimit(a, 2*most) },
		"trace":         func(a allocator.Allocator) allocator.Allocator { return allocator.NewTrace(a, 10) },
		"timed":         func(a allocator.Allocator) allocator.Allocator { return allocator.NewTimed(a) },
		"foreign":       func(a allocator.Allocator) allocator.Allocator { return foreign{a} },
		"timed foreign": func(a allocator.Allocator) allocator.Allocator { return allocator.NewTimed(foreign{a}) },
	} {
		wrapped[name] = func(t testing.TB, f *allocatortest.Fake) allocator.Allocator { return wrap(openers["pool"](t, f)) }
	}
	for name, open := range wrapped {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			l := allocator.NewLimit(open(t, f), most)
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
			closeOn(t, f, l)
		})
	}
}
