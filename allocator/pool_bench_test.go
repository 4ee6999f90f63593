package allocator_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// plentiful is a device whose memory does not run out in a benchmark.
const plentiful = 1 << 42

func pairs(b *testing.B, a allocator.Allocator, bytes int64, s allocator.Stream) {
	for b.Loop() {
		block, err := a.Alloc(bytes, s, "pair")
		if err != nil {
			b.Fatal(err)
		}
		if err := a.Free(block, s); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPair(b *testing.B) {
	for _, bytes := range []int64{512, 64 << 10, 1 << 20, 16 << 20, 64 << 20} {
		b.Run(fmt.Sprint(bytes), func(b *testing.B) {
			b.ReportAllocs()
			pairs(b, newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{}), bytes, 3)
		})
	}
}

// BenchmarkDecorators measures the cost of each decorator. Without one the pool is that of
// BenchmarkPair.
func BenchmarkDecorators(b *testing.B) {
	for _, c := range []struct {
		name string
		wrap func(a allocator.Allocator, f *allocatortest.Fake) allocator.Allocator
	}{
		{"none", func(a allocator.Allocator, _ *allocatortest.Fake) allocator.Allocator { return a }},
		{"timed", func(a allocator.Allocator, _ *allocatortest.Fake) allocator.Allocator { return allocator.NewTimed(a) }},
		{"limit", func(a allocator.Allocator, _ *allocatortest.Fake) allocator.Allocator {
			return allocator.NewLimit(a, 1<<30)
		}},
		{"trace", func(a allocator.Allocator, _ *allocatortest.Fake) allocator.Allocator {
			return allocator.NewTrace(a, 1<<16)
		}},
		{"poison", func(a allocator.Allocator, f *allocatortest.Fake) allocator.Allocator {
			return allocator.NewPoison(a, f)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			f := allocatortest.NewFake(plentiful)
			pairs(b, c.wrap(newPool(b, f, allocator.PoolOptions{}), f), 64<<10, 3)
		})
	}
}

// BenchmarkStrategies does pairs and random sizes with each placement.
func BenchmarkStrategies(b *testing.B) {
	options := []allocator.PoolOptions{{Placement: newHighest}}
	for _, strategy := range allocator.Strategies() {
		options = append(options, allocator.PoolOptions{Strategy: strategy})
	}
	for _, o := range options {
		strategy := cmp.Or(o.Strategy, "own placement")
		b.Run(strategy+"/pair", func(b *testing.B) {
			pairs(b, newPool(b, allocatortest.NewFake(plentiful), o), 64<<10, 3)
		})
		b.Run(strategy+"/random", func(b *testing.B) {
			benchmarkRandom(b, newPool(b, allocatortest.NewFake(plentiful), o), 1000)
		})
	}
}

// BenchmarkManySegments adds a segment every other request, up to forty thousand blocks. A call must
// not take longer for it.
func BenchmarkManySegments(b *testing.B) {
	const live, segment = 40_000, 64 << 10
	for _, strategy := range []string{"tlsf", "sizeclass", "slab", "buddy"} {
		b.Run(strategy, func(b *testing.B) {
			o := allocator.PoolOptions{Strategy: strategy, SegmentBytes: segment, MaxSegmentBytes: segment}
			p := newPool(b, &idleDriver{next: 1 << 32}, o)
			r := rand.New(rand.NewPCG(1, 2))
			blocks := make([]allocator.Block, 0, live)
			for b.Loop() {
				if len(blocks) == live {
					i := r.IntN(live)
					if err := p.Free(blocks[i], 3); err != nil {
						b.Fatal(err)
					}
					blocks[i] = blocks[live-1]
					blocks = blocks[:live-1]
				}
				block, err := p.Alloc(1+r.Int64N(segment), 3, "small segments")
				if err != nil {
					b.Fatal(err)
				}
				blocks = append(blocks, block)
			}
		})
	}
}

// BenchmarkReleaseStream releases a stream while another one has a million blocks.
func BenchmarkReleaseStream(b *testing.B) {
	const live = 1_000_000
	p := newPool(b, &idleDriver{next: 1 << 32}, allocator.PoolOptions{})
	for range live {
		if _, err := p.Alloc(1000, 1, "live"); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		block, err := p.Alloc(1000, 2, "of the stream")
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Free(block, 2); err != nil {
			b.Fatal(err)
		}
		if err := p.ReleaseStream(2); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRandom is random_allocations of RMM: uniform sizes up to 64 MiB, 73 %
// of the calls allocate, at most 16 000 MiB and num blocks handed out.
func BenchmarkRandom(b *testing.B) {
	for _, num := range []int{1000, 10000} {
		b.Run(fmt.Sprint(num), func(b *testing.B) {
			benchmarkRandom(b, newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{}), num)
		})
	}
}

func benchmarkRandom(b *testing.B, a allocator.Allocator, num int) {
	randomRun(b, a, num, 1)
	r := randomRun(b, a, num, 1)
	ops, elapsed := 0, time.Duration(0)
	for b.Loop() {
		from := time.Now()
		r = randomRun(b, a, num, 1)
		elapsed += time.Since(from)
		ops += r.ops
	}
	b.ReportMetric(float64(elapsed.Nanoseconds())/float64(ops), "ns/call")
	b.ReportMetric(float64(a.Stats().PeakReserved)/float64(r.peak), "reserved/live")
}

type randomResult struct {
	ops  int
	peak int64 // bytes handed out at once
}

func randomRun(b testing.TB, a allocator.Allocator, num int, seed uint64) randomResult {
	const largest, most = 64 << 20, 16000 << 20
	r := rand.New(rand.NewPCG(seed, 0))
	blocks := make([]allocator.Block, 0, num)
	var res randomResult
	var bytes int64
	drop := func(i int) {
		if err := a.Free(blocks[i], 3); err != nil {
			b.Fatal(err)
		}
		bytes -= blocks[i].Size
		blocks[i] = blocks[len(blocks)-1]
		blocks = blocks[:len(blocks)-1]
		res.ops++
	}
	for range 2 * num {
		size := 1 + r.Int64N(largest)
		if len(blocks) == 0 || r.IntN(100) < 73 && len(blocks) < num && bytes+size < most {
			block, err := a.Alloc(size, 3, "random")
			if err != nil {
				b.Fatal(err)
			}
			blocks = append(blocks, block)
			bytes += size
			res.peak = max(res.peak, bytes)
			res.ops++
		} else {
			drop(r.IntN(len(blocks)))
		}
	}
	for len(blocks) > 0 {
		drop(len(blocks) - 1)
	}
	return res
}

// BenchmarkChurn holds a block on each of 32 streams and replaces one at random.
func BenchmarkChurn(b *testing.B) {
	b.ReportAllocs()
	p := newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
	c := newChurner(b, p)
	for range 100000 {
		c.step()
	}
	before := p.Stats().DriverCalls
	for b.Loop() {
		c.step()
	}
	st := p.Stats()
	b.ReportMetric(float64(st.DriverCalls-before)/float64(b.N), "driver/op")
	b.ReportMetric(float64(st.PeakReserved)/float64(c.peak), "reserved/live")
}

type churner struct {
	tb          testing.TB
	a           allocator.Allocator
	r           *rand.PCG
	blocks      [32]allocator.Block
	bytes, peak int64
}

func newChurner(tb testing.TB, a allocator.Allocator) *churner {
	c := &churner{tb: tb, a: a, r: rand.NewPCG(1, 0)}
	for i := range c.blocks {
		c.replace(i, c.r.Uint64())
	}
	return c
}

func (c *churner) replace(i int, random uint64) {
	var err error
	size := int64(65536) << (random % 9)
	if c.blocks[i], err = c.a.Alloc(size, churnStream(i), "churn"); err != nil {
		c.tb.Fatal(err)
	}
	c.bytes += size
	c.peak = max(c.peak, c.bytes)
}

func (c *churner) step() {
	random := c.r.Uint64()
	i := int(random % 32)
	c.bytes -= c.blocks[i].Size
	if err := c.a.Free(c.blocks[i], churnStream(i)); err != nil {
		c.tb.Fatal(err)
	}
	c.replace(i, random>>32)
}

func churnStream(i int) allocator.Stream { return allocator.Stream(0x7000_0000 + 0x240*i) }

// BenchmarkThreads does pairs of 1 MiB on a stream for each goroutine, and on one
// stream for all.
func BenchmarkThreads(b *testing.B) {
	for _, streams := range []string{"own", "shared"} {
		for _, threads := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("%s/%d", streams, threads), func(b *testing.B) {
				p := newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{})
				var wg sync.WaitGroup
				for w := range threads {
					s := allocator.Stream(0)
					if streams == "own" {
						s = allocator.Stream(w)
					}
					wg.Go(func() {
						for range b.N {
							block, err := p.Alloc(1<<20, s, "pair")
							if err != nil {
								b.Error(err)
								return
							}
							if err := p.Free(block, s); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(threads)*float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			})
		}
	}
}

// BenchmarkRefused requests more than the limit with very different numbers of live blocks, on which
// the cost of the error must not depend.
func BenchmarkRefused(b *testing.B) {
	for _, blocks := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("%d blocks", blocks), func(b *testing.B) {
			p := newPool(b, allocatortest.NewFake(plentiful), allocator.PoolOptions{MaxBytes: 1 << 30})
			for range blocks {
				if _, err := p.Alloc(256, 1, "small"); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := p.Alloc(1<<40, 1, "large"); err == nil {
					b.Fatal("a terabyte was handed out")
				}
			}
		})
	}
}
