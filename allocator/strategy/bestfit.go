package strategy

import "sort"

// BestFit takes the smallest block that is large enough; of several, the one with the lowest address.
//
// A block that fits exactly leaves nothing over, and long blocks stay for large requests. But if a block fits
// nearly, what is left over is a sliver, of no use until it joins a freed neighbour.
//
// With blocks ordered by address, as in most textbooks, every search looks at all of them. Here they are
// ordered by size, so that a binary search finds one in O(log n). Insert and Remove still move the blocks
// behind; in a balanced tree they would take O(log n) too.
type BestFit struct {
	free list // by size
}

// smallestFirst is the order of sizes, and of addresses among blocks of one size.
func smallestFirst(a, b *FreeBlock) bool {
	return a.Size() < b.Size() || a.Size() == b.Size() && byAddress(a, b)
}

// Insert implements [Placement].
func (f *BestFit) Insert(b *FreeBlock) { f.free.insert(b, smallestFirst) }

// Remove implements [Placement].
func (f *BestFit) Remove(b *FreeBlock) { f.free.remove(b, smallestFirst) }

// Find implements [Placement].
func (f *BestFit) Find(size int64) *FreeBlock {
	i := sort.Search(len(f.free), func(i int) bool { return f.free[i].Size() >= size })
	if i == len(f.free) {
		return nil
	}
	return f.free[i]
}
