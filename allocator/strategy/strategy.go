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
//     half can join a freed block, and one bit of the address tells on which side it is: the address of the one
//     is that of the other with the bit of their size flipped. A request for 257 bytes takes 512: loss within
//     blocks is internal fragmentation. Tensors often have powers of two of bytes, and then lose nothing.
//   - sizeclass rounds sizes to eight classes for each power of two. A freed block serves the next request of
//     its class as it is. This suits trainings, which ask for the same sizes in every step. Freed memory stays
//     in the pool, so a monitor shows it as used until Trim (in PyTorch empty_cache) gives it back.
//   - slab cuts many blocks of one class from a large one, up to 32 KiB each. For larger requests it is tlsf,
//     as most allocators of today have classes for small sizes and a general way for large ones.
//   - tlsf, the default, does not round. It finds a list by two bit scans, and takes nearly the best fit.
//   - arena takes the end of a segment, which is good if blocks are freed in reverse order.
//
// A pool with virtual segments does what no strategy can: if no block is large enough, it maps pieces of
// free memory at adjacent addresses. So fragments cost time rather than memory, and the strategy matters less
// than in a heap whose memory cannot move.
//
// # What trainings do
//
// A training step allocates the same activations and gradients as the last one, so fragments come from what
// differs between steps: sequences of other lengths, a validation, a checkpoint that outlives the step. Mixed
// precision has more and smaller blocks; recomputed activations are freed and requested more often, but fewer
// live at once. A job that runs out of memory although the device has some free has fragments: Pool.Detail and
// MapOf show them. It helps to allocate what lives long first, to update in place, and to keep shapes few.
//
// # Threads
//
// Alloc and Free both change the lists, so a lock for readers and writers gains nothing. CPU allocators such as
// tcmalloc and jemalloc keep a cache for each thread, since any thread may use any memory at once. On a GPU the
// stream decides: freed memory serves the same stream without waiting, whichever thread asks. So the pool has a
// heap with a lock for each stream, and threads with streams of their own do not meet. One lock for all, as in
// PyTorch, is enough as long as it is held for a moment. A list changed by compare-and-swap cannot
// also split and join neighbours, which takes several changes at once.
//
// # Unified memory
//
// Memory of cudaMallocManaged has one address for CPU and GPU; a fault migrates its pages, of 4 to 64 KiB, to
// where they are touched, unless cudaMemPrefetchAsync did so before. A program may then use more than the device
// has, but kernels wait for faults, so trainings and inference keep their memory on the device. A pool
// decides which addresses are free, and unified memory where their pages are, so each is of use without the other.
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
