package fake

import (
	"iter"
	"slices"
)

// An Owner is a block that the device knows, or the work of one Fill.
type Owner uint32

// A record describes an owner while it owns memory.
type record struct {
	span
	by    clock // its last work on each stream
	bytes int64 // that it owns
	state state
	user  uint64 // the owner of Use; 0: none
}

// A state is where a block is.
type state uint8

const (
	gone   state = iota // freed: the record ends with its last byte
	live                // handed out
	inFree              // in a call of Free: another may get its memory, or it stays live
)

// own returns a new owner.
func (f *memory) own(addr uintptr, size int64, s state) Owner {
	if last := len(f.unused) - 1; last >= 0 {
		o := f.unused[last]
		f.unused = f.unused[:last]
		f.records[o] = record{span: span{addr, size}, state: s, by: f.records[o].by[:0]}
		return o
	}
	f.records = append(f.records, record{span: span{addr, size}, state: s})
	return Owner(len(f.records) - 1)
}

// lose takes bytes from o.
func (f *memory) lose(o Owner, bytes int64) {
	f.records[o].bytes -= bytes
	f.forget(o)
}

// forget recycles the record of o if it owns nothing and is no block.
func (f *memory) forget(o Owner) {
	if r := &f.records[o]; o > 0 && r.bytes == 0 && r.state == gone {
		delete(f.owners, r.user)
		f.unused = append(f.unused, o)
	}
}

// touch queues work on bytes at addr, on the stream of a slot, and makes o their owner. It
// is a fault if they are not memory, overlap another live block, or if the stream is not
// ordered after the work of their previous owner.
func (f *memory) touch(what string, addr uintptr, bytes int64, slot int, o Owner) error {
	parts, ok := f.parts(addr, bytes)
	s := f.streams[slot].handle
	if !ok {
		return f.fault("%s of %d bytes at %#x on stream %#x, of which some are not allocated", what, bytes, addr, s)
	}
	seen := f.streams[slot].seen
	for _, p := range parts {
		for piece := range p.memory.owners.over(p.lo, p.hi) {
			r := &f.records[piece.value]
			if piece.value == o {
				continue
			}
			if r.state == live {
				return f.fault("%s of %d bytes at %#x on stream %#x overlaps the block of %d bytes at %#x, which is handed out",
					what, bytes, addr, s, r.size, r.addr)
			}
			if i := r.by.beyond(seen, f.host); i >= 0 {
				return f.fault("%s of %d bytes at %#x on stream %#x is not ordered after the last work of stream %#x on the block of %d bytes at %#x",
					what, bytes, addr, s, f.streams[i].handle, r.size, r.addr)
			}
		}
	}
	had := f.records[o].bytes
	f.assign(parts, o)
	f.work(parts, slot, o)
	if had == 0 && f.records[o].bytes < bytes {
		return f.fault("%s of %d bytes at %#x, which have the same memory twice", what, bytes, addr)
	}
	return nil
}

// assign makes o the owner of parts.
func (f *memory) assign(parts []part, o Owner) {
	for _, p := range parts {
		for piece := range p.memory.owners.over(p.lo, p.hi) {
			if piece.value != o {
				f.records[o].bytes += piece.hi - piece.lo
				f.lose(piece.value, piece.hi-piece.lo)
			}
		}
		p.memory.owners = p.memory.owners.set(p.lo, p.hi, o)
	}
}

// work queues work of o on the stream of a slot.
func (f *memory) work(parts []part, slot int, o Owner) {
	seen := &f.streams[slot].seen
	now := seen.at(slot) + 1
	seen.set(slot, now)
	f.records[o].by.set(slot, now)
	for _, p := range parts {
		p.work.set(slot, now)
	}
}

// HandedOut tells the device that an allocator handed out a block for stream s, and queues
// work there. It is a fault if the block is misaligned, overlaps another live block, or if
// s is not ordered after the last work on its memory.
func (f *memory) HandedOut(addr uintptr, size int64, s uintptr) (Owner, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if addr%alignment != 0 {
		return 0, f.fault("the block of %d bytes at %#x is not aligned to %d", size, addr, alignment)
	}
	i, err := f.slot("use", s)
	if err != nil {
		return 0, err
	}
	size = max(size, 1)
	o := f.own(addr, size, live)
	return o, f.touch("use", addr, size, i, o)
}

// Work queues work on the block of o on stream s. The caller orders it after other work on
// the block.
func (f *memory) Work(o Owner, s uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.slot("use", s)
	if err != nil {
		return err
	}
	r := &f.records[o]
	parts, ok := f.parts(r.addr, r.size)
	if !ok {
		return f.fault("use of the block of %d bytes at %#x, of which some are not allocated", r.size, r.addr)
	}
	f.work(parts, i, o)
	return nil
}

// Await makes stream s wait for all work on the block of o, except on streams whose
// StreamID is in but.
func (f *memory) Await(o Owner, s uintptr, but []uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	to, err := f.slot("order", s)
	if err != nil {
		return err
	}
	seen := &f.streams[to].seen
	for i, t := range f.records[o].by {
		if t > seen.at(i) && t > f.host.at(i) && !slices.Contains(but, f.streams[i].id) {
			seen.join(f.streams[i].seen)
		}
	}
	return nil
}

// Freeing tells the device that Free of the block of o begins. Its memory may then be
// handed out again.
func (f *memory) Freeing(o Owner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records[o].state = inFree
}

// Freed tells the device that the block of o was freed, or is given up.
func (f *memory) Freed(o Owner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records[o].state = gone
	f.forget(o)
}

// Kept tells the device that Free of the block of o failed. The block takes over the work
// of a Filler within that Free. While the allocator sleeps the block may have no memory.
func (f *memory) Kept(o Owner) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &f.records[o]
	r.state = live
	parts, ok := f.parts(r.addr, r.size)
	if !ok && f.asleep {
		return nil
	}
	if !ok {
		return f.fault("the block of %d bytes at %#x was not freed, and some of them are not allocated", r.size, r.addr)
	}
	for _, p := range parts {
		for piece := range p.memory.owners.over(p.lo, p.hi) {
			if piece.value != o {
				r.by.join(f.records[piece.value].by)
			}
		}
	}
	f.assign(parts, o)
	return nil
}

// Use queues work on bytes at addr, on stream s, for owner, a number above 0 that is unique
// for a block. It stands for a kernel launch. It is a fault if s is not ordered after work
// of another owner on the same memory, at this or another address.
func (f *memory) Use(addr uintptr, bytes int64, s uintptr, owner uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, err := f.slot("use", s)
	if err != nil {
		return err
	}
	o, ok := f.owners[owner]
	if !ok {
		o = f.own(addr, bytes, gone)
		f.records[o].user = owner
		f.owners[owner] = o
	}
	err = f.touch("use", addr, bytes, i, o)
	f.forget(o)
	return err
}

// PagesUnder returns the bytes of the pages that contain blocks, each an address and a size.
func (f *memory) PagesUnder(blocks iter.Seq2[uintptr, int64]) (bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := map[*extent]bool{}
	for addr, size := range blocks {
		parts, _ := f.parts(addr, max(size, 1))
		for _, p := range parts {
			if p.memory.pages != 0 && !seen[p.memory] {
				seen[p.memory] = true
				bytes += p.memory.size
			}
		}
	}
	return bytes
}
