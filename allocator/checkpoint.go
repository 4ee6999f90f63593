package allocator

import (
	"fmt"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
	"mlpool/allocator/internal/pages"
)

// AllocAt is Alloc of the block that was at addr, with as many bytes and on the same stream, before it was freed: for a
// captured graph that writes there. It waits for the work of other streams on the blocks that were freed. Nothing may have
// been unmapped since; see PoolOptions.KeepMapped.
func (p *Pool) AllocAt(addr uintptr, bytes int64, s Stream, tag string) (Block, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(); err != nil {
		return Block{}, err
	}
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	r := p.newRequest(bytes, s, tag)
	h := r.heap
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.drain(order.HostWaits); err != nil {
		return Block{}, err
	}
	h.Flush()
	spans, in := p.space.spansAt(addr, addr+uintptr(r.size))
	var parts []*block.Node
	for _, x := range spans {
		n := h.TakeBest(int64(x.Hi-x.Lo), block.At(x.Lo))
		if n == nil {
			for _, n := range parts {
				h.Coalesce(n)
			}
			return Block{}, fmt.Errorf("allocator: %d bytes at %#x are not free on stream %#x", bytes, addr, s)
		}
		n.State = part
		parts = append(parts, n)
	}
	return *p.handOutAt(r, parts, pages.Location{Addr: addr, Stitch: in}), nil
}

// spansAt returns where the chunks that are mapped from lo to hi have these bytes, and the stitch that lo is in, if any.
func (s *space) spansAt(lo, hi uintptr) (spans []pages.Span, in *pages.Stitch) {
	if in = s.stitchAt(lo); in == nil {
		return []pages.Span{{Lo: lo, Hi: hi}}, nil
	}
	for _, m := range s.MappedAt(in, lo, hi) {
		at := m.Chunk.Addr()
		spans = append(spans, pages.Span{Lo: at + max(lo, m.Addr) - m.Addr, Hi: at + min(hi-m.Addr, uintptr(m.Chunk.Size()))})
	}
	return spans, in
}
