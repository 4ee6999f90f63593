package allocator

import "math/bits"

// buddy is the binary buddy system of Knowlton (A fast storage allocator, 1965):
// every block has a power of two of bytes, is halved as often as a request
// allows, and joins only the other half of what it was split from. Segments are
// powers of two as well. Up to half of a block is lost to rounding.
type buddy struct {
	eager
	orders uint64 // with a free block
	lists  [64]list
}

func order(size int64) int { return bits.Len64(uint64(size - 1)) }

func (b *buddy) find(size int64) *node {
	orders := b.orders & (^uint64(0) << order(size))
	if orders == 0 {
		return nil
	}
	return b.lists[bits.TrailingZeros64(orders)].first
}

func (b *buddy) insert(n *node) {
	k := order(n.size)
	b.lists[k].insertAfter(nil, n)
	b.orders |= 1 << k
}

func (b *buddy) remove(n *node) {
	k := order(n.size)
	b.lists[k].remove(n)
	if b.lists[k].first == nil {
		b.orders &^= 1 << k
	}
}

func (b *buddy) cut(n *node, size int64) int64 {
	if half := n.size / 2; half >= size {
		return half
	}
	return n.size
}

func (b *buddy) joins(left, right *node) bool {
	offset := left.addr - left.seg.addr
	return left.size == right.size && offset&uintptr(left.size) == 0
}

func (b *buddy) segmentSize(bytes int64) int64 { return 1 << order(bytes) }
