//go:build linux && cgo

package main

import (
	"sync"

	"mlpool/allocator"
)

// A table finds live blocks by address. Addresses are spread over shards, each with a lock, so that
// threads rarely wait for each other.
type table struct{ shards [shards]shard }

const shards = 128 // a power of two

type shard struct {
	mu     sync.Mutex
	blocks map[uintptr]entry

	_ [112]byte // to 128: two shards share no cache line
}

// An entry is a live block.
type entry struct {
	block  allocator.Block
	from   *captured // that the block is of; nil: of pool.alloc
	shared bool      // RecordStream named a stream
}

// shard returns the shard of an address, which is a multiple of 256.
func (t *table) shard(addr uintptr) *shard {
	const golden = 0x9E3779B97F4A7C15
	return &t.shards[uint64(addr>>8)*golden>>(64-7)]
}

func (t *table) add(b allocator.Block, from *captured) { t.put(entry{block: b, from: from}) }

func (t *table) put(e entry) {
	s := t.shard(e.block.Addr)
	s.mu.Lock()
	if s.blocks == nil {
		s.blocks = map[uintptr]entry{}
	}
	s.blocks[e.block.Addr] = e
	s.mu.Unlock()
}

// take removes the block at addr.
func (t *table) take(addr uintptr) (e entry, ok bool) {
	s := t.shard(addr)
	s.mu.Lock()
	if e, ok = s.blocks[addr]; ok {
		delete(s.blocks, addr)
	}
	s.mu.Unlock()
	return e, ok
}

// get returns the block at addr.
func (t *table) get(addr uintptr) (e entry, ok bool) {
	s := t.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok = s.blocks[addr]
	return e, ok
}

// share marks the block at addr as shared with another stream.
func (t *table) share(addr uintptr) (e entry, ok bool) {
	s := t.shard(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok = s.blocks[addr]; ok {
		e.shared = true
		s.blocks[addr] = e
	}
	return e, ok
}
