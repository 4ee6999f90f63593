package peers

import (
	"errors"

	"mlpool/allocator"
)

// expandable grows PyTorch's allocator by expandable segments.
type expandable struct {
	*cache
	driver  allocator.PageDriver
	refused []page // that the driver refused to release
}

// A segment is a range of addresses of one stream and pool. A prefix is mapped, except for
// gaps that a lack of memory left.
type segment struct {
	addr  uintptr
	page  int64            // bytes of a page
	pages map[uintptr]page // by address
}

// A page is memory that is mapped as a whole.
type page struct {
	handle uintptr // of the driver
	bytes  int64
}

// TorchExpandable returns the caching allocator of PyTorch 2.11 with
// expandable_segments:True, over d. It differs from [Torch] in these rules:
//
//   - A stream has one segment in each pool, with as many addresses as 9/8 of the
//     device's memory. It gets another when that is full (find_expandable_block).
//   - Memory is mapped in pages of 2 MiB in the small pool and 20 MiB in the large
//     one (ExpandableSegment), at the lowest addresses where the request fits. A free
//     block before them is used first (try_allocate_expandable_block, map_block).
//   - A free block at the end of the mapped addresses counts with the addresses
//     behind it in comparisons, so that others are preferred (get_free_block).
//   - A block is split if at least 512 bytes remain, in both pools (should_split).
//   - Memory is released only if there is none left, or for empty_cache: all pages
//     within free blocks are unmapped (release_blocks, unmap_block).
//
// Of Settings, only RoundUpDivisions and GarbageThreshold change it.
func TorchExpandable(d allocator.PageDriver, o Settings) Peer {
	c := newCache(d, o)
	c.growth = &expandable{cache: c, driver: d}
	return c
}

func (e *expandable) fit(p *pool, s allocator.Stream, size int64) *block {
	free := p.free.blocks
	i := p.free.from(&block{stream: s, size: size})
	if i == len(free) || free[i].stream != s {
		return nil
	}
	for i+1 < len(free) && free[i+1].stream == s && free[i+1].room() < free[i].room() {
		i++
	}
	b := free[i]
	p.take(b)
	return b
}

// room is the bytes that a free block can grow to.
func (b *block) room() int64 {
	if b.next != nil && !b.next.mapped {
		return b.size + b.next.size
	}
	return b.size
}

func (e *expandable) grow(p *pool, s allocator.Stream, size int64) (*block, error) {
	b, err := e.place(p, s, size)
	if err != nil {
		return nil, err
	}
	if !b.mapped {
		if err := e.mapPages(b, min(b.size, size)); err != nil {
			return nil, err
		}
	}
	for b.size < size { // the block behind a free block that is too small is not mapped
		next := b.next
		if err := e.mapPages(next, min(size-b.size, next.size)); err != nil {
			return nil, err
		}
		b = next // now contains the free block
	}
	p.take(b)
	return b, nil
}

// place returns the lowest block from which size bytes are free, mapped or not. Either it
// or the next block is not mapped.
func (e *expandable) place(p *pool, s allocator.Stream, size int64) (*block, error) {
	for i := p.unmapped.from(&block{stream: s}); i < len(p.unmapped.blocks) && p.unmapped.blocks[i].stream == s; i++ {
		b := p.unmapped.blocks[i]
		if b.prev != nil && b.prev.free {
			b = b.prev
		}
		bytes := int64(0)
		for n := b; n != nil && n.free && bytes < size; n = n.next {
			bytes += n.size
		}
		if bytes >= size {
			return b, nil
		}
	}
	return e.reserve(p, s, size)
}

// reserve returns a new segment, of at least size addresses, as a block.
func (e *expandable) reserve(p *pool, s allocator.Stream, size int64) (*block, error) {
	unit := int64(largeSegmentBytes)
	if p.small {
		unit = smallSegmentBytes
	}
	least, err := e.driver.PageSize()
	if err != nil {
		return nil, err
	}
	unit = roundUp(unit, least)
	_, total, err := e.MemInfo()
	if err != nil {
		return nil, err
	}
	bytes := roundUp(total+total/8, unit)
	if size > bytes {
		return nil, memoryError{size, bytes}
	}
	addr, err := e.driver.ReserveRange(bytes)
	if err != nil {
		return nil, err
	}
	b := &block{pool: p, stream: s, addr: addr, size: bytes, free: true, segment: &segment{addr, unit, map[uintptr]page{}}}
	p.unmapped.insert(b)
	return b, nil
}

