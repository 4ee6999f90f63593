package allocator_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// FuzzPool makes the calls that the input encodes, and compares the pool with a model of the live
// blocks.
func FuzzPool(f *testing.F) {
	for seed := range uint64(2 * len(allocator.Strategies())) {
		r := rand.New(rand.NewPCG(seed, 9))
		calls := []byte{byte(seed), byte(seed / 3), byte(r.Uint32())}
		for range 300 {
			calls = append(calls, byte(r.Uint32()))
		}
		f.Add(calls)
	}
	f.Fuzz(func(t *testing.T, calls []byte) {
		if len(calls) < 3 || len(calls) > 4096 {
			return
		}
		names := allocator.Strategies()
		o := allocator.PoolOptions{
			Strategy: names[int(calls[0])%len(names)],
			Reuse:    allocator.Reuse(calls[1] % 3),
			MaxBytes: int64(calls[2]%32+4) << 20,
		}
		if calls[1]&4 != 0 {
			o.GCThreshold = 0.7
		}
		if calls[1]&16 != 0 {
			o.PreallocateBytes = 3 << 20
		}
		f := allocatortest.NewFake(deviceBytes)
		switch calls[1] >> 5 & 3 {
		case 1:
			f.WithPages(4 << 10)
		case 2:
			f.WithPages(64 << 10)
		case 3:
			f.WithoutPages()
		}
		m := &model{rig: newRigOn(t, f, o)}
		for calls = calls[3:]; len(calls) >= 3; calls = calls[3:] {
			m.call(calls[0], calls[1], calls[2])
		}
		m.end()
	})
}

// TestFreesBetweenAttempts has other threads free blocks between the attempts at a request.
func TestFreesBetweenAttempts(t *testing.T) {
	var m *model
	random := rand.New(rand.NewPCG(1, 3))
	t.Cleanup(allocator.BetweenAttempts(func() {
		for few := random.IntN(40); few < len(m.blocks); {
			m.free(random.IntN(len(m.blocks)), allocator.Stream(random.IntN(2)), random.IntN(8) == 0)
		}
	}))
	for _, o := range []allocator.PoolOptions{
		{}, {Slack: 0.1}, {Slack: 1, GCThreshold: 0.5, MaxBytes: 100 * smallPage}, {BusySlack: 1, MaxBytes: 100*smallPage + 256},
		{Reuse: allocator.ReuseSameStream}, {Reuse: allocator.ReuseOpportunistic}, {Segments: allocator.SegmentsMalloc},
	} {
		for range 20 {
			m = &model{rig: newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(smallPage), o)}
			for range 300 {
				m.alloc(random.Int64N(3*smallPage), 0, allocator.Stream(random.IntN(2)))
			}
			m.compare()
			m.end()
		}
	}
}

type modelBlock struct {
	allocator.Block
	on allocator.Stream
}

type model struct {
	*rig
	blocks []modelBlock
	bytes  int64
	freed  allocator.Block
}

// call makes one call of the pool, chosen by op.
func (m *model) call(op, x, y byte) {
	m.t.Helper()
	on := allocator.Stream(y % 4)
	switch op % 16 {
	default:
		m.alloc(int64(x)<<(y%16), 0, on)
	case 4:
		if len(m.blocks) > 0 {
			m.resize(&m.blocks[int(x)%len(m.blocks)], y)
		}
	case 5:
		m.alloc(int64(x)<<(y%16), 256<<(op/16), on)
	case 6, 7, 8, 9, 10:
		if len(m.blocks) > 0 {
			m.free(int(x)%len(m.blocks), on, y&4 != 0)
		}
	case 11:
		m.must(m.Trim(int64(x) << 18))
	case 12:
		m.fake.Finish()
	case 13:
		if len(m.blocks) > 0 {
			b := m.blocks[int(x)%len(m.blocks)]
			m.fake.Order(b.on, on)
			m.must(m.RecordStream(b.Block, on))
			m.must(m.Use(b.Block, on))
		}
	case 14:
		if m.freed != (allocator.Block{}) {
			if err := m.pool.Free(m.freed, on); !errors.Is(err, allocator.ErrDoubleFree) {
				m.t.Fatalf("second Free: %v, want ErrDoubleFree", err)
			}
		}
	case 15:
		if x%4 == 0 {
			m.must(m.pool.ReleaseStream(on))
		}
	}
	m.compare()
}

// alloc allocates a block at a multiple of alignment, 0: anywhere.
func (m *model) alloc(bytes, alignment int64, on allocator.Stream) {
	var b allocator.Block
	var err error
	if alignment == 0 {
		b, err = m.Alloc(bytes, on, "fuzz")
	} else if b, err = m.AllocAligned(bytes, alignment, on, "fuzz"); b.Addr%uintptr(alignment) != 0 {
		m.t.Fatalf("block at %#x, want a multiple of %d", b.Addr, alignment)
	}
	var oom *allocator.OutOfMemoryError
	if errors.As(err, &oom) || alignment > 0 && errors.Is(err, errors.ErrUnsupported) {
		return
	}
	m.must(err)
	m.blocks = append(m.blocks, modelBlock{b, on})
	m.bytes += bytes
}

// resize gives b room, and takes most of it back unless share is even.
func (m *model) resize(b *modelBlock, share byte) {
	before := m.Stats()
	room := m.pool.Extend(b.Block)
	if room > 0 && room < b.Size {
		m.t.Fatalf("a block of %d bytes has %d", b.Size, room)
	}
	if after := m.Stats(); after.Allocated != before.Allocated || after.PeakAllocated != before.PeakAllocated {
		m.t.Fatalf("room counts: %+v, then %+v", before, after)
	}
	if room > 0 && share&1 > 0 {
		m.must(m.pool.Shrink(b.Block, b.Size+(room-b.Size)*int64(share)/1024, room))
	}
}

func (m *model) free(i int, on allocator.Stream, other bool) {
	b := m.blocks[i]
	if other {
		m.fake.Order(b.on, on)
	} else {
		on = b.on
	}
	m.must(m.Free(b.Block, on))
	m.freed = b.Block
	m.bytes -= b.Size
	m.blocks = slices.Delete(m.blocks, i, i+1)
}

func (m *model) compare() {
	m.t.Helper()
	m.check()
	m.must(checkMap(m.pool))
	st := m.Stats()
	if st.Allocs-st.Frees != int64(len(m.blocks)) || st.Allocated < m.bytes || st.Reserved < st.Allocated {
		m.t.Fatalf("%d blocks of %d bytes are handed out; statistics %+v", len(m.blocks), m.bytes, st)
	}
}

func (m *model) end() {
	m.t.Helper()
	if got := m.Live(); len(got) != len(m.blocks) {
		m.t.Fatalf("%d blocks listed, want %d", len(got), len(m.blocks))
	}
	for len(m.blocks) > 0 {
		m.free(0, 0, false)
	}
	m.must(m.Trim(0))
	if st := m.Stats(); st.Reserved != 0 || st.Allocated != 0 {
		m.t.Fatalf("after every free and Trim(0): %+v", st)
	}
	m.close()
}
