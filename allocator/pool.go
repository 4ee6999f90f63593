package allocator

import (
	"cmp"
	"errors"
	"fmt"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// NewPool returns a pool over d. It calls the driver only to preallocate, and for the size of the
// device if MaxFraction or, without a limit, GCThreshold needs it.
func NewPool(d Driver, o PoolOptions) (*Pool, error) {
	if d == nil {
		return nil, errors.New("allocator: the driver is nil")
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Pool{opt: o, strategy: o.strategy(), driver: meter{driver: d, events: d}}
	p.driver.copier, _ = d.(HostCopier)
	p.events.Driver = &p.driver
	if err := p.limit(); err != nil {
		return nil, err
	}
	var err error
	if p.space, err = p.newSpace(); err != nil {
		return nil, err
	}
	p.unowned = newHeap(p, 0)
	p.unowned.pages.Idle = true
	p.list = []*heap{p.unowned}
	p.heaps.Store(newHeapTable(nil))
	if o.PreallocateBytes > 0 {
		if err := p.preallocate(o.PreallocateBytes, "PreallocateBytes"); err != nil {
			return nil, undo.Both(fmt.Errorf("allocator: pre-allocation of %d bytes: %w", o.PreallocateBytes, err), p.Close())
		}
	}
	return p, nil
}

// Alloc implements [Allocator]. While a free block of the stream's heap fits, it calls the driver only to ask, now and
// then, whether other streams are done with blocks that were freed. It waits on the host only if the driver has no more
// memory, or if memory must be released first: beyond GCThreshold. Apart from calls that order streams, or create or
// map memory, it makes at most 16 driver calls, however many streams there are. While it creates or maps chunks
// (allocator/TUNING.md has the times), other requests that no free block fits wait, and so do all calls that examine
// every stream; see Trim.
func (p *Pool) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if h := p.heaps.Load().of(s); h != nil && uint64(bytes) <= maxRequest {
		size := blockSize(bytes)
		h.mu.Lock()
		if p.opt.KeepMapped || h.waiting.Poll() == nil { // else the slow path has the error, if it needs those blocks
			if n := h.Take(size); n != nil {
				b := h.handOut(n, bytes, s, tag)
				h.mu.Unlock()
				return b, nil
			}
		}
		h.mu.Unlock()
	}
	return p.allocSlowly(bytes, block.Place{}, s, tag)
}

// Free implements [Allocator]. It does not call the driver if the block was allocated on s, from memory
// of s, and RecordStream named no other stream. If the driver refuses to record an event, the block
// stays live, and Free can be called again.
func (p *Pool) Free(b Block, s Stream) error {
	r, _ := b.owner().(*record)
	if r == nil || r.heap.pool != p {
		return ErrUnknownBlock
	}
	h := r.heap
	h.mu.Lock()
	if h.into != nil {
		h.mu.Unlock()
		h = r.lockHeap()
	}
	n := &r.node
	if err := r.check(b, n.Addr()); err != nil {
		h.mu.Unlock()
		return p.whyUnknown(err)
	}
	if s == h.stream && len(r.users) == 0 && h != p.unowned {
		h.free(r)
		h.noteChange()
		h.Recycle(n)
		h.mu.Unlock()
		return nil
	}
	err := h.freeForeign(r, s)
	h.mu.Unlock()
	return err
}

// freeSized implements sizedFreer.
func (p *Pool) freeSized(b Block, s Stream) (bytes int64, err error) {
	if r, h, err := p.lockBlock(b); err == nil {
		bytes = r.asked
		h.mu.Unlock()
	}
	return bytes, p.Free(b, s)
}

// whyUnknown distinguishes a block that was freed from one that Close freed.
func (p *Pool) whyUnknown(err error) error {
	if err == ErrDoubleFree && p.isClosed() {
		return ErrClosed
	}
	return err
}

// RecordStream says that work on s also uses b, so that the next use of the memory waits for the work
// queued on s before the Free. Without it the caller must order that work before the Free.
func (p *Pool) RecordStream(b Block, s Stream) error {
	r, h, err := p.lockBlock(b)
	if err != nil {
		return p.whyUnknown(err)
	}
	defer h.mu.Unlock()
	h.alsoUsedOn(r, s)
	return nil
}

// Extend gives b the free memory that follows it, as room, and returns the bytes of both. The room does not count as
// allocated. Extend does not wait. If there is no such memory, or another goroutine holds a lock, it returns 0; so it
// does for blocks that another stream uses, in stitches, in chunks of small blocks, and with other strategies than tlsf.
func (p *Pool) Extend(b Block) int64 {
	r, _ := b.owner().(*record)
	if r == nil || r.heap.pool != p || !r.heap.mu.TryLock() {
		return 0
	}
	h, n := r.heap, &r.node
	defer h.mu.Unlock()
	if h != p.unowned && h.into == nil && r.check(b, n.Addr()) == nil && len(r.users) == 0 && !n.IsSmall() {
		if r.room += h.Extend(n); r.room > 0 {
			return n.Size()
		}
	}
	return 0
}

// Shrink gives back the room of b, of which b now has bytes and once had most.
func (p *Pool) Shrink(b Block, bytes, most int64) error {
	r, h, err := p.lockBlock(b)
	if err != nil {
		return p.whyUnknown(err)
	}
	defer h.mu.Unlock()
	n, st, size, before := &r.node, &h.stats, blockSize(bytes), r.counted()
	if bytes < 0 || max(bytes, most) > n.Size() {
		return ErrBadSize
	}
	st.peak = max(st.peak, st.allocated-before+blockSize(most))
	st.allocated += size - before
	h.noteChange()
	if h != p.unowned { // of which no event orders work
		h.Shrink(n, size)
	}
	r.room, r.asked = n.Size()-size, bytes
	return nil
}

// orderUsers implements userOrderer.
func (p *Pool) orderUsers(b Block, s Stream) error {
	r, h, err := p.lockBlock(b)
	if err != nil {
		return err
	}
	defer h.mu.Unlock()
	if h != p.unowned && s != h.stream { // a block of another heap names its stream
		if err := p.events.Order(h.stream, s); err != nil {
			return err
		}
	}
	return p.users.Order(r.users, s, &p.events)
}

// DriverCalls returns Stats().DriverCalls, and is cheap.
func (p *Pool) DriverCalls() int64 { return p.driver.calls.Load() }

// reservedBytes returns Stats().Reserved without a look at every heap.
func (p *Pool) reservedBytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reserved
}

