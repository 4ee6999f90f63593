// Package gap explains memory that an allocator has reserved and no caller uses. It splits the gap,
// reserved − live bytes, by cause. The causes add up to the gap to the byte.
//
// The split is that of soft, hard and stream fragmentation, as TorchRec's issue 4584 names it, with
// rounding, slack and pools for other sizes apart.
package gap

import (
	"cmp"
	"slices"

	"mlpool/allocator"
)

// A Cause says why bytes are reserved and not live.
type Cause int

// Free memory has the first of these causes that applies to it.
const (
	// Rounding: a live block is longer than requested, to a multiple of Unit.
	Rounding Cause = iota
	// Uncut: a live block is longer than that, since the rest was not cut off.
	Uncut
	// Slack: the allocator asked the driver for more than the request needed. It is the free
	// memory right behind the block that the reserved memory last grew for, at most as much as it grew.
	Slack
	// Waiting: freed, while work on other streams may still use it.
	Waiting
	// OtherPool: free, in a segment for other sizes or for one captured graph.
	OtherPool
	// OtherStream: free, but only for requests on another stream.
	OtherStream
	// Fragments: free, but each piece is shorter than the request that the reserved memory last grew for.
	Fragments
	// Cached: free and long enough for that request. It is kept for later.
	Cached
	// Unknown: the driver's own pool holds it and does not say how.
	Unknown
	// Causes is the number of causes.
	Causes
)

var names = [Causes]string{"rounding", "uncut", "slack", "waiting", "other pool", "other stream", "fragments", "cached", "unknown"}

func (c Cause) String() string { return names[c] }

var texts = [Causes]string{
	"blocks are longer than requested, to a multiple of 512 bytes",
	"blocks are longer than their rounded size, because the rest is not cut off",
	"the driver was asked for more than the request needed",
	"freed, while other streams may still use it",
	"free, in a segment for other sizes or for a captured graph",
	"free, but only on another stream",
	"free, but no piece is long enough for the request that the pool last grew for",
	"free and long enough: kept for later requests",
	"in the driver's own pool, which does not say how it is used",
}

// Text explains the cause in one phrase.
func (c Cause) Text() string { return texts[c] }

// Unit is what sizes are rounded to, in bytes, by PyTorch's allocator. Those with a smaller unit round less.
const Unit = 512

// A Growth is the request for which the reserved memory last grew.
type Growth struct {
	Bytes  int64 // requested
	Stream allocator.Stream
	Addr   uintptr // of its block
	Grown  int64   // bytes by which the reserved memory grew
}

// A Split is the gap of a map by cause.
type Split struct {
	Live     int64             `json:"live"`     // bytes requested and not freed
	Reserved int64             `json:"reserved"` // bytes
	Grew     int64             `json:"grew"`     // bytes of the request that fragments are too short for
	Bytes    [Causes]int64     `json:"bytes"`    // by cause; their sum is Reserved − Live
	Holders  [Causes][]Holders `json:"holders"`  // the blocks that hold most of each cause first
}

// Holders are blocks of one tag, size and stream that hold memory of one cause: the rounded blocks
// themselves, and for free memory the live blocks next to it. A free range between two blocks counts half for each.
type Holders struct {
	Tag    string           `json:"tag,omitempty"`
	State  string           `json:"state"` // of the blocks: allocator.MapLive, or another one if no live block is next to the memory
	Stream allocator.Stream `json:"stream"`
	Size   int64            `json:"size"`   // of each block, in bytes
	Blocks int              `json:"blocks"` // number
	Bytes  int64            `json:"bytes"`  // of the cause
	// Born is the number of the request that allocated the oldest of the blocks, −1 if it is unknown.
	Born int64 `json:"born"`
}

// mostHolders is how many Holders of a cause a Split keeps.
const mostHolders = 8

// Of splits the gap of a map. reserved is what the allocator says it has reserved; bytes that the map does
// not show are Unknown. born returns the number of the request that allocated the block at an address, or
// −1; it may be nil. If g is the zero Growth, the longest live block stands for it.
func Of(m allocator.Map, reserved int64, g Growth, born func(uintptr) int64) Split {
	if g.Bytes == 0 {
		g = longest(m)
	}
	a := splitter{growth: g, pool: poolAt(m, g.Addr), born: born}
	a.split.Grew = g.Bytes
	for i := range m.Segments {
		a.segment(&m.Segments[i])
	}
	a.split.Reserved = a.mapped
	if reserved > a.mapped {
		a.split.Reserved = reserved
		a.split.Bytes[Unknown] = reserved - a.mapped
	}
	// A block in a stitch and the pages under it may end at different bytes.
	a.split.Bytes[Uncut] += a.stitched
	for c := range Causes {
		a.split.Holders[c] = a.largest(c)
	}
	return a.split
}

// longest returns the longest live block as a Growth.
func longest(m allocator.Map) (g Growth) {
	for _, s := range m.Segments {
		for _, b := range s.Blocks {
			if b.State == allocator.MapLive && b.Asked > g.Bytes {
				g = Growth{Bytes: b.Asked, Stream: b.Stream, Addr: b.Addr}
			}
		}
	}
	return g
}

// poolAt returns the pool of the segment that has addr.
func poolAt(m allocator.Map, addr uintptr) string {
	for _, s := range m.Segments {
		if addr >= s.Addr && addr < s.Addr+uintptr(s.Bytes) {
			return s.Pool
		}
	}
	return ""
}

