package allocator_test

import (
	"cmp"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// refusing is a driver that refuses some streams, as a driver refuses destroyed ones.
type refusing struct {
	*allocatortest.Fake
	streams map[allocator.Stream]bool
}

var errNoStream = errors.New("no such stream")

func (d *refusing) RecordEvent(event, s uintptr) error {
	if d.streams[s] {
		return errNoStream
	}
	return d.Fake.RecordEvent(event, s)
}

func (d *refusing) WaitEvent(s, event uintptr) error {
	if d.streams[s] {
		return errNoStream
	}
	return d.Fake.WaitEvent(s, event)
}

// newRefusingRig returns a rig of a fake device, and the set of streams that its driver refuses,
// which is empty.
func newRefusingRig(t *testing.T, device int64, o allocator.PoolOptions) (*rig, map[allocator.Stream]bool) {
	t.Helper()
	d := &refusing{allocatortest.NewFake(device), map[allocator.Stream]bool{}}
	return newRigOver(t, d, d.Fake, o), d.streams
}

// TestRefusedFree frees a block on a stream that the driver refuses. The block stays live, with the
// streams that it named before.
func TestRefusedFree(t *testing.T) {
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		for _, c := range []struct {
			name   string
			record []allocator.Stream // named before
			events int64              // recorded by the Free that works
		}{
			{"of no other stream", nil, 0},
			{"named with RecordStream", []allocator.Stream{2, 3}, 2},
		} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				r, refused := newRefusingRig(t, deviceBytes, allocator.PoolOptions{Segments: kind})
				b := r.alloc(4<<20, 1)
				for _, s := range c.record {
					r.must(r.RecordStream(b, s))
				}
				refused[9] = true
				for range 2 {
					if err := r.Free(b, 9); !errors.Is(err, errNoStream) {
						t.Fatalf("Free on a stream that the driver refuses: %v", err)
					}
				}
				r.check()
				if live := r.Live(); len(live) != 1 {
					t.Errorf("%d blocks handed out after a Free that failed, want 1", len(live))
				}
				before := r.Stats().DriverCalls
				r.must(r.Free(b, 1))
				if calls := r.Stats().DriverCalls - before; c.events == 0 && calls != 0 || calls < c.events {
					t.Errorf("%d driver calls to free the block of %d other streams", calls, c.events)
				}
				r.close()
			})
		}
	}
}

// TestRefusedStream destroys a stream that was not released while other streams request memory. They
// lose only its own memory.
func TestRefusedStream(t *testing.T) {
	const device, gone, healthy, third = 256 << 20, 5, 6, 7
	for _, c := range []struct {
		name    string
		options allocator.PoolOptions
		prepare func(r *rig) // what stream gone leaves behind
	}{
		{"whole segments", allocator.PoolOptions{}, func(r *rig) {
			for range 200 { // so that other streams' memory is looked at before the driver's
				r.must(r.Free(r.alloc(64<<20, gone), gone))
			}
		}},
		{"parts", allocator.PoolOptions{}, func(r *rig) {
			var free []allocator.Block
			for range 8 {
				free = append(free, r.alloc(6<<20, gone))
				r.alloc(1<<20, gone)
			}
			r.freeAll(free, gone)
		}},
		{"waiting for another stream", allocator.PoolOptions{}, func(r *rig) {
			b := r.alloc(64<<20, gone)
			r.share(b, gone, third)
			r.must(r.Free(b, gone))
		}},
		{"of the opportunistic policy", allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}, func(r *rig) {
			r.must(r.Free(r.alloc(64<<20, gone), gone))
		}},
		{"of the same-stream policy", allocator.PoolOptions{Reuse: allocator.ReuseSameStream}, func(r *rig) {
			r.must(r.Free(r.alloc(64<<20, gone), gone))
		}},
		{"above the garbage-collection threshold", allocator.PoolOptions{GCThreshold: 0.1}, func(r *rig) {
			r.must(r.Free(r.alloc(64<<20, gone), gone))
		}},
	} {
		for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				c.options.Segments = kind
				r, refused := newRefusingRig(t, device, c.options)
				other := r.alloc(8<<20, third)
				before := r.Stats().Reserved
				c.prepare(r)
				lost := r.Stats().Reserved - before
				left := len(r.Live()) - 1
				refused[gone] = true

				var blocks []allocator.Block
				for bytes := lost; bytes+16<<20 <= device; bytes += 4 << 20 {
					blocks = append(blocks, r.alloc(4<<20, healthy))
				}
				r.freeAll(blocks, healthy)
				blocks = []allocator.Block{r.alloc(device-lost-16<<20, healthy)}
				r.check()

				_, err := r.Alloc(24<<20, healthy, "one too many")
				var oom *allocator.OutOfMemoryError
				if !errors.As(err, &oom) || !errors.Is(err, errNoStream) {
					t.Fatalf("Alloc of what only the stream has: %v", err)
				}
				if text := err.Error(); strings.Contains(text, "\n") || !strings.Contains(oom.Advice, "ReleaseStream") {
					t.Errorf("text %q, want one line that advises to release streams", text)
				}
				r.freeAll(blocks, healthy)
				r.must(r.Free(other, third))
				if err := r.Trim(0); !errors.Is(err, errNoStream) || strings.Contains(err.Error(), "\n") {
					t.Errorf("Trim: %v, want the refusal in one line", err)
				}
				if got := r.Stats().Reserved; got > lost {
					t.Errorf("%d bytes reserved after Trim, of which the stream has %d", got, lost)
				}
				r.check()
				r.fake.Synchronize()
				var leak *allocator.LeakError
				if err := r.Close(); errors.As(err, &leak) != (left > 0) || leak == nil && err != nil {
					t.Errorf("Close: %v", err)
				}
				r.must(r.fake.Leftover())
				r.must(r.fake.Faults())
			})
		}
	}
}

