//go:build linux && cgo

package main

import (
	"sync"

	"mlpool/allocator"
)

// A table has the live blocks. The front finds them by address and knows their indices. Blocks are spread by
// address over shards, each with a lock, so that threads rarely wait for each other.
type table struct{ shards [1 << shardBits]shard }

const shardBits = 7

type shard struct {
	mu      sync.Mutex
	entries []entry
	unused  []uint32 // places in entries
	added   uint32   // blocks so far

	_ [64]byte // to 128: two shards share no cache line
}

// An entry is a live block; that of address 0 is none.
type entry struct {
	block  allocator.Block
	from   *captured        // that the block is of; nil: of pool.alloc
	stream allocator.Stream // of the request
	number uint32           // see position
	shared bool             // RecordStream named a stream, or the block is exported
}

// A position is where a block is in the table: its index, which has the place in the shard above the shard, and its number
// among the blocks of that shard.
type position struct{ index, number uint32 }

// add adds a block.
func (t *table) add(e *entry) position {
	const golden = 0x9E3779B97F4A7C15
	number := uint64(e.block.Addr>>8) * golden >> (64 - shardBits) // addresses are multiples of 256
	s := &t.shards[number]
	s.mu.Lock()
	place := len(s.entries)
	if last := len(s.unused) - 1; last >= 0 {
		place = int(s.unused[last])
		s.unused = s.unused[:last]
	} else {
		s.entries = append(s.entries, entry{})
	}
	s.added++
	at := position{uint32(place)<<shardBits | uint32(number), s.added}
	to := &s.entries[place]
	to.block, to.from, to.stream, to.number, to.shared = e.block, e.from, e.stream, at.number, e.shared // *to = *e would wait for the stores of these parts
	s.mu.Unlock()
	return at
}

// lock locks the shard of an index and returns the entry of the block at addr there, or nil: a program may free a
// block while another thread names it.
func (t *table) lock(index uint32, addr uintptr) (*shard, *entry) {
	s, place := &t.shards[index&(1<<shardBits-1)], int(index>>shardBits)
	s.mu.Lock()
	if place >= len(s.entries) || s.entries[place].block.Addr != addr || addr == 0 {
		return s, nil
	}
	return s, &s.entries[place]
}

// take removes the block at addr, which has the index, and sets *e to it. It reports whether there was one.
func (t *table) take(index uint32, addr uintptr, e *entry) (ok bool) {
	s, found := t.lock(index, addr)
	if found != nil {
		*e, *found, ok = *found, entry{}, true
		s.unused = append(s.unused, index>>shardBits)
	}
	s.mu.Unlock()
	return ok
}

// get returns the block at addr, which has the index. With share, it is shared with another stream or process from
// now on.
func (t *table) get(index uint32, addr uintptr, share bool) (e entry, ok bool) {
	s, found := t.lock(index, addr)
	if found != nil {
		found.shared = found.shared || share
		e, ok = *found, true
	}
	s.mu.Unlock()
	return e, ok
}
