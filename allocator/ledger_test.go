package allocator_test

import (
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// A stallingDriver is a Fake that, once armed, blocks the next call of one method: it closes inside
// and returns when resume is closed.
type stallingDriver struct {
	*allocatortest.Fake
	inside, resume chan struct{}
}

func (d *stallingDriver) arm(method string) {
	d.inside, d.resume = make(chan struct{}), make(chan struct{})
	var stalled atomic.Bool
	d.Before(func(name string) {
		if name == method && stalled.CompareAndSwap(false, true) {
			close(d.inside)
			<-d.resume
		}
	})
}

func openMalloc(d *stallingDriver) allocator.Allocator { return allocator.NewMalloc(d) }
func openAsync(d *stallingDriver) allocator.Allocator  { return allocator.NewAsync(d) }

// TestCloseBesideCalls closes an allocator, also twice at once, while another goroutine's call is in
// the driver. Nothing may be leaked, returned twice or counted twice.
func TestCloseBesideCalls(t *testing.T) {
	alloc := func(a allocator.Allocator, _ allocator.Block) error {
		_, err := a.Alloc(100, 1, "late")
		return err
	}
	free := func(a allocator.Allocator, b allocator.Block) error { return a.Free(b, 1) }
	stats := func(a allocator.Allocator, _ allocator.Block) error {
		a.Stats()
		return nil
	}
	for _, c := range []struct {
		name, method string
		open         func(*stallingDriver) allocator.Allocator
		call         func(allocator.Allocator, allocator.Block) error
		fails        bool // the driver's call
		leaks        int  // blocks that Close reports
	}{
		{name: "malloc/alloc", method: "Malloc", open: openMalloc, call: alloc, leaks: 2},
		{name: "malloc/alloc fails", method: "Malloc", open: openMalloc, call: alloc, fails: true, leaks: 1},
		{name: "malloc/free", method: "Free", open: openMalloc, call: free},
		{name: "malloc/free fails", method: "Free", open: openMalloc, call: free, fails: true, leaks: 1},
		{name: "malloc/free waits for the stream", method: "SyncEvent", open: openMalloc, call: free},
		{name: "async/alloc", method: "MallocAsync", open: openAsync, call: alloc, leaks: 2},
		{name: "async/alloc fails", method: "MallocAsync", open: openAsync, call: alloc, fails: true, leaks: 1},
		{name: "async/free", method: "FreeAsync", open: openAsync, call: free},
		{name: "async/free fails", method: "FreeAsync", open: openAsync, call: free, fails: true, leaks: 1},
		{name: "async/stats", method: "PoolReserved", open: openAsync, call: stats, leaks: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &stallingDriver{Fake: allocatortest.NewFake(deviceBytes)}
			a := c.open(d)
			b := allocFrom(t, a, 1000, 1, "early")
			d.arm(c.method)
			called, closed := make(chan error), make(chan error)
			go func() { called <- c.call(a, b) }()
			<-d.inside
			if c.fails {
				d.FailAt(1, c.method)
			}
			for range 2 {
				go func() { closed <- a.Close() }()
			}
			for !errors.Is(a.Trim(0), allocator.ErrClosed) {
				runtime.Gosched()
			}
			close(d.resume)

			if err := <-called; errors.Is(err, allocatortest.ErrInjected) != c.fails || err != nil && !c.fails {
				t.Errorf("call in progress: %v, want a failure: %v", err, c.fails)
			}
			var leak *allocator.LeakError
			first, second := <-closed, <-closed
			if errors.Is(first, allocator.ErrClosed) {
				first, second = second, first
			}
			if err := first; errors.As(err, &leak) != (c.leaks > 0) || leak != nil && leak.Blocks != c.leaks || leak == nil && err != nil {
				t.Errorf("Close: %v, want %d blocks leaked", err, c.leaks)
			}
			if st := a.Stats(); st.Allocated != 0 || st.Reserved != 0 {
				t.Errorf("after Close %d bytes are allocated, %d reserved", st.Allocated, st.Reserved)
			}
			if got := a.Live(); len(got) != 0 {
				t.Errorf("after Close %v are handed out", got)
			}
			if third := a.Close(); !errors.Is(second, allocator.ErrClosed) || !errors.Is(third, allocator.ErrClosed) {
				t.Errorf("other Closes: %v, %v", second, third)
			}
			must.OK(t, d.Faults(), d.Leftover())
		})
	}
}

// TestLeakOfManyTags leaks blocks of more tags than a line has room for.
func TestLeakOfManyTags(t *testing.T) {
	p := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{})
	for i, tag := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		allocFrom(t, p, int64(100-i), 1, tag)
	}
	err := p.Close()
	var leak *allocator.LeakError
	if !errors.As(err, &leak) || len(leak.Tags) != 10 {
		t.Fatalf("Close: %v, want a LeakError of 10 tags", err)
	}
	const want = `allocator: closed with 10 blocks of 955 bytes not freed: 1 x "a" (100 bytes), `
	if text := err.Error(); !strings.HasPrefix(text, want) || !strings.HasSuffix(text, `1 x "h" (93 bytes) and 2 other tags`) {
		t.Errorf("the text is %s", text)
	}
}

// TestStatsCountCalls compares an allocator's counts of driver calls and refused requests with those of
// the driver and of failed requests.
func TestStatsCountCalls(t *testing.T) {
	for name, open := range map[string]func(f *allocatortest.Fake) allocator.Allocator{
		"pool": func(f *allocatortest.Fake) allocator.Allocator { return newPool(t, f, allocator.PoolOptions{}) },
		"pool/malloc": func(f *allocatortest.Fake) allocator.Allocator {
			return newPool(t, f.WithoutPages(), allocator.PoolOptions{})
		},
		"async":  func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) },
		"malloc": func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) },
		"limit": func(f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewLimit(allocator.NewMalloc(f), 64<<20)
		},
	} {
		f := allocatortest.NewFake(64 << 20)
		a := open(f)
		made := f.Calls()
		var refused int64
		same := func(after string) {
			t.Helper()
			st := a.Stats()
			for _, c := range []struct {
				what      string
				got, want int64
			}{
				{"driver calls", st.DriverCalls, int64(f.Calls() - made)},
				{"waits on the host", st.HostWaits, int64(f.Calls("SyncEvent"))},
				{"mappings", st.Mappings, int64(f.Calls("MapPages"))},
				{"requests refused", st.Refused, refused},
			} {
				if c.got != c.want {
					t.Errorf("%s: after %s %d %s, of which %d are counted", name, after, c.want, c.what, c.got)
				}
			}
		}
		var err error
		do := func(what string, e error) {
			t.Helper()
			err = errors.Join(err, e)
			same(what)
		}
		same("nothing")
		b, e := a.Alloc(4<<20, 1, "shared")
		do("Alloc", e)
		recorder, _ := allocator.As[allocator.StreamRecorder](a)
		do("RecordStream", recorder.RecordStream(b, 2))
		do("Free", a.Free(b, 1))
		if _, e := a.Alloc(128<<20, 1, "too much"); e == nil {
			t.Errorf("%s: more memory than there is", name)
		}
		refused++
		same("running out")
		releaser, _ := allocator.As[allocator.StreamReleaser](a)
		do("ReleaseStream", releaser.ReleaseStream(2))
		do("Trim", a.Trim(0))
		a.ResetPeaks()
		same("ResetPeaks")
		f.Synchronize()
		do("Close", a.Close())
		if err := errors.Join(err, f.Faults(), f.Leftover()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
