package device_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestOutOfMemoryOnGPU runs out of a limit and of the card, and works on.
func TestOutOfMemoryOnGPU(t *testing.T) {
	pool := func(o allocator.PoolOptions) func() (allocator.Allocator, error) {
		return func() (allocator.Allocator, error) { return allocator.NewPool(cudadriver.Driver{}, o) }
	}
	for name, open := range map[string]func() (allocator.Allocator, error){
		"limit":    pool(allocator.PoolOptions{MaxBytes: 256 << 20}),
		"fraction": pool(allocator.PoolOptions{MaxFraction: 0.01}),
		"card":     pool(allocator.PoolOptions{}),
		"malloc":   func() (allocator.Allocator, error) { return allocator.NewMalloc(cudadriver.Driver{}), nil },
		"async": func() (allocator.Allocator, error) {
			p, err := cudadriver.NewMemPool()
			return allocator.NewAsync(p), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := openGPU(t, 1, open)
			s := g.streams[0]
			_, total, err := g.MemInfo()
			must.OK(t, err)
			kept := g.alloc(64<<20, s)
			g.write(kept, 1, s)
			for _, bytes := range []int64{total, total + 1<<30} {
				_, err = g.a.Alloc(bytes, s.Handle(), "too much")
				var oom *allocator.OutOfMemoryError
				if !errors.As(err, &oom) {
					t.Fatalf("Alloc of %d bytes, all of the card: %v", bytes, err)
				}
				if oom.Allocated < kept.Size || oom.Reserved < kept.Size || oom.Advice == "" {
					t.Errorf("with %d bytes handed out: %v", kept.Size, err)
				}
				if oom.DeviceTotal != 0 && oom.DeviceTotal != total {
					t.Errorf("the error has a card of %d bytes, want %d", oom.DeviceTotal, total)
				}
				b := g.alloc(16<<20, s)
				g.write(b, 2, s)
				g.holds(b, 2, s)
				g.free(b, s)
			}
			g.holds(kept, 1, s)
			g.free(kept, s)
		})
	}
}

// TestIdentities fills each block with its number and checks it when the block is freed, with random
// sizes, streams, frees and trims, and without waits.
func TestIdentities(t *testing.T) {
	kerneltest.RequireRealGPU(t)
	const streams = 4
	type filled struct {
		b  allocator.Block
		on kernels.Stream
		id uint32
	}
	run := func(t *testing.T, g *gpu, steps uint32, most int, largest int64, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		var blocks []filled
		drop := func(i int) {
			f := blocks[i]
			if r.IntN(4) == 0 {
				g.holds(f.b, f.id, f.on)
			} else {
				g.write(f.b, ^f.id, f.on)
			}
			g.free(f.b, f.on)
			blocks[i] = blocks[len(blocks)-1]
			blocks = blocks[:len(blocks)-1]
		}
		for id := range steps {
			switch k := r.IntN(1000); {
			case k < 540 && len(blocks) < most:
				on := g.streams[r.IntN(streams)]
				f := filled{g.alloc(4+4*r.Int64N(largest/4), on), on, id}
				g.write(f.b, id, on)
				blocks = append(blocks, f)
			case k < 998 && len(blocks) > 0:
				drop(r.IntN(len(blocks)))
			case k >= 998:
				g.must(g.a.Trim(r.Int64N(64 << 20)))
			}
		}
		for len(blocks) > 0 {
			g.holds(blocks[0].b, blocks[0].id, blocks[0].on)
			drop(0)
		}
	}
	for _, policy := range policies {
		t.Run(policy.String(), func(t *testing.T) {
			run(t, openPool(t, streams, allocator.PoolOptions{Reuse: policy, MaxBytes: 512 << 20}), 10_000, 256, 1<<20, 1)
		})
		// So large that most blocks are of pages that were somewhere else before.
		t.Run("stitched/"+policy.String(), func(t *testing.T) {
			run(t, openPool(t, streams, allocator.PoolOptions{Reuse: policy, MaxBytes: 1 << 30}), 3_000, 48, 20<<20, 3)
		})
	}
	t.Run("malloc segments", func(t *testing.T) {
		run(t, openPool(t, streams, allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: 512 << 20}), 10_000, 256, 1<<20, 4)
	})
	for _, o := range []cudadriver.MemPoolOptions{cudadriver.DefaultMemPoolOptions(), {ReleaseThreshold: 32 << 20, Opportunistic: true}} {
		t.Run("async", func(t *testing.T) {
			run(t, openGPU(t, streams, func() (allocator.Allocator, error) {
				p, err := cudadriver.NewMemPoolWith(o)
				return allocator.NewAsync(p), err
			}), 10_000, 256, 1<<20, 2)
		})
	}
}

// TestPoisonOnGPU plants writes outside a block and reads after its free.
func TestPoisonOnGPU(t *testing.T) {
	const bytes = 1000
	g := openGPU(t, 1, func() (allocator.Allocator, error) {
		p, err := allocator.NewPool(cudadriver.Driver{}, allocator.PoolOptions{})
		return allocator.NewPoison(p, kernels.Filler{}), err
	})
	s := g.streams[0]
	read := func(b allocator.Block) float32 {
		t.Helper()
		var raw [4]byte
		g.must(s.Download(raw[:], b.Addr))
		return math.Float32frombits(binary.NativeEndian.Uint32(raw[:]))
	}
	b := g.alloc(bytes, s)
	if v := read(b); v == v {
		t.Errorf("a new block holds %v, want NaN", v)
	}
	g.write(b, 0, s)
	g.free(b, s)
	if v := read(b); v == v {
		t.Errorf("a freed block holds %v, want NaN", v)
	}
	for _, c := range []struct {
		name          string
		offset        int64
		before, after int64
	}{{"before", -4, 1, 0}, {"after", bytes, 0, 1}, {"inside", 0, 0, 0}} {
		b := g.alloc(bytes, s)
		g.must(g.Fill(b.Addr+uintptr(c.offset), 5, 4, s.Handle()))
		err := g.a.Free(b, s.Handle())
		var e *allocator.RedzoneError
		if found := errors.As(err, &e); found != (c.before+c.after > 0) || found && (e.Before != c.before || e.After != c.after) {
			t.Errorf("a write %s the block: %v", c.name, err)
		}
	}
}
