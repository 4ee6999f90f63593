package allocator_test

import (
	"errors"
	"runtime"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A marker is an Allocator's way to know of other streams.
type marker interface {
	allocator.StreamRecorder
	allocator.StreamReleaser
}

// TestReleasedStreams destroys streams while blocks are handed out that were
// allocated or recorded for them.
func TestReleasedStreams(t *testing.T) {
	for name, open := range map[string]func(*allocatortest.Fake) allocator.Allocator{
		"pool":   func(f *allocatortest.Fake) allocator.Allocator { return newPool(t, f, allocator.PoolOptions{}) },
		"malloc": func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) },
		"async":  func(f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) },
	} {
		t.Run(name, func(t *testing.T) {
			const one, two, three = 1, 2, 3
			f := allocatortest.NewFake(deviceBytes)
			g := allocatortest.NewGuard(open(f), f)
			m, ok := allocator.As[marker](g.Allocator)
			if !ok {
				t.Fatal("no RecordStream and ReleaseStream")
			}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			alloc := func(s allocator.Stream) allocator.Block {
				t.Helper()
				b, err := g.Alloc(1000, s, "released")
				must(err)
				return b
			}
			recorded, freed, leaked := alloc(one), alloc(two), alloc(two)
			f.Order(one, two)
			must(g.Use(recorded, two))
			must(m.RecordStream(recorded, two))
			must(m.RecordStream(recorded, three))
			must(m.ReleaseStream(two))
			f.DestroyStream(two)

			must(g.Free(recorded, one))
			must(g.Free(freed, one))
			must(g.Use(leaked, one))
			must(g.Free(alloc(one), one))

			f.Synchronize()
			var leak *allocator.LeakError
			if err := g.Close(); !errors.As(err, &leak) || leak.Blocks != 1 {
				t.Errorf("Close: %v, want one block leaked", err)
			}
			if err := m.ReleaseStream(one); !errors.Is(err, allocator.ErrClosed) {
				t.Errorf("ReleaseStream after Close: %v", err)
			}
			if err := m.RecordStream(leaked, one); !errors.Is(err, allocator.ErrClosed) {
				t.Errorf("RecordStream after Close: %v", err)
			}
			if err := errors.Join(f.Faults(), f.Leftover()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAsyncWithoutEvents has a driver that cannot order streams.
func TestAsyncWithoutEvents(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	a := allocator.NewAsync(struct{ allocator.AsyncDriver }{f})
	b, err := a.Alloc(1000, 1, "plain")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.RecordStream(b, 2); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("RecordStream: %v, want ErrUnsupported", err)
	}
	if err := errors.Join(a.ReleaseStream(1), a.Free(b, 2), a.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// TestReleaseBesideFree releases a stream while a Free waits for it: the stream
// must exist until that has ended.
func TestReleaseBesideFree(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		open   func(*stallingDriver) allocator.Allocator
	}{
		"malloc": {"SyncEvent", openMalloc},
		"async":  {"WaitEvent", openAsync},
	} {
		t.Run(name, func(t *testing.T) {
			d := &stallingDriver{Fake: allocatortest.NewFake(deviceBytes)}
			a := c.open(d)
			m := a.(marker)
			b, err := a.Alloc(1000, 1, "shared")
			if err := errors.Join(err, m.RecordStream(b, 3), m.RecordStream(b, 2)); err != nil {
				t.Fatal(err)
			}
			d.arm(c.method)
			freed, released := make(chan error), make(chan error, 1)
			go func() { freed <- a.Free(b, 1) }()
			<-d.inside
			if err := m.RecordStream(b, 4); !errors.Is(err, allocator.ErrDoubleFree) {
				t.Errorf("RecordStream of a block that is being freed: %v", err)
			}
			go func() {
				err := m.ReleaseStream(2)
				d.DestroyStream(2)
				released <- err
			}()
			for range 1000 {
				runtime.Gosched()
			}
			select {
			case err := <-released:
				t.Errorf("ReleaseStream returned %v within a Free that waits for the stream", err)
				released <- err
			default:
			}
			close(d.resume)
			if err := errors.Join(<-freed, <-released, a.Close(), d.Faults(), d.Leftover()); err != nil {
				t.Error(err)
			}
		})
	}
}
