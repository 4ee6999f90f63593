package report

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"mlpool/allocator"
	"mlpool/internal/gap"
)

// sampleMoments returns the memory of a pool at n moments. Each map has about the given number of blocks,
// few of which change from one moment to the next. The pool grows in the first half.
func sampleMoments(seed uint64, n, blocks int) []Moment {
	r := rand.New(rand.NewPCG(seed, 5))
	const size = 2 << 20
	tags := []string{"conv2d model.py:12", "linear model.py:31", "relu", "optimizer.step", "loss"}
	states := []string{allocator.MapFree, allocator.MapCached, allocator.MapWaiting}
	pools := []string{"small", "large"}
	var segments []allocator.MapSegment
	change := func(b *allocator.MapBlock) {
		b.Asked, b.Tag, b.State = 0, "", states[r.IntN(3)]
		if r.IntN(3) > 0 {
			b.State, b.Tag, b.Asked = allocator.MapLive, tags[r.IntN(len(tags))], b.Bytes-r.Int64N(40)*16
		}
	}
	grow := func() {
		i := len(segments)
		s := allocator.MapSegment{Addr: 0x7f0000000000 + uintptr(i)<<26, Kind: allocator.SegmentsMalloc, Stream: allocator.Stream(1 + i%2), Pool: pools[i%2]}
		for range min(100, max(blocks/8, 4)) {
			b := allocator.MapBlock{Addr: s.Addr + uintptr(s.Bytes), Bytes: 1024 * (1 + r.Int64N(size>>16)) * int64(1+40*(i%2)), Stream: s.Stream}
			change(&b)
			s.Bytes += b.Bytes
			s.Blocks = append(s.Blocks, b)
		}
		segments = append(segments, s)
	}
	var all []Moment
	count := 0
	for at := range n {
		for count < blocks*min(n, 1+2*at)/n || count == 0 {
			grow()
			count += len(segments[len(segments)-1].Blocks)
		}
		for range 1 + count/50 {
			s := segments[r.IntN(len(segments))]
			change(&s.Blocks[r.IntN(len(s.Blocks))])
		}
		m := &allocator.Map{}
		for _, s := range segments {
			s.Blocks = slices.Clone(s.Blocks)
			m.Segments = append(m.Segments, s)
		}
		split := gap.Of(*m, 0, gap.Growth{Bytes: 300 << 10, Stream: 1}, func(addr uintptr) int64 { return int64(addr % 97) })
		all = append(all, Moment{MS: float64(100 * (at + 1)), Gap: split, Map: m})
	}
	return all
}

// sampleTrace returns a replay with all that explains its memory: moments of that many maps and blocks for
// each of some runs, changes, cards, tags and sizes.
func sampleTrace(runs, moments, blocks int) Page {
	p := Page{Title: "unet.pickle", Replay: true}
	for i, name := range []string{"torch", "torch expandable", "tlsf", "bestfit"}[:runs] {
		run := Run{Name: name, Facts: []Fact{{"trace", "unet.pickle"}}}
		run.Moments = sampleMoments(uint64(i), moments, blocks)
		for _, m := range run.Moments {
			run.Memory = append(run.Memory, Peak{m.MS, m.Gap.Live, m.Gap.Reserved})
		}
		p.Runs = append(p.Runs, run)
		p.Cards = append(p.Cards, Card{name, int64(6-i) << 30, 3 << 30})
	}
	p.Changes = []Change{
		{"expandable segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 5800 << 20, 3200 << 20},
		{"free activations of conv2d model.py:12 earlier", "del x", 5800 << 20, 5000 << 20},
		{"split large blocks", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128", 5800 << 20, 5900 << 20},
	}
	r := rand.New(rand.NewPCG(9, 9))
	for i := range 40 {
		p.Blocks = append(p.Blocks, TagBlocks{fmt.Sprintf("conv2d model.py:%d", 12+i), 100 + i, []string{"activations", "gradients", ""}[i%3], 1200 << 20 / int64(i+1), 64 << 20, int64(3 * i), i % 3})
	}
	for size := 9; size < 31; size++ {
		for age := -1; age < 18; age++ {
			if r.IntN(3) > 0 {
				p.Sizes = append(p.Sizes, SizeCell{size, age, 1 + r.IntN(900), int64(1+r.IntN(900)) << size})
			}
		}
	}
	return p
}
