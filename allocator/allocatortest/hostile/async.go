package hostile

import (
	"fmt"
	"slices"

	"mlpool/allocator"
)

// asyncPool is the state of the AsyncDriver. A block that was freed is handed out
// again whole, to a stream that is ordered after the free.
type asyncPool struct {
	closed bool
	blocks map[uintptr]int64 // handed out: address to bytes
	freed  []freedBlock
	held   int64 // bytes
	peak   int64
}

type freedBlock struct {
	addr  uintptr
	bytes int64
	at    clock // of the stream that it was freed on
}

// asyncUnit is what the pool rounds sizes up to, in bytes.
const asyncUnit = 512

// open says whether the pool can be used by the call name.
func (d *Device) open(name string) error {
	if err := d.fails(name); err != nil {
		return err
	}
	if d.async.closed {
		return d.fault("%s after ClosePool", name)
	}
	return nil
}

// MallocAsync implements allocator.AsyncDriver.
func (d *Device) MallocAsync(bytes int64, s uintptr) (uintptr, error) {
	d.lock()
	defer d.unlock()
	if err := d.open("MallocAsync"); err != nil {
		return 0, err
	}
	i, err := d.slot("MallocAsync", s)
	if err != nil {
		return 0, err
	}
	if bytes <= 0 {
		return 0, d.fault("MallocAsync of %d bytes", bytes)
	}
	bytes = (bytes + asyncUnit - 1) &^ (asyncUnit - 1)
	p := &d.async
	addr := p.again(bytes, &d.streams[i].seen, &d.host)
	if addr == 0 {
		if addr, err = d.malloc(bytes); err != nil {
			return 0, err
		}
		p.held += bytes
		p.peak = max(p.peak, p.held)
	}
	p.blocks[addr] = bytes
	return addr, nil
}

// again takes a freed block for a stream that has seen so much, or returns 0.
func (p *asyncPool) again(bytes int64, seen, host *clock) uintptr {
	for i := range p.freed {
		if f := &p.freed[i]; f.bytes == bytes && f.at.beyond(seen, host) < 0 {
			addr := f.addr
			last := len(p.freed) - 1
			p.freed[i] = p.freed[last]
			p.freed = p.freed[:last]
			return addr
		}
	}
	return 0
}

// FreeAsync implements allocator.AsyncDriver.
func (d *Device) FreeAsync(addr, s uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.open("FreeAsync"); err != nil {
		return err
	}
	i, err := d.slot("FreeAsync", s)
	if err != nil {
		return err
	}
	bytes, ok := d.async.blocks[addr]
	if !ok {
		return d.fault("FreeAsync of %#x, which is not handed out", addr)
	}
	delete(d.async.blocks, addr)
	d.async.freed = append(d.async.freed, freedBlock{addr, bytes, d.streams[i].seen})
	return nil
}

// PoolReserved implements allocator.AsyncDriver.
func (d *Device) PoolReserved() (current, peak int64, err error) {
	d.lock()
	defer d.unlock()
	if err := d.open("PoolReserved"); err != nil {
		return 0, 0, err
	}
	return d.async.held, d.async.peak, nil
}

// ResetPoolPeak implements allocator.AsyncDriver.
func (d *Device) ResetPoolPeak() error {
	d.lock()
	defer d.unlock()
	if err := d.open("ResetPoolPeak"); err != nil {
		return err
	}
	d.async.peak = d.async.held
	return nil
}

// TrimPool implements allocator.AsyncDriver. Blocks whose free is not known to be
// done stay.
func (d *Device) TrimPool(keep int64) error {
	d.lock()
	defer d.unlock()
	if err := d.open("TrimPool"); err != nil {
		return err
	}
	return d.trimPool(keep)
}

func (d *Device) trimPool(keep int64) error {
	var err error
	p := &d.async
	p.freed = slices.DeleteFunc(p.freed, func(f freedBlock) bool {
		if p.held <= keep || err != nil || f.at.beyond(&d.host, &d.host) >= 0 {
			return false
		}
		p.held -= f.bytes
		err = d.release("TrimPool", d.mappingAt(f.addr))
		return true
	})
	return err
}

// ClosePool implements allocator.AsyncDriver.
func (d *Device) ClosePool() error {
	d.lock()
	defer d.unlock()
	if err := d.open("ClosePool"); err != nil {
		return err
	}
	if n := len(d.async.blocks); n > 0 {
		return d.fault("ClosePool with %d blocks handed out", n)
	}
	d.async.closed = true
	return d.trimPool(0)
}

// Fill implements allocator.Filler: work on a range, which mends what was
// damaged there.
func (d *Device) Fill(addr uintptr, value uint32, bytes int64, s uintptr) error {
	d.lock()
	defer d.unlock()
	if err := d.words("Fill", addr, bytes, s); err != nil {
		return err
	}
	for _, at := range d.damaged(addr, bytes) {
		delete(d.damage, at)
	}
	return nil
}

// Differing implements allocator.Filler. The words that differ are the damaged
// ones.
func (d *Device) Differing(addr uintptr, value uint32, bytes int64, s uintptr) (int64, error) {
	d.lock()
	defer d.unlock()
	if err := d.words("Differing", addr, bytes, s); err != nil {
		return 0, err
	}
	i, err := d.slot("Differing", s)
	if err != nil {
		return 0, err
	}
	d.learn(&d.streams[i].seen)
	var n int64
	for _, at := range d.damaged(addr, bytes) {
		if d.damage[at] != value {
			n++
		}
	}
	return n, nil
}

// words queues the work of the Filler's call name.
func (d *Device) words(name string, addr uintptr, bytes int64, s uintptr) error {
	if !d.shared { // a failure within a failed Alloc would lose its block
		if err := d.fails(name); err != nil {
			d.mercy = 8
			return err
		}
	}
	if addr%4 != 0 || bytes%4 != 0 || bytes <= 0 {
		return d.fault("%s of %d bytes at %#x, which are not words", name, bytes, addr)
	}
	i, err := d.slot(name, s)
	if err != nil {
		return err
	}
	if d.log != nil {
		fmt.Fprintf(d.log, "    %s %d bytes at %#x on %#x\n", name, bytes, addr, s)
	}
	number := d.record(addr, bytes)
	err = d.touch(name, addr, bytes, i, number)
	if d.records[number].cells == 0 {
		d.unused = append(d.unused, number)
	}
	return err
}

// damaged returns the places of damaged words in bytes bytes at addr.
func (d *Device) damaged(addr uintptr, bytes int64) (places []uintptr) {
	if len(d.damage) == 0 {
		return nil
	}
	for p := range d.parts(addr, bytes) {
		for at := range d.damage {
			if p.from <= at && at < p.to {
				places = append(places, at)
			}
		}
	}
	return places
}

// spoil writes a word at addr, which is outside a block.
func (d *Device) spoil(addr uintptr) {
	d.lock()
	defer d.unlock()
	for p := range d.parts(addr, 4) {
		if p.mapping == nil {
			d.fault("write at %#x, which is not memory", addr)
			return
		}
		d.damage[p.from] = 1
	}
}

var (
	_ allocator.PageDriver  = (*Device)(nil)
	_ allocator.AsyncDriver = (*Device)(nil)
	_ allocator.Filler      = (*Device)(nil)
)
