package fake

import "slices"

// asyncPool is the state of the AsyncDriver. It hands out freed blocks again, whole, to
// streams that are ordered after the free.
type asyncPool struct {
	closed         bool
	blocks         map[uintptr]int64 // live ones: bytes by address
	freed          []freedBlock
	reserved, peak int64
}

type freedBlock struct {
	span
	at clock // the work before its free
}

// asyncUnit is what the pool rounds sizes up to, in bytes.
const asyncUnit = 512

// enterPool is enter for calls of the pool, which must not be closed.
func (f *Device) enterPool(name string, args ...uintptr) error {
	if err := f.enter(name, args...); err != nil {
		return err
	}
	if f.async.closed {
		return f.fault("%s on a closed pool", name)
	}
	return nil
}

// MallocAsync implements allocator.AsyncDriver.
func (f *Device) MallocAsync(bytes int64, s uintptr) (uintptr, error) {
	defer f.mu.Unlock()
	if err := f.enterPool("MallocAsync", uintptr(bytes), s); err != nil {
		return 0, err
	}
	i, err := f.slot("MallocAsync", s)
	if err != nil {
		return 0, err
	}
	bytes = roundUp(bytes, asyncUnit)
	p := &f.async
	addr := p.again(bytes, f.streams[i].seen, f.host)
	if addr == 0 {
		if addr, err = f.malloc(bytes); err != nil {
			return 0, err
		}
		p.reserved += bytes
		p.peak = max(p.peak, p.reserved)
	}
	p.blocks[addr] = bytes
	return addr, nil
}

// again takes a freed block of bytes bytes whose free is in seen or known to the host, or
// returns 0.
func (p *asyncPool) again(bytes int64, seen, host clock) uintptr {
	i := slices.IndexFunc(p.freed, func(b freedBlock) bool { return b.size == bytes && b.at.beyond(seen, host) < 0 })
	if i < 0 {
		return 0
	}
	addr, last := p.freed[i].addr, len(p.freed)-1
	p.freed[i] = p.freed[last]
	p.freed = p.freed[:last]
	return addr
}

// FreeAsync implements allocator.AsyncDriver.
func (f *Device) FreeAsync(addr, s uintptr) error {
	defer f.mu.Unlock()
	if err := f.enterPool("FreeAsync", addr, s); err != nil {
		return err
	}
	i, err := f.slot("FreeAsync", s)
	if err != nil {
		return err
	}
	size, ok := f.async.blocks[addr]
	if !ok {
		return f.fault("FreeAsync of %#x, which is not handed out", addr)
	}
	delete(f.async.blocks, addr)
	f.async.freed = append(f.async.freed, freedBlock{span{addr, size}, slices.Clone(f.streams[i].seen)})
	return nil
}

// PoolReserved implements allocator.AsyncDriver.
func (f *Device) PoolReserved() (current, peak int64, err error) {
	defer f.mu.Unlock()
	if err := f.enterPool("PoolReserved"); err != nil {
		return 0, 0, err
	}
	return f.async.reserved, f.async.peak, nil
}

// ResetPoolPeak implements allocator.AsyncDriver.
func (f *Device) ResetPoolPeak() error {
	defer f.mu.Unlock()
	if err := f.enterPool("ResetPoolPeak"); err != nil {
		return err
	}
	f.async.peak = f.async.reserved
	return nil
}

// TrimPool implements allocator.AsyncDriver. It waits for the work on freed blocks. A Strict
// device instead keeps blocks with unfinished work.
func (f *Device) TrimPool(keep int64) error {
	defer f.mu.Unlock()
	if err := f.enterPool("TrimPool", uintptr(keep)); err != nil {
		return err
	}
	return f.trim(keep)
}

func (f *Device) trim(keep int64) (err error) {
	p := &f.async
	p.freed = slices.DeleteFunc(p.freed, func(b freedBlock) bool {
		if p.reserved <= keep || err != nil || f.strict && b.at.beyond(f.host, f.host) >= 0 {
			return false
		}
		f.learn(b.at)
		p.reserved -= b.size
		err = f.free("TrimPool", b.addr)
		return true
	})
	return err
}

// ClosePool implements allocator.AsyncDriver.
func (f *Device) ClosePool() error {
	defer f.mu.Unlock()
	if err := f.enterPool("ClosePool"); err != nil {
		return err
	}
	if n := len(f.async.blocks); n > 0 {
		return f.fault("ClosePool with %d blocks handed out", n)
	}
	f.async.closed = true
	return f.trim(0)
}
