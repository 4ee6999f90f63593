package allocator_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// TestSlack allocates blocks of random sizes on streams. With more slack the pool calls the driver less
// often, and reserves at most that much beyond the peak handed out.
func TestSlack(t *testing.T) {
	const page, streams, blocks, largest = 64 << 10, 8, 64, 1 << 20
	calls := int64(0)
	for _, slack := range []float64{0.125, 0.25, 0.5, 1} {
		r := newRigOn(t, allocatortest.NewFake(deviceBytes).WithPages(page), allocator.PoolOptions{Slack: slack})
		random := rand.New(rand.NewPCG(1, 2))
		var live []modelBlock
		var bytes, peak int64
		for range 4000 {
			if i := random.IntN(blocks); i < len(live) {
				r.must(r.Free(live[i].Block, live[i].on))
				bytes -= live[i].Size
				live[i] = live[len(live)-1]
				live = live[:len(live)-1]
				continue
			}
			on := allocator.Stream(1 + random.IntN(streams))
			b := r.alloc(1+random.Int64N(largest), on)
			live = append(live, modelBlock{b, on})
			bytes += b.Size
			peak = max(peak, bytes)
		}
		s := r.Stats()
		if most := peak + int64(slack*float64(peak)) + page; s.PeakReserved > most {
			t.Errorf("slack %v: %d bytes reserved for %d at most", slack, s.PeakReserved, peak)
		}
		if calls > 0 && s.DriverCalls > calls*4/5 {
			t.Errorf("slack %v: %d calls of the driver, %d with less", slack, s.DriverCalls, calls)
		}
		calls = s.DriverCalls
		for _, b := range live {
			r.must(r.Free(b.Block, b.on))
		}
		r.close()
	}
}

// TestSlackAdapts has eight streams replace blocks at random, for which the driver would have to order
// them all the time. The pool's slack grows until such calls are rare.
func TestSlackAdapts(t *testing.T) {
	const calls, streams = 200_000, 8
	for _, c := range []struct {
		blocks int     // live at once
		driver float64 // calls of the driver for each call, at most
	}{{64, 0.03}, {512, 0.02}} {
		t.Run(fmt.Sprintf("%d blocks", c.blocks), func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
			random := rand.New(rand.NewPCG(1, 2))
			replaceBlocks(t, p, replacing{c.blocks, streams, calls / 2, calls / 4, c.driver, 1.5}, func() (int, int64) {
				return random.IntN(c.blocks), int64(64<<10) << random.IntN(9)
			})
		})
	}
}

// TestSlackOfWhatMoves has two new streams in each round take memory from another one, which takes it back. Most of
// the memory never moves, so it needs no slack for moves.
func TestSlackOfWhatMoves(t *testing.T) {
	const gib, most = 1 << 30, 11 << 30
	for _, streams := range []int{32, 1000} {
		r := newRigOn(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
		model := r.alloc(8*gib, 1)
		for round := range 500 {
			on := allocator.Stream(2 + 2*round%streams)
			a, b := r.alloc(gib, on), r.alloc(gib, on+1)
			r.must(r.Free(a, on))
			r.must(r.Free(b, on+1))
			r.must(r.Free(r.alloc(3*gib, 1), 1))
			if round == 20 || round == 499 {
				if s := r.Stats(); float64(s.PeakReserved) > 1.1*most {
					t.Errorf("%d streams, round %d: %d bytes reserved for %d", streams, round, s.PeakReserved, int64(most))
				}
			}
		}
		r.must(r.Free(model, 1))
		r.close()
	}
}

// TestSlackAtFirst wants memory where free blocks lie apart. A pool that has served few requests of one stream since it
// was trimmed reserves more, another one stitches.
func TestSlackAtFirst(t *testing.T) {
	const mib, most, kept, asked = 1 << 20, 2000, 8, 20 << 20
	for _, c := range []struct {
		name     string
		requests int  // before
		streams  int  // that have memory
		trims    bool // after them
		stitches int64
		slack    float64
	}{
		{"at first", 0, 1, false, 0, 0},
		{"later", most, 1, false, 1, 0},
		{"again", most, 1, true, 0, 0},
		{"two streams", 0, 2, false, 1, 0},
		{"slack of the user", 0, 1, false, 1, 1. / 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRigOn(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Slack: c.slack})
			for range c.requests {
				r.must(r.Free(r.alloc(mib, 1), 1))
			}
			if c.trims {
				r.must(r.Trim(0))
			}
			for s := range c.streams - 1 {
				r.alloc(2*mib, allocator.Stream(2+s))
			}
			var blocks []allocator.Block
			for range 2 * kept {
				blocks = append(blocks, r.alloc(16*mib, 1))
			}
			for i := 0; i < len(blocks); i += 2 {
				r.must(r.Free(blocks[i], 1))
			}
			r.alloc(asked, 1)
			s := r.Stats()
			if grown := s.Reserved - 2*kept*16*mib; s.Stitches != c.stitches || grown > 32*mib {
				t.Errorf("%d stitches, and %d bytes more than before", s.Stitches, grown)
			}
		})
	}
}

