package block

import "math/bits"

// buddy is the binary buddy system of Knowlton (A fast storage allocator, 1965):
// every block has a power of two of bytes, is halved as often as a request
// allows, and joins only the other half of what it was split from. Up to half of
// a block is lost to rounding.
//
// Segments are powers of two if the driver has as much memory. Another segment is split into the
// powers of two of which it is the sum, the largest first; the rest after such a block, up to the end
// of the segment, is its buddy.
type buddy struct {
	eager
	orders uint64 // with a free block
	lists  [64]list
}

// order returns the power of two of the smallest block for size bytes.
func order(size int64) int { return bits.Len64(uint64(size - 1)) }

// floor returns the largest power of two that is at most size.
func floor(size int64) int64 { return 1 << (bits.Len64(uint64(size)) - 1) }

func (b *buddy) find(size int64) *Node {
	orders := b.orders & (^uint64(0) << order(size))
	if orders == 0 {
		return nil
	}
	return b.lists[bits.TrailingZeros64(orders)].first
}

// listOf returns the order of the largest request that every block of n's list can serve.
func (b *buddy) listOf(n *Node) int { return bits.Len64(uint64(n.size)) - 1 }

func (b *buddy) insert(n *Node) {
	k := b.listOf(n)
	b.lists[k].push(n)
	b.orders |= 1 << k
}

func (b *buddy) remove(n *Node) {
	k := b.listOf(n)
	b.lists[k].remove(n)
	if b.lists[k].first == nil {
		b.orders &^= 1 << k
	}
}

func (b *buddy) visit(min int64, f func(n *Node)) {
	for k := bits.Len64(uint64(min)) - 1; k < len(b.lists); k++ {
		b.lists[k].visit(min, f)
	}
}

func (b *buddy) cut(n *Node, size int64) int64 {
	part := floor(n.size)
	if part == n.size {
		part /= 2
	}
	if part >= size && part >= Alignment {
		return part
	}
	return n.size
}

func (b *buddy) joins(left, right *Node) bool {
	if floor(left.size) != left.size || int64(left.addr-left.rng.Addr)&(2*left.size-1) != 0 {
		return false
	}
	return left.size == right.size || right.next == nil && right.size < left.size
}

func (b *buddy) rangeSize(bytes int64) int64 { return 1 << order(bytes) }
