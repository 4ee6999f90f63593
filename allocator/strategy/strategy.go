// Package strategy has four ways to choose a free block for a request, as textbooks have them: first, next,
// best and worst fit. Each is a type in a file of its own, and its method Find makes the choice.
//
// # The problem
//
// A heap is blocks side by side, some of them free. Two free neighbours are one block. A request takes a free
// block that is large enough, and the rest of that block stays free. Programs free blocks in any order, so
// free memory comes to lie in pieces between blocks in use. Then a request may find no block that is large
// enough, although enough bytes are free in all: this is external fragmentation. Which block each request
// takes decides how fast that happens, and how long a search takes.
//
// # The four
//
//	FirstFit  the lowest address      stops early, but leftovers collect where it begins
//	NextFit   the next one            shorter searches, but every long block is cut sooner or later
//	BestFit   the smallest            little is left over, but in pieces too small to use
//	WorstFit  the largest             soon no block is left for a large request
//
// In the recorded jobs, first and best fit need about the same memory, next and worst fit mostly more:
// assets/traces.csv has the figures, and tools/allocbench/README.md a summary.
//
// # What is faster
//
// The search of a list of n free blocks takes O(n), and so does an insertion into an ordered one. The pool's
// other strategies are in allocator/internal/block, since they also decide how blocks are cut and joined.
// Their time does not depend on n, or hardly:
//
//   - buddy cuts blocks of powers of two in halves, and has a list of free ones for each power. Only the other
//     half can join a freed block, and one bit of the address tells on which side it is. A request for 257
//     bytes takes 512: loss within blocks is internal fragmentation.
//   - sizeclass rounds sizes to eight classes for each power of two. A freed block serves the next request of
//     its class as it is. This suits trainings, which ask for the same sizes in every step.
//   - slab cuts many blocks of one class from a large one, up to 32 KiB each. For larger requests it is tlsf,
//     as most allocators of today have classes for small sizes and a general way for large ones.
//   - tlsf, the default, does not round. It finds a list by two bit scans, and takes nearly the best fit.
//   - arena takes the end of a segment, which is good if blocks are freed in reverse order.
//
// A pool with virtual segments does what no strategy can: if no block is large enough, it maps pieces of
// free memory at adjacent addresses. So fragments cost time rather than memory, and the strategy matters less
// than in a heap whose memory cannot move.
//
// # Your own
//
// Implement [Placement], and set PoolOptions.Placement of package allocator to a function that makes one.
package strategy

import "mlpool/allocator/internal/block"

// A Placement chooses among the free blocks of one heap, which is the memory of one stream. The pool does
// the rest: it splits the block that Find returns, coalesces freed blocks with free neighbours, orders
// streams, and gets memory elsewhere if Find returns nil. It calls a Placement from one goroutine at a time.
// A Placement must not call the pool.
type Placement interface {
	// Insert adds a free block, whose address and size stay the same until Remove.
	Insert(b *FreeBlock)
	// Remove removes a block that is no longer free.
	Remove(b *FreeBlock)
	// Find returns an inserted block of size bytes or more, or nil if there is none. The block stays
	// inserted until Remove. The pool treats any other block as nil.
	Find(size int64) *FreeBlock
}

// A FreeBlock is free memory of one segment, for a [Placement] to choose from. It must not be used
// after Remove: the pool may insert it again for other memory.
type FreeBlock block.Node

// Addr returns the block's address.
func (b *FreeBlock) Addr() uintptr { return (*block.Node)(b).Addr() }

// Size returns the block's bytes, a multiple of 256.
func (b *FreeBlock) Size() int64 { return (*block.Node)(b).Size() }
