package allocator

import (
	"cmp"
	"slices"
)

// A Detail is what a pool holds at one moment, taken apart.
type Detail struct {
	ByStream []StreamStats // by stream
	ByClass  []ClassStats  // by size; classes without allocations are left out

	// Free is the bytes reserved and not handed out, LargestFree the largest
	// free block, in bytes, and Fragmentation the part of Free outside it, in
	// percent.
	Free, LargestFree int64
	Fragmentation     float64
}

// StreamStats are the counters of one stream's memory.
type StreamStats struct {
	Stream        Stream
	Allocs, Frees int64

	Allocated, PeakAllocated, Reserved int64 // bytes
	// Cached is the bytes kept for requests of the same size, Waiting those that
	// other streams still use.
	Cached, Waiting int64
	Segments        int
	LargestFree     int64 // bytes
	Fragmentation   float64
}

// ClassStats are the counters of the blocks of more than half of Size and at
// most Size bytes, after rounding.
type ClassStats struct {
	Size   int64
	Allocs int64
	Live   int   // blocks handed out
	Bytes  int64 // of those
}

// Detail looks at every block of the pool; Stats is cheaper. Counters of streams
// that were released and whose memory moved on are in ByClass only.
func (p *Pool) Detail() Detail {
	p.mu.Lock()
	defer p.mu.Unlock()
	var d Detail
	var classes [sizeClasses]ClassStats
	for i, n := range p.past.byClass {
		classes[i].Allocs = n
	}
	for _, g := range p.spare {
		d.Free += g.size
		d.LargestFree = max(d.LargestFree, g.size)
	}
	for _, h := range p.heaps.Load().all() {
		h.mu.Lock()
		s := h.detail(&classes)
		h.mu.Unlock()
		d.ByStream = append(d.ByStream, s)
		d.Free += s.Reserved - s.Allocated
		d.LargestFree = max(d.LargestFree, s.LargestFree)
	}
	slices.SortFunc(d.ByStream, func(a, b StreamStats) int { return cmp.Compare(a.Stream, b.Stream) })
	for i, c := range classes {
		if c.Allocs > 0 {
			c.Size = Alignment << i
			d.ByClass = append(d.ByClass, c)
		}
	}
	d.Fragmentation = fragmentation(d.LargestFree, d.Free)
	return d
}

func (h *heap) detail(classes *[sizeClasses]ClassStats) StreamStats {
	s := StreamStats{
		Stream: h.stream, Allocs: h.stats.allocs, Frees: h.stats.frees,
		Allocated: h.stats.allocated, PeakAllocated: h.stats.peak,
		Reserved: h.reserved(), Segments: len(h.segments),
	}
	for i, n := range h.stats.byClass {
		classes[i].Allocs += n
	}
	h.blocks(func(n *node) {
		switch n.state {
		case live:
			c := &classes[sizeClass(n.size)]
			c.Live++
			c.Bytes += n.size
			return
		case cached:
			s.Cached += n.size
		case waiting:
			s.Waiting += n.size
		}
		s.LargestFree = max(s.LargestFree, n.size)
	})
	s.Fragmentation = fragmentation(s.LargestFree, s.Reserved-s.Allocated)
	return s
}
