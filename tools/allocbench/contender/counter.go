package contender

import (
	"fmt"
	"sync"
)

// A Counter is a device of a number of bytes without memory behind its addresses.
// It counts what is taken of it. Work on it is done at once. Addresses fall from
// call to call and never come again; [Torch] says why.
type Counter struct {
	mu          sync.Mutex
	total, used int64             // bytes
	lowest      uintptr           // address that was handed out
	allocated   map[uintptr]int64 // bytes, by address
	reserved    map[uintptr]int64 // addresses, by the first
	mapped      map[uintptr]bool  // units of mapUnit that have memory
	events      uintptr
}

// mapUnit is the bytes that Map and Unmap work in.
const mapUnit = smallSegmentBytes

// NewCounter returns a device of total bytes.
func NewCounter(total int64) *Counter {
	return &Counter{
		total: total, lowest: 1 << 62,
		allocated: map[uintptr]int64{}, reserved: map[uintptr]int64{}, mapped: map[uintptr]bool{},
	}
}

// addresses returns the first of bytes addresses.
func (c *Counter) addresses(bytes int64) uintptr {
	c.lowest -= uintptr(roundUp(bytes, mapUnit))
	return c.lowest
}

// take counts bytes as taken, if there are as many.
func (c *Counter) take(bytes int64) error {
	if bytes > c.total-c.used {
		return memoryError{bytes, c.total - c.used}
	}
	c.used += bytes
	return nil
}

// Malloc and the other methods: see [allocator.Driver].
func (c *Counter) Malloc(bytes int64) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.take(bytes); err != nil {
		return 0, err
	}
	addr := c.addresses(bytes)
	c.allocated[addr] = bytes
	return addr, nil
}

func (c *Counter) Free(addr uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes, ok := c.allocated[addr]
	if !ok {
		return fmt.Errorf("contender: free of %#x, which is not allocated", addr)
	}
	delete(c.allocated, addr)
	c.used -= bytes
	return nil
}

func (c *Counter) MemInfo() (free, total int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total - c.used, c.total, nil
}

func (c *Counter) NewEvent() (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events++
	return c.events, nil
}

func (c *Counter) RecordEvent(_, _ uintptr) error     { return nil }
func (c *Counter) QueryEvent(_ uintptr) (bool, error) { return true, nil }
func (c *Counter) WaitEvent(_, _ uintptr) error       { return nil }
func (c *Counter) SyncEvent(_ uintptr) error          { return nil }
func (c *Counter) FreeEvent(_ uintptr) error          { return nil }

// Reserve and the other methods: see [Pages].
func (c *Counter) Reserve(bytes int64) (uintptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addr := c.addresses(bytes)
	c.reserved[addr] = bytes
	return addr, nil
}

func (c *Counter) Unreserve(addr uintptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes, ok := c.reserved[addr]
	if !ok {
		return fmt.Errorf("contender: %#x is not reserved", addr)
	}
	for a := range c.mapped {
		if addr <= a && a-addr < uintptr(bytes) {
			return fmt.Errorf("contender: memory is mapped at %#x, which is to be unreserved", a)
		}
	}
	delete(c.reserved, addr)
	return nil
}

func (c *Counter) Map(addr uintptr, bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.checkUnits(addr, bytes, false); err != nil {
		return err
	}
	if err := c.take(bytes); err != nil {
		return err
	}
	for at := int64(0); at < bytes; at += mapUnit {
		c.mapped[addr+uintptr(at)] = true
	}
	return nil
}

func (c *Counter) Unmap(addr uintptr, bytes int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.checkUnits(addr, bytes, true); err != nil {
		return err
	}
	c.used -= bytes
	for at := int64(0); at < bytes; at += mapUnit {
		delete(c.mapped, addr+uintptr(at))
	}
	return nil
}

// checkUnits says that a range is reserved, of whole units, and that all of them
// are mapped or none.
func (c *Counter) checkUnits(addr uintptr, bytes int64, mapped bool) error {
	within := false
	for first, size := range c.reserved {
		within = within || first <= addr && addr-first <= uintptr(size) && uintptr(bytes) <= uintptr(size)-(addr-first) && (addr-first)%mapUnit == 0
	}
	if !within || bytes <= 0 || bytes%mapUnit != 0 {
		return fmt.Errorf("contender: %d bytes at %#x are not whole units of reserved addresses", bytes, addr)
	}
	for at := int64(0); at < bytes; at += mapUnit {
		if a := addr + uintptr(at); c.mapped[a] != mapped {
			return fmt.Errorf("contender: mapped at %#x is %v, not %v", a, c.mapped[a], mapped)
		}
	}
	return nil
}

// Leftover says what was not given back.
func (c *Counter) Leftover() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used == 0 && len(c.allocated)+len(c.reserved) == 0 {
		return nil
	}
	return fmt.Errorf("contender: left over: %d bytes, %d allocations, %d reserved ranges", c.used, len(c.allocated), len(c.reserved))
}
