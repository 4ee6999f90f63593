package allocator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mlpool/allocator/internal/block"
)

// What allocators report of their memory: by stream, by size and by tag.

// A Detail breaks down what a pool holds at one moment.
type Detail struct {
	ByStream []StreamStats // sorted by stream
	ByClass  []ClassStats  // sorted by size, without classes that had no block

	// Free is the bytes reserved and not handed out, LargestFree the bytes of the largest
	// free block, and Fragmentation the percentage of Free outside that block.
	Free, LargestFree int64
	Fragmentation     float64
}

// StreamStats are the counters of one stream's memory.
type StreamStats struct {
	Stream        Stream
	Allocs, Frees int64

	Allocated, PeakAllocated, Reserved int64 // bytes
	// Cached is the bytes kept for requests of the same size, Waiting the bytes that
	// other streams still use.
	Cached, Waiting int64
	Segments        int
	LargestFree     int64 // bytes
	Fragmentation   float64
}

// ClassStats are the counters of the blocks of more than Size/2 and at most Size
// bytes, after rounding.
type ClassStats struct {
	Size   int64
	Allocs int64
	Live   int   // blocks handed out
	Bytes  int64 // of live blocks
}

// Detail looks at every block of the pool; Stats is cheaper. Blocks of a released stream
// that are still handed out count for the stream that they were allocated on.
func (p *Pool) Detail() Detail {
	p.mu.Lock()
	defer p.mu.Unlock()
	var d Detail
	var classes [sizeClasses]ClassStats
	for i, c := range p.past.classes {
		classes[i].Allocs = c.allocs
	}
	p.everyHeap(func(h *heap) {
		s := h.detail(&classes)
		if h != p.unowned {
			d.ByStream = append(d.ByStream, s)
		}
		d.Free += s.Reserved - s.Allocated
		d.LargestFree = max(d.LargestFree, s.LargestFree)
	})
	d.Free += p.space.Kept()
	d.addReleased(p.unowned)
	slices.SortFunc(d.ByStream, func(a, b StreamStats) int { return cmp.Compare(a.Stream, b.Stream) })
	for i, c := range classes {
		if c.Allocs > 0 || c.Live > 0 {
			c.Size = Alignment << i
			d.ByClass = append(d.ByClass, c)
		}
	}
	d.Fragmentation = fragmentation(d.LargestFree, d.Free)
	return d
}

// addReleased counts the live blocks of the unowned heap for the stream that they were
// allocated on.
func (d *Detail) addReleased(unowned *heap) {
	unowned.mu.Lock()
	defer unowned.mu.Unlock()
	at := map[Stream]int{}
	for i, s := range d.ByStream {
		at[s.Stream] = i
	}
	unowned.each(func(n *block.Node) {
		if n.State != live {
			return
		}
		i, known := at[recordOf(n).stream]
		if !known {
			i = len(d.ByStream)
			at[recordOf(n).stream] = i
			d.ByStream = append(d.ByStream, StreamStats{Stream: recordOf(n).stream})
		}
		s := &d.ByStream[i]
		s.Allocs++
		s.Allocated += recordOf(n).counted()
		s.PeakAllocated += recordOf(n).counted()
		s.Reserved += n.Size()
	})
}

func (h *heap) detail(classes *[sizeClasses]ClassStats) StreamStats {
	s := StreamStats{
		Stream: h.stream, Allocated: h.stats.allocated, PeakAllocated: h.stats.peak,
		Reserved: h.Reserved(), Segments: h.RangeCount(),
	}
	s.Allocs, s.Frees = h.stats.counts()
	for i, c := range h.stats.classes {
		classes[i].Allocs += c.allocs
	}
	h.each(func(n *block.Node) {
		switch n.State {
		case live:
			bytes := recordOf(n).counted()
			c := &classes[sizeClass(bytes)]
			c.Live++
			c.Bytes += bytes
			return
		case part:
			return
		case block.Cached:
			s.Cached += n.Size()
		case waiting:
			s.Waiting += n.Size()
		}
		s.LargestFree = max(s.LargestFree, n.Size())
	})
	s.Fragmentation = fragmentation(s.LargestFree, s.Reserved-s.Allocated)
	return s
}

// Stats implements [Allocator].
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Reserved: p.reserved, PeakReserved: p.peakReserved}
	p.driver.fill(&st)
	st.Stitches = p.space.Stitched
	st.Allocs, st.Frees = p.past.counts()
	p.everyHeap(func(h *heap) {
		allocs, frees := h.stats.counts()
		st.Allocs += allocs
		st.Frees += frees
		st.Allocated += h.stats.allocated
		st.PeakAllocated += h.stats.peak
	})
	st.PeakAllocated = max(min(max(st.PeakAllocated, p.pastPeak), p.peakReserved), st.Allocated)
	return st
}

// ResetPeaks implements [Allocator].
func (p *Pool) ResetPeaks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.peakReserved = p.reserved
	p.pastPeak = 0
	p.everyHeap(func(h *heap) { h.stats.peak = h.stats.allocated })
	p.forgetPeak()
}

// Live implements [Allocator].
func (p *Pool) Live() []LiveBlock {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live()
}

func (p *Pool) live() []LiveBlock {
	var all []LiveBlock
	p.everyHeap(func(h *heap) {
		h.each(func(n *block.Node) {
			if n.State == live {
				all = append(all, recordOf(n).describe(n.Addr()))
			}
		})
	})
	sortByAddress(all)
	return all
}

// LeakError lists the blocks that were live when their allocator was closed. Their memory was
// returned nevertheless.
type LeakError struct {
	Blocks int
	Bytes  int64 // as requested
	Tags   []TagBytes
}

// maxTagsInText keeps the one line of a LeakError readable.
const maxTagsInText = 8

func (e *LeakError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "allocator: closed with %d blocks of %d bytes not freed:", e.Blocks, e.Bytes)
	for i, t := range e.Tags {
		if i == maxTagsInText {
			fmt.Fprintf(&b, " and %d other tags", len(e.Tags)-i)
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d x %q (%d bytes)", t.Blocks, t.Tag, t.Bytes)
	}
	return b.String()
}

// leakError returns a LeakError of blocks, or nil if there are none.
func leakError(blocks []LiveBlock) error {
	if len(blocks) == 0 {
		return nil
	}
	e := &LeakError{Blocks: len(blocks), Tags: ByTag(blocks)}
	for _, t := range e.Tags {
		e.Bytes += t.Bytes
	}
	return e
}

// TagBytes sums up the blocks with one tag.
type TagBytes struct {
	Tag    string `json:"tag"`
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"` // as requested
}

// ByTag sums blocks by tag, such as those of Live, and returns the largest sums first.
func ByTag(blocks []LiveBlock) []TagBytes {
	var tags []TagBytes
	at := map[string]int{}
	for _, b := range blocks {
		i, seen := at[b.Tag]
		if !seen {
			i = len(tags)
			at[b.Tag] = i
			tags = append(tags, TagBytes{Tag: b.Tag})
		}
		tags[i].Blocks++
		tags[i].Bytes += b.Bytes
	}
	slices.SortFunc(tags, func(a, b TagBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Tag, b.Tag))
	})
	return tags
}
