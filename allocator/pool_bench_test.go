package allocator_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
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
