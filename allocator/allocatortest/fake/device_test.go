package fake

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// TestFaults shows what a Device reports of blocks, memory, streams and events, and
// what it lets pass.
func TestFaults(t *testing.T) { checkFaults(t, usual, memoryCases) }

var memoryCases = []faultCase{
	{"fill without order", "not ordered", func(s *script) { s.work(0, 512, 1, 100); s.keep(s.Fill(s.memory+256, 0, 512, 2)) }},
	{"use without order after a fill", "not ordered", func(s *script) {
		s.keep(s.Fill(s.memory, 0, 512, 2))
		s.work(0, 512, 1, 100)
	}},
	{"fills with order", "", func(s *script) {
		s.work(0, 512, 1, 100)
		s.keep(s.Fill(s.memory, 0, 512, 1))
		s.Order(1, 2)
		_, err := s.Differing(s.memory, 0, 512, 2)
		s.keep(err, s.Fill(s.memory, 1, 512, 3))
	}},
	{"fill between words", "not words", func(s *script) { s.keep(s.Fill(s.memory+2, 0, 4, 1)) }},

	{"block between units", "not aligned", func(s *script) { s.handOut(s.memory+16, 100) }},
	{"Free that failed after a fill", "", func(s *script) {
		o := s.handOut(s.memory, 512)
		s.Freeing(o)
		s.keep(s.Fill(s.memory, 0, 512, 1), s.Kept(o), s.Work(o, 1))
		s.Freed(o)
		s.handOut(s.memory+256, 512)
	}},
	{"overlap after a Free that failed", "overlaps", func(s *script) {
		o := s.handOut(s.memory, 512)
		s.Freeing(o)
		s.keep(s.Fill(s.memory, 0, 512, 1), s.Kept(o))
		s.handOut(s.memory, 512)
	}},
	{"Free that failed of memory that is gone", "some of them are not allocated", func(s *script) {
		o := s.handOut(s.memory, 512)
		s.Synchronize()
		s.Freeing(o)
		s.keep(s.Free(s.memory), s.Kept(o))
	}},
	{"Free that failed while asleep", "", func(s *script) {
		o := s.handOut(s.memory, 512)
		s.Synchronize()
		s.Sleep()
		s.keep(s.Free(s.memory))
		s.Freeing(o)
		s.keep(s.Kept(o))
	}},
	{"work that is waited for", "", func(s *script) {
		o := s.handOut(s.memory, 512)
		s.keep(s.Await(o, 2, nil))
		s.Freed(o)
		s.work(0, 512, 2, 200)
	}},
	{"work but for a stream's that is waited for", "not ordered", func(s *script) {
		o := s.handOut(s.memory, 512)
		s.keep(s.Await(o, 2, []uint32{s.StreamID(1)}))
		s.Freed(o)
		s.work(0, 512, 2, 200)
	}},

	{"malloc of nothing", "Malloc of 0 bytes", func(s *script) { _, err := s.Malloc(0); s.keep(err) }},
	{"free in use", "may still use", func(s *script) { s.work(0, 512, 1, 100); s.keep(s.Free(s.memory)) }},
	{"double free", "not allocated", func(s *script) { s.keep(s.Free(s.memory), s.Free(s.memory)) }},
	{"beyond the end", "not allocated", func(s *script) { s.work(0, 4097, 1, 100) }},

	{"no event", "event 0, which does not exist", func(s *script) { s.keep(s.WaitEvent(1, 0)) }},
	{"unknown event", "event 77, which does not exist", func(s *script) { s.keep(s.RecordEvent(77, 1)) }},
	{"destroyed event", "event 1, which does not exist", func(s *script) { s.keep(s.FreeEvent(s.event), s.SyncEvent(s.event)) }},
	{"destroyed stream", "stream 0x1, which does not exist", func(s *script) {
		s.DestroyStream(1)
		s.keep(s.RecordEvent(s.event, 1))
	}},
	{"stream made again", "", func(s *script) {
		s.work(0, 4, 1, 100)
		s.DestroyStream(1)
		s.CreateStream(1)
		s.keep(s.RecordEvent(s.event, 1), s.WaitEvent(1, s.event))
		s.work(4, 4, 1, 200)
	}},
	{"stream made again without order", "not ordered", func(s *script) {
		s.work(0, 4, 1, 100)
		s.DestroyStream(1)
		s.CreateStream(1)
		s.work(0, 4, 1, 200)
	}},
	{"released before the end of its work", "before the work on stream 0x1 was done", func(s *script) {
		s.work(0, 4, 1, 100)
		s.keep(s.StreamReleased(1))
	}},

	{"async double free", "not handed out", func(s *script) {
		addr, err := s.MallocAsync(100, 1)
		s.keep(err, s.FreeAsync(addr, 1), s.FreeAsync(addr, 1))
	}},
	{"async reuse in order", "", func(s *script) {
		addr, err := s.MallocAsync(100, 1)
		s.keep(err, s.Use(addr, 100, 1, 100), s.FreeAsync(addr, 1))
		other, err := s.MallocAsync(100, 2)
		s.Order(1, 2)
		again, err2 := s.MallocAsync(200, 2)
		if s.keep(err, err2); other == addr || again != addr {
			s.keep(errors.New("memory is reused before its free"))
		}
	}},
	{"closed with async blocks", "1 blocks handed out", func(s *script) {
		_, err := s.MallocAsync(1, 1)
		s.keep(err, s.ClosePool())
	}},
	{"trimmed after ClosePool", "TrimPool on a closed pool", func(s *script) { s.keep(s.ClosePool(), s.TrimPool(0)) }},
}

