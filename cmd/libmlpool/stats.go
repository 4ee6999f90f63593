//go:build linux && cgo

package main

import (
	"cmp"
	"math/bits"
	"slices"

	"mlpool/allocator"
)

// What a pool reports of itself, with the memory of captures.

// stats returns the sums of the counters, with what the front served. The peaks of allocated bytes of several allocators
// are added, although they may have been at different times.
func (p *pool) stats() allocator.Stats {
	st := p.outer().Stats()
	_, taken := p.taken()
	st.Allocs += taken
	st.Frees += taken
	c := &p.captures
	c.mu.RLock()
	defer c.mu.RUnlock()
	st = c.withPast(st)
	st.PeakReserved = max(p.driver.peakTaken(false), st.Reserved)
	return st
}

// withPast adds the counters of the captures, also of those that are gone. Caller holds c.mu.
func (c *captures) withPast(st allocator.Stats) allocator.Stats {
	for _, to := range c.every() {
		st = plus(st, to.alloc.Stats())
	}
	peak := st.PeakAllocated
	st = plus(st, c.past)
	st.PeakAllocated = max(peak, c.past.PeakAllocated)
	return st
}

// plus returns the sums of two allocators' counters.
func plus(a, b allocator.Stats) allocator.Stats {
	a.Allocs += b.Allocs
	a.Frees += b.Frees
	a.Refused += b.Refused
	a.DriverCalls += b.DriverCalls
	a.DriverMallocs += b.DriverMallocs
	a.DriverFrees += b.DriverFrees
	a.HostWaits += b.HostWaits
	a.Mappings += b.Mappings
	a.Stitches += b.Stitches
	a.Allocated += b.Allocated
	a.PeakAllocated += b.PeakAllocated
	a.Reserved += b.Reserved
	return a
}

// memory returns the map of all memory.
func (p *pool) memory() allocator.Map {
	m := p.base.Map()
	for _, c := range p.captures.list() {
		m.Segments = append(m.Segments, c.alloc.Map().Segments...)
	}
	slices.SortFunc(m.Segments, func(a, b allocator.MapSegment) int { return cmp.Compare(a.Addr, b.Addr) })
	return m
}

// A report is the JSON of mlpool_stats_json. Sizes are in bytes.
type report struct {
	Allocs        int64                `json:"allocs"`
	Frees         int64                `json:"frees"`
	Refused       int64                `json:"refused"`
	DriverCalls   int64                `json:"driver_calls"`
	DriverMallocs int64                `json:"driver_mallocs"`
	DriverFrees   int64                `json:"driver_frees"`
	HostWaits     int64                `json:"host_waits"`
	Mappings      int64                `json:"mappings"`
	Stitches      int64                `json:"stitches"`
	Allocated     int64                `json:"allocated"`
	AllocatedPeak int64                `json:"allocated_peak"`
	Reserved      int64                `json:"reserved"`
	ReservedPeak  int64                `json:"reserved_peak"`
	ByTag         []allocator.TagBytes `json:"by_tag"`
	MemoryByTag   []tagReport          `json:"memory_by_tag"`
	ByStream      []streamReport       `json:"by_stream"` // outside of captures and tags
	BySize        []sizeReport         `json:"by_size"`   // outside of captures and tags
}

// A tagReport has the memory that serves one tag.
type tagReport struct {
	Tag      string `json:"tag"`
	Reserved int64  `json:"reserved"`
}

// A streamReport has the memory of one stream.
type streamReport struct {
	Stream    uintptr `json:"stream"`
	Allocated int64   `json:"allocated"`
	Reserved  int64   `json:"reserved"`
	Waiting   int64   `json:"waiting"` // freed, while other streams still use it
}

// A sizeReport has the blocks of more than half of Size and at most Size bytes.
type sizeReport struct {
	Size   int64 `json:"size"`
	Allocs int64 `json:"allocs"`
	Live   int   `json:"live"`
	Bytes  int64 `json:"bytes"` // of live blocks
}

// report returns the counters, with sums by tag, stream and size.
func (p *pool) report() report {
	st := p.stats()
	live := p.base.Live()
	for _, c := range p.captures.list() {
		live = append(live, c.alloc.Live()...)
	}
	r := report{
		Allocs: st.Allocs, Frees: st.Frees, Refused: st.Refused, DriverCalls: st.DriverCalls, DriverMallocs: st.DriverMallocs, DriverFrees: st.DriverFrees,
		HostWaits: st.HostWaits, Mappings: st.Mappings, Stitches: st.Stitches, Allocated: st.Allocated,
		AllocatedPeak: st.PeakAllocated, Reserved: st.Reserved, ReservedPeak: st.PeakReserved, ByTag: allocator.ByTag(live),
	}
	for _, c := range p.captures.list() {
		if c.tag != "" {
			r.MemoryByTag = append(r.MemoryByTag, tagReport{c.tag, c.alloc.Stats().Reserved})
		}
	}
	d := p.base.Detail()
	for _, s := range d.ByStream {
		r.ByStream = append(r.ByStream, streamReport{s.Stream, s.Allocated, s.Reserved, s.Waiting})
	}
	taken, _ := p.taken()
	for _, c := range d.ByClass {
		of := &taken[bits.Len64(uint64(c.Size-1)/allocator.Alignment)]
		c.Allocs += *of
		*of = 0
		r.BySize = append(r.BySize, sizeReport(c))
	}
	for i, n := range taken {
		if n > 0 {
			r.BySize = append(r.BySize, sizeReport{Size: allocator.Alignment << i, Allocs: n})
		}
	}
	slices.SortFunc(r.BySize, func(a, b sizeReport) int { return cmp.Compare(a.Size, b.Size) })
	return r
}
