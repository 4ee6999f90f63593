package allocator_test

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// A sleeper is a pool with blocks whose contents are known.
type sleeper struct {
	*allocatortest.Guard
	t    *testing.T
	fake *allocatortest.Fake
	of   interface {
		allocator.Allocator
		allocator.StreamReleaser
		Sleep(keep bool) error
		Wake() error
		Check() error
		Map() allocator.Map
	}
	held []allocator.Block
	ids  map[allocator.Block]byte
}

// sleepPage is small, so that few blocks need stitches.
const sleepPage = 64 << 10

func newSleeper(t *testing.T, o allocator.PoolOptions) *sleeper {
	t.Helper()
	f := newSleepDevice()
	p := newPool(t, f, o)
	return &sleeper{Guard: allocatortest.NewGuard(p, f), t: t, fake: f, of: p, ids: map[allocator.Block]byte{}}
}

func newSleepDevice() *allocatortest.Fake {
	f := allocatortest.NewFake(8 << 20).WithPages(sleepPage).Strict()
	for s := range allocator.Stream(5) {
		f.CreateStream(s)
	}
	return f
}

// hold allocates a block of known contents.
func (s *sleeper) hold(size int64, on allocator.Stream) allocator.Block {
	s.t.Helper()
	b := allocFrom(s.t, s, size, on, "held")
	s.ids[b] = byte(len(s.ids) + 1)
	must.OK(s.t, s.fake.Write(b.Addr, bytes.Repeat([]byte{s.ids[b]}, int(size))))
	s.held = append(s.held, b)
	return b
}

// drop frees a block that is held.
func (s *sleeper) drop(b allocator.Block, on allocator.Stream) {
	s.t.Helper()
	must.OK(s.t, s.Free(b, on))
	s.held = slices.DeleteFunc(s.held, func(o allocator.Block) bool { return o == b })
}

// fill makes the blocks of all kinds: of several streams, in stitches, waiting for other streams, of a
// released stream, and neighbours.
func (s *sleeper) fill() {
	s.t.Helper()
	var odd []allocator.Block
	for i := range 12 {
		b := s.hold(sleepPage, 1)
		if i%2 == 1 {
			odd = append(odd, b)
		}
	}
	for range 5 {
		s.hold(3000, 2)
	}
	s.hold(5*sleepPage/2, 3)
	for _, b := range odd {
		s.drop(b, 1)
	}
	s.hold(3*sleepPage, 1)
	s.hold(5*sleepPage/2, 1)
	for range 2 {
		shared := s.hold(2*sleepPage, 2)
		must.OK(s.t, s.RecordStream(shared, 4))
		s.fake.Order(2, 4)
		must.OK(s.t, s.Use(shared, 4))
	}
	last := len(s.held) - 1
	s.drop(s.held[last], 2) // it waits for stream 4; the other one is live, and used afterwards
	must.OK(s.t, s.Use(s.held[last-1], 4))
	s.hold(sleepPage/2, 3)
	must.OK(s.t, s.of.ReleaseStream(3))
	if st := s.Stats(); st.Stitches < 2 {
		s.t.Fatalf("too few stitches: %+v", st)
	}
}

// intact checks the contents of all blocks that are held.
func (s *sleeper) intact() {
	s.t.Helper()
	for _, b := range s.held {
		got, err := s.fake.Read(b.Addr, b.Size)
		must.OK(s.t, err)
		if n := bytes.Count(got, []byte{s.ids[b]}); n != len(got) {
			s.t.Fatalf("%d of %d bytes at %#x were lost", len(got)-n, len(got), b.Addr)
		}
		must.OK(s.t, s.Use(b, 1))
	}
}

// finish allocates what was possible before, frees all and closes.
func (s *sleeper) finish() {
	s.t.Helper()
	for size := int64(1000); size <= 1<<20; size *= 4 {
		for on := range allocator.Stream(3) {
			s.hold(size, on)
		}
	}
	s.intact()
	s.fake.Synchronize()
	for len(s.held) > 0 {
		s.drop(s.held[0], 1)
	}
	must.OK(s.t, s.of.Check())
	closeOn(s.t, s.fake, s)
}