// TestFailedOrder makes the driver fail once when a request's stream should wait for other work. The
// request fails with that error, even if other memory would serve it, and succeeds when repeated.
func TestFailedOrder(t *testing.T) {
	const mib = 1 << 20
	kinds := []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc}
	// shared frees a block of stream on that stream 9 still uses.
	shared := func(r *rig, bytes int64, on allocator.Stream) {
		b := r.alloc(bytes, on)
		r.share(b, on, 9)
		r.must(r.Free(b, on))
	}
	for _, c := range []struct {
		name    string
		kinds   []string
		options allocator.PoolOptions
		call    string
		nth     int   // of the calls that the request makes
		bytes   int64 // asked for on stream 1
		prepare func(r *rig) (kept []allocator.Block)
	}{
		{"asking for its own blocks", kinds, allocator.PoolOptions{}, "QueryEvent", 1, 60 * mib, func(r *rig) []allocator.Block {
			shared(r, 60*mib, 1)
			return nil
		}},
		{"waiting for its own blocks of rounds ago", kinds, allocator.PoolOptions{}, "WaitEvent", 1, 8 * mib, func(r *rig) []allocator.Block {
			for range 4 {
				shared(r, 8*mib, 1)
			}
			return nil
		}},
		{"waiting for its own blocks at last", kinds, allocator.PoolOptions{}, "WaitEvent", 1, 60 * mib, func(r *rig) []allocator.Block {
			shared(r, 60*mib, 1)
			return nil
		}},
		{"unused memory of another stream", kinds, allocator.PoolOptions{}, "WaitEvent", 1, 60 * mib, func(r *rig) []allocator.Block {
			r.must(r.Free(r.alloc(60*mib, 2), 2))
			return nil
		}},
		{"unused memory of another stream, if its work is done", kinds, allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}, "QueryEvent", 1, 60 * mib, func(r *rig) []allocator.Block {
			r.must(r.Free(r.alloc(60*mib, 2), 2))
			r.fake.Finish()
			return nil
		}},
		{"a part of another stream's memory", kinds, allocator.PoolOptions{PreallocateBytes: 64 * mib}, "WaitEvent", 1, 40 * mib, func(r *rig) []allocator.Block {
			b, kept := r.alloc(50*mib, 2), r.alloc(mib, 2)
			r.must(r.Free(b, 2))
			return []allocator.Block{kept}
		}},
		{"what waits on another stream", kinds, allocator.PoolOptions{}, "WaitEvent", 2, 60 * mib, func(r *rig) []allocator.Block {
			shared(r, 60*mib, 2)
			return nil
		}},
		{"a part of a page of another stream", kinds[:1], allocator.PoolOptions{MaxBytes: 2 * mib}, "WaitEvent", 1, mib / 2, func(r *rig) []allocator.Block {
			b, kept := r.alloc(mib, 2), r.alloc(mib, 2)
			r.must(r.Free(b, 2))
			return []allocator.Block{kept}
		}},
		{"pages here and there", kinds[:1], allocator.PoolOptions{}, "WaitEvent", 1, 32 * mib, func(r *rig) (kept []allocator.Block) {
			var freed []allocator.Block
			for range 8 {
				freed = append(freed, r.alloc(4*mib, 2))
				kept = append(kept, r.alloc(4*mib, 2))
			}
			r.freeAll(freed, 2)
			return kept
		}},
	} {
		for _, kind := range c.kinds {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				o := c.options
				o.Segments, o.MaxBytes = kind, cmp.Or(o.MaxBytes, 64*mib)
				r := newRig(t, o)
				kept := c.prepare(r)
				r.fake.FailAt(c.nth, c.call)
				_, err := r.Alloc(c.bytes, 1, "fails")
				var oom *allocator.OutOfMemoryError
				if !errors.Is(err, allocatortest.ErrInjected) || errors.As(err, &oom) {
					t.Errorf("Alloc where %s fails: %v", r.fake.Failed(), err)
				}
				r.check()
				r.must(r.Free(r.alloc(c.bytes, 1), 1))
				r.freeAll(kept, 2)
				r.close()
			})
		}
	}
}

// TestOutOfMemoryOnARefusingDevice requests too much of a device that does not report free memory
// either, like a lost one. The error must be one line.
func TestOutOfMemoryOnARefusingDevice(t *testing.T) {
	for _, name := range []string{"pool", "malloc", "async"} {
		f := allocatortest.NewFake(16 << 20)
		a := openers[name](t, f)
		f.FailAt(1, "MemInfo")
		_, err := a.Alloc(32<<20, 1, "too much")
		var oom *allocator.OutOfMemoryError
		if !errors.As(err, &oom) || !errors.Is(err, allocatortest.ErrInjected) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %q", name, err)
		}
		if err := errors.Join(a.Close(), f.Faults(), f.Leftover()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestReleaseBesideFree releases and destroys a stream while another thread frees a block that names it.
func TestReleaseBesideFree(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	r.fake.CreateStream(2)
	b := r.alloc(1000, 1)
	r.must(r.RecordStream(b, 2))
	done := make(chan error, 1)
	var called atomic.Bool
	r.fake.Before(func(name string) {
		if name == "NewEvent" && called.CompareAndSwap(false, true) {
			go func() { err := r.pool.ReleaseStream(2); r.fake.DestroyStream(2); done <- err }()
			time.Sleep(10 * time.Millisecond) // enough for a release that does not wait
		}
	})
	r.must(r.Free(b, 1))
	r.must(<-done)
	r.close()
}