// A splitter adds up the causes of one map.
type splitter struct {
	growth   Growth
	pool     string // of the segment that grew
	born     func(uintptr) int64
	split    Split
	mapped   int64 // bytes of segments, each memory once
	stitched int64 // bytes that stitches use, less their blocks
	holders  [Causes]map[holder]*Holders
}

// A holder is what blocks of one Holders have in common.
type holder struct {
	tag, state string
	stream     allocator.Stream
	size       int64
}

func (a *splitter) segment(s *allocator.MapSegment) {
	stitch := s.Kind == allocator.MapStitch
	for i := range s.Blocks {
		b := &s.Blocks[i]
		switch b.State {
		case allocator.MapUnmapped, allocator.MapUnstitched:
			continue
		case allocator.MapStitched:
			a.mapped += b.Bytes
			a.stitched += b.Bytes
			continue
		}
		if stitch {
			a.stitched -= b.Bytes
		} else {
			a.mapped += b.Bytes
		}
		if b.State == allocator.MapLive {
			a.live(b)
			continue
		}
		a.free(s, i)
	}
}

// live adds what a live block has in addition to its request.
func (a *splitter) live(b *allocator.MapBlock) {
	a.split.Live += b.Asked
	over := b.Bytes - b.Asked
	rounding := min(over, (b.Asked+Unit-1)/Unit*Unit-b.Asked)
	a.add(Rounding, rounding, b)
	a.add(Uncut, over-rounding, b)
}

// free adds block i of s, which no caller has.
func (a *splitter) free(s *allocator.MapSegment, i int) {
	b := &s.Blocks[i]
	bytes := b.Bytes
	if slack := a.slack(s, i); slack > 0 {
		a.hold(Slack, slack, s, i)
		bytes -= slack
	}
	if bytes > 0 {
		a.hold(a.cause(s, b), bytes, s, i)
	}
}

// slack returns how many bytes of free block i of s were never needed: it follows the block that the
// reserved memory grew for.
func (a *splitter) slack(s *allocator.MapSegment, i int) int64 {
	if i == 0 || s.Blocks[i].State == allocator.MapWaiting {
		return 0
	}
	if before := &s.Blocks[i-1]; before.State == allocator.MapLive && before.Addr == a.growth.Addr {
		return min(s.Blocks[i].Bytes, a.growth.Grown)
	}
	return 0
}

func (a *splitter) cause(s *allocator.MapSegment, b *allocator.MapBlock) Cause {
	g := a.growth
	anyStream := b.Stream == 0 && s.Pool == "" // 0 is no stream
	switch {
	case b.State == allocator.MapWaiting:
		return Waiting
	case s.Pool != "" && a.pool != "" && s.Pool != a.pool:
		return OtherPool
	case b.Stream != g.Stream && !anyStream:
		return OtherStream
	case b.Bytes < g.Bytes:
		return Fragments
	}
	return Cached
}

// hold adds bytes of free block i of s to a cause, for the live blocks next to it.
func (a *splitter) hold(c Cause, bytes int64, s *allocator.MapSegment, i int) {
	a.split.Bytes[c] += bytes
	var by []*allocator.MapBlock
	for _, next := range []int{i - 1, i + 1} {
		if next >= 0 && next < len(s.Blocks) && s.Blocks[next].State == allocator.MapLive {
			by = append(by, &s.Blocks[next])
		}
	}
	switch len(by) {
	case 0:
		a.holder(c, bytes, &s.Blocks[i])
	case 1:
		a.holder(c, bytes, by[0])
	default:
		a.holder(c, bytes-bytes/2, by[0])
		a.holder(c, bytes/2, by[1])
	}
}

// add adds bytes of b itself to a cause.
func (a *splitter) add(c Cause, bytes int64, b *allocator.MapBlock) {
	if bytes > 0 {
		a.split.Bytes[c] += bytes
		a.holder(c, bytes, b)
	}
}

func (a *splitter) holder(c Cause, bytes int64, b *allocator.MapBlock) {
	key := holder{b.Tag, b.State, b.Stream, b.Bytes}
	if b.State == allocator.MapLive {
		key.size = b.Asked
	}
	if a.holders[c] == nil {
		a.holders[c] = map[holder]*Holders{}
	}
	h := a.holders[c][key]
	if h == nil {
		h = &Holders{Tag: key.tag, State: key.state, Stream: key.stream, Size: key.size, Born: -1}
		a.holders[c][key] = h
	}
	h.Blocks++
	h.Bytes += bytes
	if a.born != nil && b.State == allocator.MapLive {
		if born := a.born(b.Addr); h.Born < 0 || born >= 0 && born < h.Born {
			h.Born = born
		}
	}
}

// largest returns the Holders of most bytes.
func (a *splitter) largest(c Cause) []Holders {
	all := []Holders{}
	for _, h := range a.holders[c] {
		all = append(all, *h)
	}
	slices.SortFunc(all, func(x, y Holders) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Tag, y.Tag), cmp.Compare(y.Size, x.Size), cmp.Compare(x.Stream, y.Stream), cmp.Compare(x.State, y.State))
	})
	return all[:min(len(all), mostHolders):min(len(all), mostHolders)]
}