// driverMeter implements metered. With KeepMapped, Timed times every call, since a capture makes too few
// to estimate from a sample.
func (p *Pool) driverMeter() *meter {
	if p.opt.KeepMapped {
		return nil
	}
	return &p.driver
}

// Close implements [Allocator]. If the driver refuses a call, Close returns the error, and another
// Close tries it again.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var leaked []LiveBlock
	if !p.closed {
		p.closed = true
		leaked = p.live()
		p.boundPeak()
		p.everyHeap(p.takeApart)
		p.reserved, p.list = 0, nil
		p.heaps.Store(newHeapTable(nil))
		for _, event := range p.space.lastUses {
			p.events.Release(event)
		}
		p.space.lastUses = nil
	} else if p.events.Closed() && len(p.sleep.host) == 0 && p.space.IsEmpty() {
		return ErrClosed
	}
	var errs []error
	p.space.Close(&errs)
	p.freeHost(&errs)
	p.events.Close(&errs)
	return undo.OneOrJoined(append(errs, leakError(leaked)))
}

// limit converts options that are fractions to bytes.
func (p *Pool) limit() error {
	o := &p.opt
	most := o.MaxBytes
	if o.MaxFraction > 0 || o.GCThreshold > 0 && most == 0 {
		_, total, err := p.driver.MemInfo()
		if err != nil {
			return fmt.Errorf("allocator: size of the device: %w", err)
		}
		if total == 0 {
			return errors.New("allocator: size of the device: the driver does not know it")
		}
		if share := max(int64(o.MaxFraction*float64(total)), 1); o.MaxFraction > 0 && (most == 0 || share < most) {
			o.MaxBytes = share
		}
		most = cmp.Or(o.MaxBytes, total)
	}
	p.threshold = int64(o.GCThreshold * float64(most))
	return nil
}

// SetMaxBytes changes PoolOptions.MaxBytes; 0: no limit. MaxFraction no longer counts, and GCThreshold is a
// share of the new limit. A pool that has reserved more keeps it and does not grow; Trim releases what is
// unused.
func (p *Pool) SetMaxBytes(most int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return ErrClosed
	case most < 0:
		return fmt.Errorf("allocator: MaxBytes %d is negative", most)
	case !p.space.Whole && most > 0 && most < p.space.Page:
		return fmt.Errorf("allocator: the limit of %d bytes is less than a page of %d", most, p.space.Page)
	}
	bytes, fraction := p.opt.MaxBytes, p.opt.MaxFraction
	p.opt.MaxBytes, p.opt.MaxFraction = most, 0
	if err := p.limit(); err != nil {
		p.opt.MaxBytes, p.opt.MaxFraction = bytes, fraction
		return err
	}
	p.full, p.limited = false, true // another limit would have changed earlier calls
	return nil
}

// Segments returns the kind of the pool's segments: SegmentsVirtual or SegmentsMalloc.
func (p *Pool) Segments() string {
	if p.space.Whole {
		return SegmentsMalloc
	}
	return SegmentsVirtual
}

// Reserve reserves memory ahead, until any stream may take bytes without waiting; with malloc segments they are in one
// segment. It counts only chunks that no work uses, and reserves whole pages. If the device or the limit has too little
// memory for them the error is an [*OutOfMemoryError], and nothing is reserved.
func (p *Pool) Reserve(bytes int64) error {
	if bytes < 0 {
		return ErrBadSize
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return err
	}
	return p.preallocate(bytes, "Reserve")
}

// AllocAligned implements [AlignedAllocator]. It takes a larger block if no free memory is in the right
// place, and the rest of it stays free. With virtual segments, an alignment of at most a page needs no
// larger one. Strategy buddy cannot align blocks.
func (p *Pool) AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error) {
	return allocAligned(p, bytes, alignment, s, tag)
}

// allocAt implements placer.
func (p *Pool) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if at.Unit == 0 {
		return p.Alloc(bytes, s, tag)
	}
	if p.strategy.Rigid {
		return Block{}, fmt.Errorf("allocator: strategy %s aligns no block: %w", p.opt.Strategy, errors.ErrUnsupported)
	}
	if h := p.heaps.Load().of(s); h != nil && uint64(bytes) <= maxRequest {
		h.mu.Lock()
		h.Flush()
		if n := h.TakeBest(blockSize(bytes), at); n != nil {
			b := h.handOut(n, bytes, s, tag)
			h.mu.Unlock()
			return b, nil
		}
		h.mu.Unlock()
	}
	return p.allocSlowly(bytes, at, s, tag)
}
