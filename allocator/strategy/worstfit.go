package strategy

// WorstFit takes the largest block; of several, the one with the lowest address.
//
// The idea is that what is left over is large enough to be of use. But it cuts the block that a large request
// will need, until all free blocks are of medium size. It is here to show that.
type WorstFit struct {
	free list // the largest first
}

// largestFirst is the order of falling sizes, and of addresses among blocks of one size.
func largestFirst(a, b *FreeBlock) bool {
	return a.Size() > b.Size() || a.Size() == b.Size() && byAddress(a, b)
}

// Insert implements [Placement].
func (w *WorstFit) Insert(b *FreeBlock) { w.free.insert(b, largestFirst) }

// Remove implements [Placement].
func (w *WorstFit) Remove(b *FreeBlock) { w.free.remove(b, largestFirst) }

// Find implements [Placement].
func (w *WorstFit) Find(size int64) *FreeBlock {
	if len(w.free) == 0 || w.free[0].Size() < size {
		return nil
	}
	return w.free[0]
}