// replacing describes how replaceBlocks uses a pool, and bounds the cost.
type replacing struct {
	blocks, streams int     // block i is of stream 1 + i%streams
	pairs, warm     int     // Free and Alloc of a block, and how many of them are not counted
	driver          float64 // calls of the driver a call, at most
	ratio           float64 // bytes reserved for each that was handed out, at most
}

// replaceBlocks frees and allocates blocks of p. next chooses one, and its new size.
func replaceBlocks(t *testing.T, p *allocator.Pool, c replacing, next func() (i int, size int64)) {
	t.Helper()
	blocks := make([]allocator.Block, c.blocks)
	var bytes, peak, before int64
	for pair := range c.pairs {
		i, size := next()
		on := allocator.Stream(1 + i%c.streams)
		if b := blocks[i]; b.Size > 0 {
			must.OK(t, p.Free(b, on))
			bytes -= b.Size
		}
		blocks[i] = allocFrom(t, p, size, on, "replaced")
		bytes += size
		peak = max(peak, bytes)
		if pair == c.warm {
			before = p.Stats().DriverCalls
		}
	}
	s := p.Stats()
	if got := float64(s.DriverCalls-before) / float64(2*(c.pairs-c.warm)); got > c.driver {
		t.Errorf("%.4f calls of the driver a call, want at most %v", got, c.driver)
	}
	if got := float64(s.PeakReserved) / float64(peak); got > c.ratio {
		t.Errorf("%.3f bytes reserved for each that was handed out, want at most %v", got, c.ratio)
	}
	must.OK(t, p.Check())
}

// TestSmallBlocksApart replaces huge blocks among small ones that live long. In the end the small ones
// do not fragment the chunks of the huge ones, so the driver is hardly called.
func TestSmallBlocksApart(t *testing.T) {
	skipUnderRace(t)
	const pairs = 200_000
	sizes := []int64{64 << 20, 100 << 20, 128 << 20, 200 << 20, 256 << 20, 300 << 20, 512 << 20}
	for _, c := range []struct {
		streams, huge, small int
		bytes                int64   // of a small block, about, at most
		driver               float64 // calls of the driver a call, at most
		ratio                float64 // bytes reserved for each that was handed out, at most
	}{{1, 16, 20_000, 64 << 10, 0.01, 1.35}, {1, 16, 5000, 1000 << 10, 0.01, 1.35}, {4, 32, 5000, 200 << 10, 0.02, 1.5}} {
		t.Run(fmt.Sprintf("%d streams, %d KiB", c.streams, c.bytes>>10), func(t *testing.T) {
			p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
			random := rand.New(rand.NewPCG(1, 2))
			replaceBlocks(t, p, replacing{c.huge + c.small, c.streams, pairs, pairs * 3 / 4, c.driver, c.ratio}, func() (int, int64) {
				i, size := random.IntN(c.huge), sizes[random.IntN(len(sizes))]
				if random.IntN(2) == 0 {
					i, size = c.huge+random.IntN(c.small), 256+random.Int64N(c.bytes)
				}
				return i, size
			})
		})
	}
}
