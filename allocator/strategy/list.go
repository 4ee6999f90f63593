package strategy

import (
	"cmp"
	"slices"
)

// A list is all free blocks of a heap in some order. A binary search finds the place of a block in it; the
// blocks behind that place move by one.
type list []*FreeBlock

// An order compares two blocks of a list, like [cmp.Compare]. It must not find two blocks equal.
type order func(a, b *FreeBlock) int

// byAddress is the order of addresses.
func byAddress(a, b *FreeBlock) int { return cmp.Compare(a.Addr(), b.Addr()) }

// insert adds b and returns its index.
func (l *list) insert(b *FreeBlock, o order) int {
	i, _ := slices.BinarySearchFunc(*l, b, o)
	*l = slices.Insert(*l, i, b)
	return i
}

// remove removes b and returns the index that it had.
func (l *list) remove(b *FreeBlock, o order) int {
	i, _ := slices.BinarySearchFunc(*l, b, o)
	*l = slices.Delete(*l, i, i+1)
	return i
}