// TestSleep puts pools with blocks of all kinds to sleep, calls them and wakes them.
func TestSleep(t *testing.T) {
	for _, strategy := range virtualStrategies() {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", strategy, keep), func(t *testing.T) {
				s := newSleeper(t, allocator.PoolOptions{Strategy: strategy, KeepMapped: keep})
				s.fill()
				live, before, places := s.Live(), s.Stats(), s.of.Map()
				for range 3 {
					s.fake.Sleep()
					must.OK(t, s.of.Sleep(keep))
					if st := s.Stats(); st.Reserved != 0 || s.fake.Used() != 0 || st.Allocated != before.Allocated {
						t.Fatalf("asleep, %d bytes are held: %+v", s.fake.Used(), st)
					}
					calls := s.fake.Calls()
					must.OK(t, s.of.Sleep(!keep), s.Trim(0))
					for _, size := range []int64{0, 1000, 3000, sleepPage, 3 * sleepPage, 1 << 40} {
						if _, err := s.Alloc(size, 1, "asleep"); !errors.Is(err, allocator.ErrAsleep) {
							t.Fatalf("Alloc while the pool is asleep: %v", err)
						}
						pool := s.of.(*allocator.Pool)
						if _, err := pool.TryAlloc(min(size, 1<<30), 1, "asleep"); !errors.Is(err, allocator.ErrAsleep) {
							t.Fatalf("TryAlloc while the pool is asleep: %v", err)
						}
						if err := pool.Reserve(size); !errors.Is(err, allocator.ErrAsleep) {
							t.Fatalf("Reserve while the pool is asleep: %v", err)
						}
					}
					if n := s.fake.Calls() - calls; n > 0 || !reflect.DeepEqual(s.Live(), live) {
						t.Errorf("%d driver calls while asleep; live are %v", n, s.Live())
					}
					must.OK(t, s.of.Check(), s.of.Wake(), s.fake.Wake())
					calls = s.fake.Calls()
					must.OK(t, s.of.Wake(), s.of.Check())
					if st := s.Stats(); s.fake.Calls() > calls || st.Reserved != before.Reserved || st.Mappings <= before.Mappings {
						t.Errorf("awake: %+v, before %+v", st, before)
					}
					if keep {
						s.intact()
					}
				}
				for i, g := range s.of.Map().Segments {
					if p := places.Segments[i]; g.Addr != p.Addr || g.Bytes != p.Bytes || g.Kind != p.Kind {
						t.Errorf("segment %+v was %+v", g, p)
					}
				}
				if !keep {
					for _, b := range s.held {
						s.ids[b] = 0
					}
				}
				s.finish()
			})
		}
	}
}

// TestSleepWaits queues work on the streams of a pool and of blocks before Sleep. The device finds memory
// that is copied or unmapped too early.
func TestSleepWaits(t *testing.T) {
	for _, keep := range []bool{false, true} {
		s := newSleeper(t, allocator.PoolOptions{})
		s.fill()
		must.OK(t, s.fake.Faults())
		s.fake.Sleep()
		waits := s.Stats().HostWaits
		must.OK(t, s.of.Sleep(keep))
		if n := s.Stats().HostWaits - waits; n > 4 {
			t.Errorf("the host waits %d times for three streams and the event of a block", n)
		}
		must.OK(t, s.of.Wake(), s.fake.Wake())
		for _, b := range s.held {
			if !keep {
				s.ids[b] = 0
			}
		}
		s.finish()
	}
}

// TestCallsWhileAsleep frees blocks and releases streams of pools that sleep.
func TestCallsWhileAsleep(t *testing.T) {
	for name, call := range map[string]func(s *sleeper){
		"Free on the same stream":   func(s *sleeper) { s.drop(s.held[0], 1) },
		"Free on another stream":    func(s *sleeper) { s.drop(s.held[1], 2) },
		"Free of all":               func(s *sleeper) { s.freeAll() },
		"RecordStream and Free":     func(s *sleeper) { must.OK(s.t, s.RecordStream(s.held[0], 2)); s.drop(s.held[0], 1) },
		"ReleaseStream":             func(s *sleeper) { must.OK(s.t, s.of.ReleaseStream(1)) },
		"ReleaseStream, and Free":   func(s *sleeper) { must.OK(s.t, s.of.ReleaseStream(2)); s.freeAll() },
		"Trim, ResetPeaks and Live": func(s *sleeper) { must.OK(s.t, s.Trim(-1)); s.ResetPeaks(); s.Live() },
	} {
		for _, strategy := range virtualStrategies() {
			t.Run(name+"/"+strategy, func(t *testing.T) {
				s := newSleeper(t, allocator.PoolOptions{Strategy: strategy})
				s.fill()
				s.fake.Synchronize()
				s.fake.Sleep()
				must.OK(t, s.of.Sleep(true))
				call(s)
				must.OK(t, s.of.Check())
				if _, err := s.Alloc(3000, 1, "asleep"); !errors.Is(err, allocator.ErrAsleep) {
					t.Errorf("Alloc: %v", err)
				}
				must.OK(t, s.of.Wake(), s.fake.Wake(), s.of.Check())
				if st := s.Stats(); st.PeakReserved < st.Reserved {
					t.Errorf("a peak below what is reserved: %+v", st)
				}
				s.intact()
				s.finish()
			})
		}
	}
}

// freeAll frees all blocks, with work between streams in order.
func (s *sleeper) freeAll() {
	s.t.Helper()
	for len(s.held) > 0 {
		s.drop(s.held[0], 1)
	}
}

// A copyCounter counts what is copied.
type copyCounter struct {
	*allocatortest.Fake
	to, from, copies, buffers int64
}

func (d *copyCounter) MallocHost(bytes int64) (uintptr, error) {
	d.buffers++
	return d.Fake.MallocHost(bytes)
}

func (d *copyCounter) CopyToHost(host, addr uintptr, bytes int64) error {
	d.to += bytes
	d.copies++
	return d.Fake.CopyToHost(host, addr, bytes)
}

