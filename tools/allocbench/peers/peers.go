// Package peers has the allocators of other projects, written anew from their published
// rules, to compare how much memory they reserve for the same requests. A peer places
// blocks and asks for memory as the original does. It is not as fast.
//
// A peer is an [allocator.AsyncDriver], of which allocator.NewAsync makes an allocator. Its
// device is simulated too, and may run out of memory, but fails in no other way: after
// another error of the device a peer must not be used.
package peers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator"
)

// A Peer is a stream-ordered pool of another project.
type Peer interface {
	allocator.AsyncDriver
	allocator.Driver // an allocator.Async uses its events

	// RecordStream says that another stream uses the live memory at addr.
	RecordStream(addr, stream uintptr) error

	// UsePool says which pool serves the requests that follow: 0 is the default pool, another number a
	// private one, such as that of a captured graph. Memory stays in its pool.
	UsePool(private int32)

	// Map returns the memory at this moment. Blocks have no tags.
	Map() allocator.Map
}

// A block is a part of a segment: handed out, waiting for events, or free.
type block struct {
	pool   *pool
	stream allocator.Stream
	addr   uintptr
	size   int64 // bytes
	asked  int64 // bytes requested, while it is handed out
	search int64 // cache.searches when it became free

	free       bool // in pool.free, or in pool.unmapped
	mapped     bool // it has memory; always true without virtual memory
	prev, next *block
	segment    *segment // nil without virtual memory

	uses   []allocator.Stream // recorded other streams
	events int                // unfinished ones; it is free once there are none
}

// split cuts b after size bytes and returns the rest, which is in no set.
func (b *block) split(size int64) *block {
	rest := &block{
		pool: b.pool, stream: b.stream, addr: b.addr + uintptr(size), size: b.size - size,
		free: b.free, mapped: b.mapped, prev: b, next: b.next, segment: b.segment,
	}
	if b.next != nil {
		b.next.prev = rest
	}
	b.next, b.size = rest, size
	return rest
}

// whole reports whether b is its whole segment.
func (b *block) whole() bool { return b.prev == nil && b.next == nil }

// A blockSet is a sorted set of blocks.
type blockSet struct {
	blocks  []*block
	compare func(a, b *block) int
}

func bySize(a, b *block) int {
	return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.size, b.size), cmp.Compare(a.addr, b.addr))
}

func byAddress(a, b *block) int {
	return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.addr, b.addr))
}

// from returns the index of the first block not before key.
func (s *blockSet) from(key *block) int {
	i, _ := slices.BinarySearchFunc(s.blocks, key, s.compare)
	return i
}

func (s *blockSet) insert(b *block) { s.blocks = slices.Insert(s.blocks, s.from(b), b) }

func (s *blockSet) remove(b *block) {
	i := s.from(b)
	s.blocks = slices.Delete(s.blocks, i, i+1)
}

// A pool has the free blocks for small or for large requests.
type pool struct {
	small    bool
	private  int32    // the number of a private pool; 0 for the default one
	free     blockSet // with memory, by stream, size and address
	unmapped blockSet // without memory, by stream and address
}

func newPool(small bool, private int32) *pool {
	return &pool{small: small, private: private, free: blockSet{compare: bySize}, unmapped: blockSet{compare: byAddress}}
}

// String returns the pool's name, as in MapSegment.Pool.
func (p *pool) String() string {
	name := "large"
	if p.small {
		name = "small"
	}
	if p.private > 0 {
		name += fmt.Sprintf(" private %d", p.private)
	}
	return name
}

// set returns the set of b while it is free.
func (p *pool) set(b *block) *blockSet {
	if b.mapped {
		return &p.free
	}
	return &p.unmapped
}

// put makes b free and coalesces it with its neighbours.
func (p *pool) put(b *block) {
	b.free, b.asked = true, 0
	p.merge(b, b.prev)
	p.merge(b, b.next)
	p.set(b).insert(b)
}

// take removes a free block from its set.
func (p *pool) take(b *block) { p.set(b).remove(b) }

// merge adds a neighbour to b, which is in no set, if it is free and mapped as b is.
func (p *pool) merge(b, neighbour *block) {
	if neighbour == nil || !neighbour.free || neighbour.mapped != b.mapped {
		return
	}
	p.take(neighbour)
	b.size += neighbour.size
	if neighbour == b.prev {
		b.addr, b.prev = neighbour.addr, neighbour.prev
		if b.prev != nil {
			b.prev.next = b
		}
		return
	}
	if b.next = neighbour.next; b.next != nil {
		b.next.prev = b
	}
}

// roundUp returns n rounded up to a multiple of unit.
func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

func outOfMemory(err error) bool {
	var o interface{ OutOfMemory() bool }
	return errors.As(err, &o) && o.OutOfMemory()
}
