package strategy

// FirstFit takes the free block with the lowest address that is large enough.
//
// The search stops at the first block that fits. Small leftovers collect at low addresses, where every search
// begins; in the worst case it looks at all free blocks. In return, blocks at high addresses stay long, and
// whole segments there become unused. It often needs as little memory as [BestFit].
type FirstFit struct {
	free list // by address
}

// Insert implements [Placement].
func (f *FirstFit) Insert(b *FreeBlock) { f.free.insert(b, byAddress) }

// Remove implements [Placement].
func (f *FirstFit) Remove(b *FreeBlock) { f.free.remove(b, byAddress) }

// Find implements [Placement].
func (f *FirstFit) Find(size int64) *FreeBlock {
	for _, b := range f.free {
		if b.Size() >= size {
			return b
		}
	}
	return nil
}