// mapPages maps pages for at least size bytes from the start of b, and makes it free and
// coalesced. After an error fewer may be mapped.
func (e *expandable) mapPages(b *block, size int64) error {
	s := b.segment
	pages, err := e.create(roundUp(size, s.page)/s.page, s.page)
	if err != nil {
		return err
	}
	mapped := int64(0)
	for i, p := range pages {
		addr := b.addr + uintptr(mapped)
		if err = e.driver.MapPages(addr, p.handle, p.bytes); err != nil {
			err = errors.Join(err, e.giveBack(pages[i:]...))
			break
		}
		s.pages[addr] = p
		mapped += p.bytes
	}
	if mapped == 0 {
		return err
	}
	b.pool.take(b)
	if mapped < b.size {
		b.pool.unmapped.insert(b.split(mapped))
	}
	b.mapped = true
	b.pool.put(b)
	return err
}

// create returns count pages of bytes each, or none.
func (e *expandable) create(count, bytes int64) ([]page, error) {
	pages := make([]page, 0, count)
	for range count {
		handle, err := e.driver.CreatePages(bytes)
		if err != nil {
			return nil, errors.Join(err, e.giveBack(pages...))
		}
		pages = append(pages, page{handle, bytes})
		e.reserved += bytes
	}
	e.hold(0) // only now, as pages that are not enough are no peak
	return pages, nil
}

// giveBack releases pages that are not mapped. close retries those that the driver refuses.
func (e *expandable) giveBack(pages ...page) error {
	var errs []error
	for _, p := range pages {
		if err := e.driver.ReleasePages(p.handle); err != nil {
			e.refused, errs = append(e.refused, p), append(errs, err)
			continue
		}
		e.reserved -= p.bytes
	}
	return errors.Join(errs...)
}

func (e *expandable) splits(_ *pool, _, rest int64) bool { return rest >= minBlockBytes }

// release unmaps the pages within b, and releases a segment without pages.
func (e *expandable) release(b *block) error {
	s := b.segment
	from := roundUp(int64(b.addr-s.addr), s.page)
	to := (int64(b.addr-s.addr) + b.size) / s.page * s.page
	if from >= to {
		return nil
	}
	if err := e.drain(b.stream); err != nil {
		return err
	}
	addr := s.addr + uintptr(from)
	bytes, err := e.unmap(s, addr, to-from)
	if bytes == 0 {
		return err
	}
	p := b.pool
	p.take(b)
	if before := int64(addr - b.addr); before > 0 {
		first := b
		b = b.split(before)
		p.free.insert(first)
	}
	if b.size > bytes {
		p.free.insert(b.split(bytes))
	}
	b.mapped = false
	p.put(b)
	if b.whole() {
		err = errors.Join(err, e.unreserve(b))
	}
	return err
}

// unmap unmaps and releases the pages at bytes addresses of s, and returns the number of
// bytes unmapped before an error.
func (e *expandable) unmap(s *segment, addr uintptr, bytes int64) (unmapped int64, err error) {
	for err == nil && unmapped < bytes {
		at := addr + uintptr(unmapped)
		if err := e.driver.UnmapPages(at, s.page); err != nil {
			return unmapped, err
		}
		unmapped += s.page
		err = e.giveBack(s.pages[at])
		delete(s.pages, at)
	}
	return unmapped, err
}

// unreserve releases a segment that is one unmapped block.
func (e *expandable) unreserve(b *block) error {
	if err := e.driver.ReleaseRange(b.addr, b.size); err != nil {
		return err
	}
	b.pool.take(b)
	return nil
}

// close releases the refused pages and the segments without pages.
func (e *expandable) close() error {
	refused := e.refused
	e.refused = nil
	if err := e.giveBack(refused...); err != nil {
		return err
	}
	for _, p := range e.pools {
		for len(p.unmapped.blocks) > 0 {
			if err := e.unreserve(p.unmapped.blocks[0]); err != nil {
				return err
			}
		}
	}
	return nil
}
