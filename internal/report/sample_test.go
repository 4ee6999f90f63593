package report

import (
	"fmt"

	"mlpool/allocator"
	"mlpool/internal/gap"
)

// sampleTraining returns a comparison of four runs, of which one diverged.
func sampleTraining() Page {
	p := Page{Title: "configs/mnist.toml", Turns: true, Runs: []Run{
		timed("custom", 40, 102<<20), timed("cuda", 50, 128<<20, 1.001, 0.998, 1.2), timed("malloc", 144, 100<<20), first(timed("custom:bestfit", 40, 102<<20), 0),
	}}
	for i := range p.Runs {
		r := &p.Runs[i]
		r.Facts = []Fact{{"device", "H200"}, {"allocator", r.Name}, {"segments", []string{"virtual", "–"}[i%2]}, {"folder", fmt.Sprint("logs/", i)}}
		r.Losses = []float32{2, 1, 0.5, 0.25}
		r.Memory, r.Over = []Peak{{0, 10 << 20, 20 << 20}, {5, 90 << 20, 100 << 20}, {9, 30 << 20, 100 << 20}}, "the first epoch"
		for j := range r.Epochs {
			r.Epochs[j].ValAcc, r.Epochs[j].ValLoss, r.Epochs[j].DriverCalls = 0.9+0.01*float64(j), 0.3-0.03*float64(j), int64(250*i)
		}
	}
	p.Runs[1].Losses = []float32{2, 1, 0.75}
	p.Runs[3].Diverged, p.Runs[3].Memory = 3, nil
	p.Runs[0].Step = &Timeline{Length: 20, Steps: 9, Note: "Launched one by one.",
		Kernels: []Span{{"linear", "64×784", 2, 4}, {"weights 1", "", 4, 6}, {"sgd", "", 12, 5}}, Calls: []Span{{"Alloc", "linear, 1 KiB", 0, 0.5}, {"Free", "linear, 1 KiB", 11, 0.5}},
		Blocks: []Span{{"linear", "1 KiB", 0.5, 10.5}, {"relu", "2 KiB", 3, 5}},
	}
	for i := range p.Runs[1:] {
		p.Runs[i+1].Step = &Timeline{Length: 25 + float64(i), Kernels: []Span{{"linear", "64×784", 2, 4}}}
	}
	p.Runs[0].Peak = sampleMap(0)
	p.Runs[2].Peak = sampleMap(1)
	return p
}

// sampleMap returns a map with a block in every state. Free blocks are longer by some MiB.
func sampleMap(more int64) *allocator.Map {
	var at uintptr
	block := func(mib int64, state, tag string) allocator.MapBlock {
		b := allocator.MapBlock{Addr: at, Bytes: mib << 20, State: state, Tag: tag, Stream: 7}
		if state == allocator.MapLive {
			b.Asked = b.Bytes - 200
		}
		at += uintptr(b.Bytes)
		return b
	}
	virtual := allocator.MapSegment{Bytes: 100 << 20, Kind: allocator.SegmentsVirtual, Page: 2 << 20, Stream: 7, Blocks: []allocator.MapBlock{
		block(2, allocator.MapLive, "weights 0"), block(3+more, allocator.MapFree, ""), block(1, allocator.MapWaiting, ""), block(4, allocator.MapStitched, ""), block(2, allocator.MapLive, "weights 1"),
		block(88-more, allocator.MapUnmapped, ""),
	}}
	small := allocator.MapSegment{Bytes: 3 << 20, Kind: allocator.SegmentsMalloc, Pool: "small", Blocks: []allocator.MapBlock{block(1, allocator.MapCached, ""), block(2, allocator.MapLive, "")}}
	large := allocator.MapSegment{Bytes: 2 << 20, Kind: allocator.SegmentsMalloc, Pool: "large", Blocks: []allocator.MapBlock{block(2, allocator.MapLive, "model.py:12")}}
	stitch := allocator.MapSegment{Bytes: 4 << 20, Kind: allocator.MapStitch, Stream: 7, Blocks: []allocator.MapBlock{block(4, allocator.MapLive, "stitched")}}
	idle := allocator.MapSegment{Bytes: 4 << 20, Kind: allocator.MapStitch, Blocks: []allocator.MapBlock{block(4, allocator.MapUnstitched, "")}}
	all := []allocator.MapSegment{stitch, idle, virtual, small, large}
	for i := range all {
		all[i].Addr = all[i].Blocks[0].Addr
	}
	return &allocator.Map{Segments: all}
}

// sampleReplay returns a replay on three allocators with all that explains its memory.
func sampleReplay() Page {
	p := Page{Title: "unet.pickle", Replay: true, Turns: true, Runs: []Run{{Name: "torch"}, {Name: "tlsf"}, {Name: "cuda"}},
		Cards: []Card{{"torch", 6 << 30, 3 << 30}, {"cuda", 4 << 30, 0}},
		Changes: []Change{
			{"expandable segments", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 5800 << 20, 3200 << 20}, {"split", "A=b", 5800 << 20, 5900 << 20}, {"none", "", 1, 1},
		},
		Blocks: sampleTrace(1, 1, 4).Blocks[:mostTags+2],
		Sizes:  []SizeCell{{9, 2, 1, 600}, {11, 0, 2, 5000}, {11, -1, 1, 2048}, {11, 0, 2, 5000}, {10, 4, 1, -3}},
	}
	p.Blocks[0].Tag, p.Blocks[1].MedianAge = "", -1
	for i := range p.Runs {
		r := &p.Runs[i]
		for j := range 4 {
			r.Facts = append(r.Facts, Fact{fmt.Sprint("setting ", j), fmt.Sprint(i * j)})
		}
		r.CallNS = []float64{40 + 20*float64(i), 41, 39 + 30*float64(i)}
		for j := range int64(3) {
			m := sampleMap(j)
			split := gap.Of(*m, 30<<20, gap.Growth{Bytes: 4 << 20, Stream: 7, Grown: 8 << 20}, func(addr uintptr) int64 { return int64(addr >> 21) })
			if i < 2 {
				r.Moments = append(r.Moments, Moment{MS: float64(100 * (j + 1)), Gap: split, Map: m})
			}
			r.Memory = append(r.Memory, Peak{float64(100 * j), split.Live + j<<20, []int64{split.Reserved, split.Reserved, 0}[i]})
		}
	}
	p.Runs[2].Peak = &allocator.Map{Segments: []allocator.MapSegment{{Addr: 1, Bytes: 1 << 20, Kind: allocator.MapUnknown, Blocks: []allocator.MapBlock{{Addr: 1, Bytes: 1 << 20, State: allocator.MapLive}}}}}
	return p
}

// manyBlocks returns the map of a pool with n blocks of 512 bytes in one segment.
func manyBlocks(n int) *allocator.Map {
	s := allocator.MapSegment{Addr: 1 << 40, Bytes: int64(n) * 512, Kind: allocator.SegmentsMalloc}
	for i := range n {
		b := allocator.MapBlock{Addr: s.Addr + uintptr(i)*512, Bytes: 512, State: "free"}
		if i%2 == 0 {
			b.State, b.Tag = "live", fmt.Sprintf("tag%d", i%20)
		}
		s.Blocks = append(s.Blocks, b)
	}
	return &allocator.Map{Segments: []allocator.MapSegment{s}}
}