func (d *copyCounter) CopyFromHost(addr, host uintptr, bytes int64) error {
	d.from += bytes
	return d.Fake.CopyFromHost(addr, host, bytes)
}

// TestSleepCopies counts the copies of neighbouring blocks, in one or several pieces of host memory. What
// is freed meanwhile is not copied back.
func TestSleepCopies(t *testing.T) {
	for _, c := range []struct{ buffer, copies, buffers int64 }{{1 << 30, 3, 1}, {sleepPage, 9, 8}} {
		t.Cleanup(allocator.BoundHostBuffer(c.buffer))
		d := &copyCounter{Fake: newSleepDevice()}
		p := newPool(t, d, allocator.PoolOptions{})
		s := &sleeper{Guard: allocatortest.NewGuard(p, d.Fake), t: t, fake: d.Fake, of: p, ids: map[allocator.Block]byte{}}
		for range 20 {
			s.hold(sleepPage/2, 1)
		}
		for _, i := range []int{10, 11, 10, 11} { // two holes
			s.drop(s.held[i], 1)
		}
		d.Sleep()
		must.OK(t, p.Sleep(true))
		if d.to != 16*sleepPage/2 || d.copies != c.copies || d.buffers != c.buffers {
			t.Errorf("%d copies of %d bytes to %d buffers, want %d to %d", d.copies, d.to, d.buffers, c.copies, c.buffers)
		}
		s.drop(s.held[3], 1)
		must.OK(t, p.Wake(), d.Wake())
		if d.from != 15*sleepPage/2 {
			t.Errorf("%d bytes were copied back", d.from)
		}
		s.intact()
		s.finish()
	}
}

// TestSleepOutOfHostMemory must leave the pool awake and mapped.
func TestSleepOutOfHostMemory(t *testing.T) {
	s := newSleeper(t, allocator.PoolOptions{})
	s.fill()
	for _, call := range []string{"MallocHost", "CopyToHost", "SyncEvent"} {
		s.fake.FailAt(1, call)
		if err := s.of.Sleep(true); !errors.Is(err, allocatortest.ErrInjected) {
			t.Errorf("Sleep where %s fails: %v", call, err)
		}
		if n := s.fake.Calls("UnmapPages"); n > 0 {
			t.Errorf("%d chunks are unmapped", n)
		}
		s.hold(3000, 1)
	}
	s.intact()
	s.finish()
}

// TestWakeOutOfMemory takes the memory of the device while the pool sleeps.
func TestWakeOutOfMemory(t *testing.T) {
	s := newSleeper(t, allocator.PoolOptions{})
	s.fill()
	s.fake.Sleep()
	must.OK(t, s.of.Sleep(true))
	hog, err := s.fake.Malloc(s.fake.Total() - 3*sleepPage)
	must.OK(t, err)
	for range 2 {
		err := s.of.Wake()
		var oom interface{ OutOfMemory() bool }
		if !errors.As(err, &oom) || !oom.OutOfMemory() || !strings.Contains(err.Error(), "call Wake again") {
			t.Fatalf("Wake without memory: %v", err)
		}
		if _, err := s.Alloc(3000, 1, "asleep"); !errors.Is(err, allocator.ErrAsleep) {
			t.Errorf("Alloc after a Wake that failed: %v", err)
		}
		if n := s.Stats().Reserved; n != 3*sleepPage || n != s.fake.Used()-(s.fake.Total()-3*sleepPage) {
			t.Errorf("%d bytes are reserved by a Wake that failed", n)
		}
	}
	must.OK(t, s.fake.Free(hog), s.of.Wake(), s.fake.Wake())
	s.intact()
	s.finish()
}

// TestSleepErrors puts pools to sleep that cannot.
func TestSleepErrors(t *testing.T) {
	noCopies := func() allocator.Driver { return struct{ allocator.PageDriver }{newSleepDevice()} }
	for _, c := range []struct {
		name    string
		driver  allocator.Driver
		options allocator.PoolOptions
		keep    bool
		want    error
		advice  string
	}{
		{"malloc segments", newSleepDevice(), allocator.PoolOptions{Segments: allocator.SegmentsMalloc},
			false, errors.ErrUnsupported, "use virtual segments"},
		{"no copies", noCopies(), allocator.PoolOptions{}, true, errors.ErrUnsupported, "sleep without them"},
		{"no copies, and none needed", noCopies(), allocator.PoolOptions{}, false, nil, ""},
	} {
		p := newPool(t, c.driver, c.options)
		b := allocFrom(t, p, 3000, 1, "")
		err := p.Sleep(c.keep)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.advice) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: error %q, want one line that says %q", c.name, err, c.advice)
		}
		must.OK(t, p.Wake(), p.Free(b, 1), p.Free(allocFrom(t, p, 3000, 1, ""), 1), p.Close())
		if err := errors.Join(p.Sleep(false), p.Wake()); !errors.Is(err, allocator.ErrClosed) {
			t.Errorf("%s: after Close: %v", c.name, err)
		}
	}
}
