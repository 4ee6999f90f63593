package peers

import (
	"errors"

	"mlpool/allocator"
)

// expandable grows PyTorch's allocator by expandable segments.
type expandable struct {
	*cache
	driver allocator.PageDriver
}

// A segment is a range of addresses of one stream and pool. A prefix is mapped, except for
// gaps that a lack of memory left.
type segment struct {
	addr  uintptr
	page  int64               // bytes of a page, which is mapped as a whole
	pages map[uintptr]uintptr // handles by address
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
// With MaxSplitBytes, a longer free block serves no shorter request, though it is cut.
func TorchExpandable(d allocator.PageDriver, o Settings) Peer {
	c := newCache(d, o)
	c.growth = &expandable{cache: c, driver: d}
	return c
}

// mostRange is a number of bytes that no device exceeds, for ranges of addresses.
const mostRange = 1 << 44

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
	if !p.small && e.settings.tooLong(b.size, size) {
		return nil
	}
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
			if b.whole() { // a new segment
				p.take(b)
				err = errors.Join(err, e.driver.ReleaseRange(b.addr, b.size))
			}
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
	total = min(total, mostRange) // a simulated device may have more
	bytes := roundUp(max(total+total/8, size), unit)
	addr, err := e.driver.ReserveRange(bytes)
	if err != nil {
		return nil, err
	}
	b := &block{pool: p, stream: s, addr: addr, size: bytes, free: true, segment: &segment{addr, unit, map[uintptr]uintptr{}}}
	p.unmapped.insert(b)
	return b, nil
}

// mapPages maps pages for at least size bytes from the start of b, and makes it free and
// coalesced.
func (e *expandable) mapPages(b *block, size int64) error {
	s, mapped := b.segment, roundUp(size, b.segment.page)
	pages, err := e.create(mapped/s.page, s.page)
	if err != nil {
		return err
	}
	for i, handle := range pages {
		addr := b.addr + uintptr(i)*uintptr(s.page)
		if err := e.driver.MapPages(addr, handle, s.page); err != nil {
			return err
		}
		s.pages[addr] = handle
	}
	e.hold(mapped)
	b.pool.take(b)
	if mapped < b.size {
		b.pool.unmapped.insert(b.split(mapped))
	}
	b.mapped = true
	b.pool.put(b)
	return nil
}

// create returns count pages of bytes each, or none.
func (e *expandable) create(count, bytes int64) (pages []uintptr, err error) {
	for range count {
		handle, err := e.driver.CreatePages(bytes)
		if err != nil {
			for _, p := range pages {
				err = errors.Join(err, e.driver.ReleasePages(p))
			}
			return nil, err
		}
		pages = append(pages, handle)
	}
	return pages, nil
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
	for at := s.addr + uintptr(from); at < s.addr+uintptr(to); at += uintptr(s.page) {
		if err := errors.Join(e.driver.UnmapPages(at, s.page), e.driver.ReleasePages(s.pages[at])); err != nil {
			return err
		}
		delete(s.pages, at)
		e.hold(-s.page)
	}
	p := b.pool
	p.take(b)
	if before := from - int64(b.addr-s.addr); before > 0 {
		first := b
		b = b.split(before)
		p.free.insert(first)
	}
	if b.size > to-from {
		p.free.insert(b.split(to - from))
	}
	b.mapped = false
	p.put(b)
	if !b.whole() {
		return nil
	}
	p.take(b)
	return e.driver.ReleaseRange(b.addr, b.size)
}
