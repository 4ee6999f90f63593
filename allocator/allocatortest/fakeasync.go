package allocatortest

import (
	"maps"
	"slices"
)

// asyncPool is the state of the AsyncDriver: blocks are handed out again only
// whole, on the stream they were freed on.
type asyncPool struct {
	closed         bool
	blocks         map[uintptr]*asyncBlock
	reserved, peak int64
}

// asyncUnit is what the pool rounds sizes up to, in bytes.
const asyncUnit = 512

type asyncBlock struct {
	size  int64
	freed bool
	on    uintptr
}

// MallocAsync implements allocator.AsyncDriver.
func (f *Fake) MallocAsync(bytes int64, s uintptr) (uintptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("MallocAsync"); err != nil {
		return 0, err
	}
	if f.async.closed {
		return 0, f.fault("MallocAsync on a closed pool")
	}
	bytes = (bytes + asyncUnit - 1) &^ (asyncUnit - 1)
	for addr, b := range f.async.blocks {
		if b.freed && b.on == s && b.size == bytes {
			b.freed = false
			return addr, nil
		}
	}
	addr, err := f.malloc(bytes)
	if err != nil {
		return 0, err
	}
	f.async.blocks[addr] = &asyncBlock{size: bytes}
	f.async.reserved += bytes
	f.async.peak = max(f.async.peak, f.async.reserved)
	return addr, nil
}

// FreeAsync implements allocator.AsyncDriver.
func (f *Fake) FreeAsync(addr, s uintptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("FreeAsync"); err != nil {
		return err
	}
	if err := f.exists("FreeAsync", s); err != nil {
		return err
	}
	b := f.async.blocks[addr]
	if b == nil || b.freed {
		return f.fault("FreeAsync of %#x, which is not handed out", addr)
	}
	b.freed, b.on = true, s
	return nil
}

// PoolReserved implements allocator.AsyncDriver.
func (f *Fake) PoolReserved() (current, peak int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("PoolReserved"); err != nil {
		return 0, 0, err
	}
	return f.async.reserved, f.async.peak, nil
}

// ResetPoolPeak implements allocator.AsyncDriver.
func (f *Fake) ResetPoolPeak() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("ResetPoolPeak"); err != nil {
		return err
	}
	f.async.peak = f.async.reserved
	return nil
}

// TrimPool implements allocator.AsyncDriver.
func (f *Fake) TrimPool(keep int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("TrimPool"); err != nil {
		return err
	}
	f.trim(keep)
	return nil
}

func (f *Fake) trim(keep int64) {
	for _, addr := range slices.Collect(maps.Keys(f.async.blocks)) {
		if b := f.async.blocks[addr]; b.freed && f.async.reserved > keep {
			f.drop(addr, b)
		}
	}
}

func (f *Fake) drop(addr uintptr, b *asyncBlock) {
	delete(f.async.blocks, addr)
	f.unmap(f.mappingAt(addr))
	f.async.reserved -= b.size
	f.used -= b.size
}

// ClosePool implements allocator.AsyncDriver.
func (f *Fake) ClosePool() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.enter("ClosePool"); err != nil {
		return err
	}
	if f.async.closed {
		return f.fault("ClosePool on a closed pool")
	}
	f.async.closed = true
	f.trim(0)
	return nil
}
