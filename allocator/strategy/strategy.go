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

// A Placement chooses among the free blocks of one heap, which is the memory of one stream. It has three
// methods:
//
//	Insert(b *FreeBlock)          adds a free block, whose address and size stay the same until Remove
//	Remove(b *FreeBlock)          removes a block that is no longer free
//	Find(size int64) *FreeBlock   returns an inserted block of size bytes or more, or nil if there is none
//
// For a request the pool calls Find, then Remove with the block found and, if the block is larger than the
// request, Insert with the rest. If Find returns nil or a block that is not inserted, the pool gets memory
// elsewhere. When a block is freed, the pool removes its free neighbours, and inserts the block that they make
// together. It may also remove a block that Find did not choose.
//
// The pool calls a Placement from one goroutine at a time. A Placement must not call the pool.
type Placement = block.Placement

// A FreeBlock is free memory of one segment, for a [Placement] to choose from. Addr returns its address, and
// Size its bytes, a multiple of 256. It must not be used after Remove: the pool may insert it again for other
// memory.
type FreeBlock = block.FreeBlock