// TestStrict shows what only a Strict device reports.
func TestStrict(t *testing.T) {
	checkFaults(t, strict, []faultCase{
		{"unknown stream", "stream 0x9, which does not exist", func(s *script) { s.keep(s.RecordEvent(s.event, 9)) }},
		{"free of a block that is handed out", "is handed out", func(s *script) {
			s.handOut(s.memory, 512)
			s.Synchronize()
			s.keep(s.Free(s.memory))
		}},
		{"trim before the work is done", "", func(s *script) {
			addr, err := s.MallocAsync(4096, 1)
			s.keep(err, s.Use(addr, 4, 1, 100), s.FreeAsync(addr, 1), s.TrimPool(0))
			if now, _, err := s.PoolReserved(); err != nil || now != 4096 {
				s.keep(errors.New("memory in use is trimmed"))
			}
		}},
		{"addresses used again", "", func(s *script) {
			below, err1 := s.Malloc(1000)
			_, err2 := s.Malloc(1000)
			s.keep(err1, err2, s.Free(below))
			again, err1 := s.Malloc(1000)
			next, err2 := s.ReserveRange(page)
			if s.keep(err1, err2); again != below || next != s.at(8) {
				s.keep(errors.New("addresses are not used again, or ranges are no neighbours"))
			}
		}},
	})
}

// TestUnchecked shows that an Unchecked device counts memory, and where it lies.
func TestUnchecked(t *testing.T) {
	const bytes = 3 << 20
	f := New(10 << 20).Unchecked()
	below, above := ^uintptr(0), uintptr(0)
	for range 3 {
		memory, err1 := f.Malloc(bytes)
		first, err2 := f.ReserveRange(4 << 20)
		if err := errors.Join(err1, err2); err != nil || memory%defaultPage != 0 || memory+bytes > below || first < above || first+4<<20 > memory {
			t.Errorf("%d bytes at %#x, not below %#x, a range at %#x, not above %#x: %v", bytes, memory, below, first, above, err)
		}
		below, above = memory, first+4<<20
	}
	if _, err := f.CreatePages(2 << 20); err == nil {
		t.Error("more pages than the device has")
	}
	event, err := f.NewEvent()
	done, err2 := f.QueryEvent(event)
	if err := errors.Join(err, err2, f.RecordEvent(event, 9), f.WaitEvent(8, event), f.FreeEvent(event), f.Free(below)); err != nil || !done {
		t.Errorf("event done: %v, %v", done, err)
	}
	if err := f.Free(below); err == nil || f.Used() != 2*bytes {
		t.Errorf("%d bytes used; a second Free: %v", f.Used(), err)
	}
}

// TestChance makes calls fail and finish at random, and stops that.
func TestChance(t *testing.T) {
	f := New(1 << 20)
	s := newScript(t, f)
	f.SetChance(Chance{Random: rand.New(rand.NewPCG(1, 2)), DoneOneIn: 3, FailOneIn: 4})
	results := func() (failed, done int) {
		for i := range int64(300) {
			s.work(4*i, 4, 1, uint64(i+1))
			// An event that could not be recorded marks what it did before.
			_ = s.RecordEvent(s.event, 1)
			ok, err := s.QueryEvent(s.event)
			switch {
			case errors.Is(err, ErrInjected):
				failed++
			case err != nil:
				t.Fatal(err)
			case ok:
				done++
			}
		}
		return failed, done
	}
	if failed, done := results(); failed < 40 || failed > 110 || done < 50 || f.Injected() <= failed || f.Learned() == 0 {
		t.Errorf("of 300 queries %d failed and %d found work done; %d calls failed", failed, done, f.Injected())
	}
	before := f.Injected()
	if f.Freeze(true) || !f.Freeze(true) {
		t.Error("Freeze does not say what was before")
	}
	s.Synchronize()
	if failed, done := results(); failed != 0 || done != 0 || f.Injected() != before {
		t.Errorf("nothing is left to chance, but %d queries failed and %d found work done", failed, done)
	}
	if s.err != nil {
		t.Error(s.err)
	}
}

func TestFailAt(t *testing.T) {
	f := New(1 << 20)
	f.FailAt(2, "Malloc")
	addr, err := f.Malloc(100)
	if err != nil {
		t.Fatalf("first Malloc: %v", err)
	}
	if _, _, err := f.MemInfo(); err != nil {
		t.Errorf("MemInfo: %v", err)
	}
	if _, err := f.Malloc(100); !errors.Is(err, ErrInjected) || f.Failed() != "Malloc" || f.Calls("Malloc") != 2 || f.Calls() != 3 {
		t.Errorf("second Malloc: %v, want ErrInjected; %d calls", err, f.Calls())
	}
	if err := errors.Join(f.Free(addr), f.Leftover(), f.Faults()); err != nil {
		t.Error(err)
	}
}
