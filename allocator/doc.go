// Package allocator hands out device memory in stream order.
//
// An [Allocator] has two main calls. Alloc returns a block for use on a stream. Free returns the block once the
// work already queued on that stream is done with it. Three allocators implement it:
//
//   - [Pool] keeps the memory that it reserves from the driver and splits it into blocks itself, so that in a
//     steady state it never calls the driver;
//   - [Async] passes every request to the driver's own stream-ordered pool (cudaMallocAsync and
//     cudaFreeAsync on a GPU);
//   - [Malloc] has no pool, and shows what that costs.
//
// # Memory moves, not bytes
//
// Rationale. A program of several streams and many sizes leaves free memory where the next request cannot use
// it: in another stream's heap, or in pieces that are not side by side. A pool that only splits and coalesces
// must reserve more, and runs out while much of its memory is free. To copy live blocks together would change
// pointers that the program holds.
//
// Approach. A GPU's driver can map physical memory at any address, and at several. So the pool reserves memory
// in chunks and changes whose they are, and where they are mapped. A chunk without live blocks moves to another
// stream by a change of its owner: nothing is mapped, and the stream that gets it waits on the device for the
// one that had it. Chunks that lie apart are mapped a second time, side by side, as a stitch (virtual memory
// stitching: Guo et al., GMLake, ASPLOS 2024). No byte is copied, and no live block changes its address.
//
// Implementation. Each stream has a heap of blocks, cut from chunks that are neighbours in a range of addresses of that
// heap. If no free block of the heap fits a request, the pool tries in this order (table way in request.go):
//
//   - Blocks of the heap that other streams are done with.
//   - Free memory of the heap that is side by side, in its range or in an earlier stitch.
//   - Memory of no stream.
//   - New chunks within the slack: reserved memory may exceed the peak allocated by 1/64 of it, so that stitches and
//     moves stay rare. If there is one stream, slack begins at 1/8, up to 96 MiB, and falls to 1/64 within 2000
//     requests. If stitches never stop, as with random sizes, it grows to 1/3 of the peak; if moves never stop, to
//     1/2 of the memory that moves. PoolOptions.Slack changes it.
//   - Unused chunks of other heaps that are side by side.
//   - A stitch of unused chunks from anywhere, then also of chunks whose freed blocks other streams still use.
//   - New chunks, as many as are missing.
//   - At last, everything that is free after all queued work.
//
// A stitch stays mapped after its block is freed, and serves again. The least recently used ones are unmapped once
// thousands of chunks are mapped in stitches. So a program that repeats itself finds its earlier chunks and stitches,
// and calls the driver only to order streams.
// If stitches or moves never stop, small blocks get separate chunks, so that long-lived ones do not fragment the
// others. A stitched byte has two addresses (virtual aliasing). CUDA keeps accesses through both coherent between kernels
// and copies that are ordered, as stream order and the pool's events ensure, but not within one kernel.
//
// Limitations. Only whole chunks without live blocks move, so fragmentation within a chunk stays. A chunk has one
// page of 2 MiB or, in a large pool or for a large request, several. To create and map one takes the driver of an
// H200 28 µs (TUNING.md), during which other requests that need the driver wait. A stream that gets memory of another
// waits for all work queued there by then. So if a kernel waits for another stream to run, as a persistent one does,
// give the two [ReuseSameStream], or a pool each.
//
// When not to use it. Memory that CUDA graphs, NCCL windows or another API must find in one allocation of
// cudaMalloc needs PoolOptions.Segments "malloc", and so does a driver that maps no pages. Each call of cudaMalloc
// is then one chunk, which moves to another stream only as a whole and is never stitched. A program of one
// stream that frees in reverse order needs no pool: a stack does.
//
// # More of a pool
//
// Code that only uses memory takes a [MemoryResource], which has just Alloc and Free. A program that embeds a
// Pool may also ask for memory without waiting ([Pool.TryAlloc]) or at a multiple of more than Alignment
// ([AlignedAllocator]), change what is reserved ([Pool.Reserve], [Pool.SetMaxBytes]) or the size of a block where it
// is ([Pool.Extend]), and find the physical memory of a block, for another process to map ([Pool.Backing]).
//
// [Timed], [Limit], [Trace] and [Poison] wrap any allocator; without them there is no overhead. [As] finds the
// wrapped allocator. [Limit.SetTag] limits the blocks with a tag.
//
// Stats are counters. [Pool.Detail] has them by stream and by size, [ByTag] sums memory up by tag, and [MapOf]
// returns where each block is. A [Trace] keeps the last calls; package observe writes them for tools/allocbench,
// Perfetto and PyTorch's memory_viz.
//
// # Words
//
// A block is what Alloc returns. A page is 2 MiB, the least that a GPU's driver maps. A chunk is memory that the
// pool gets from the driver in one call: of cuMemCreate, then it is one or more pages, or of cudaMalloc, then it
// is whole. A stitch is chunks that are mapped a second time, side by side. A segment is a range of addresses
// that has blocks: a virtual segment grows by chunks of pages, a malloc segment is a whole chunk. A heap has the
// segments and free blocks of one stream. To split is to cut a free block in two, to coalesce is to join two; a
// size class is a range of sizes that share a list of free blocks.
//
// Memory is reserved when it is held from the driver, allocated when it is handed out, with sizes
// rounded up, and live when it is handed out, with sizes as requested. Slack is reserved memory beyond
// the peak allocated. To trim is to return unused memory to the driver. The release threshold is what
// cudaMallocAsync's pool keeps. A memory node is an allocation in a CUDA graph.
//
// # Stream order
//
// A block is used by work queued on the stream that it was allocated for. Free says that this work
// is queued, not that it is done. Memory freed on a stream serves the same stream at once, since its
// work runs in order. It serves another stream only as [Reuse] allows: after a wait that is queued
// on the device, once an event shows that the work is done, or never. No event is recorded until
// memory changes streams. The new stream then waits for all work queued on the old one so far.
//
// A block that a second stream uses is named with RecordStream. Its Free records an event on that stream, and the block
// is not handed out before the event has passed. The pool uses other memory meanwhile, so that copies and computation
// on two streams overlap. A round is the blocks of one size that the program frees before it next requests that size.
// If the blocks of four rounds are waiting, the block's own stream waits for the oldest one's event.
//
// ReleaseStream must be called before a stream is destroyed; all streams may then use its memory. Without it a later
// stream with the same handle gets memory that work of the destroyed one may still use.
//
// # CUDA graphs
//
// While a stream is captured into a graph, use a Pool that has only ever served that stream, also in RecordStream.
// Alloc and Free then use no events, with three exceptions: when memory runs out, when GCThreshold is passed and when
// there are thousands of stitches. They only ask the driver for memory, and the graph contains only addresses. Over
// package cudadriver any capture mode will do. With another driver capture in the mode cudaStreamCaptureModeRelaxed,
// unless the driver sets that mode for its calls: in the global mode, cudaMalloc on any thread invalidates the capture;
// in the thread-local mode, only one on the capturing thread does.
//
// With several streams a request may record an event on the captured stream. The event then belongs to
// the graph: a stream that waits for it joins the capture, and the host cannot query it: a query
// invalidates the capture. So do Trim, ReleaseStream, and a request for which the pool looks for memory
// to release. Poison and Malloc always invalidate it.
//
// A graph uses its addresses whenever it is launched. Use a separate pool for captured work, with
// PoolOptions.KeepMapped: addresses stay mapped until Close or Sleep. Graphs that were captured on one pool share its
// memory: launch them one after the other, in the order of their captures. The calls of an Async over
// cudadriver.NewGraphPool become part of the graph.
//
// # Trim and sleep
//
// Trim returns unused memory to the driver: chunks without live blocks, which are also unmapped in stitches. After Trim
// or ResetPeaks the peak counts again from the current value. A pool also releases memory by itself, before it grows
// beyond GCThreshold and when memory runs out, if the released and the free memory can serve a request.
//
// [Pool.Sleep] gives all memory of virtual segments to other programs, such as the trainer that takes turns
// with an inference server. [Pool.Wake] maps new memory at the same addresses.
//
// # Out of memory
//
// A request fails at once if it is larger than the pool's unused memory plus the memory that the device
// has free, or that the limit leaves. The pool then waits for nothing and keeps its memory.
//
// Otherwise a Pool waits for all blocks that wait for other streams, searches every heap, and releases unused
// chunks to make new ones. With virtual segments a request fails only if the chunks with live blocks, plus its own
// pages, exceed the limit or the device. The less memory these leave, the shorter are new chunks, so that little of them
// is free. With malloc segments free memory in several segments does not help a request that none of them fits.
//
// An Async trims the driver's pool and tries again. A Pool calls PoolOptions.OnOutOfMemory, which may free
// caches of the program. If the request still fails, the [*OutOfMemoryError] says what was requested, held and
// free, and what would have helped. It suggests a limit only if that limit would certainly have been enough.
// Live blocks are not affected, and the next Alloc works.
//
// # Drivers
//
// The package is for Go programs; cmd/libmlpool makes it a C library, for other languages. It knows no GPU. It needs a
// [Driver], and for virtual segments a [PageDriver]. So the same code runs on a GPU (package cudadriver), on host
// memory, and on the fake of package allocatortest, which reports errors that would corrupt memory on a GPU. A [Pool]
// has memory of one device: a program with several devices makes one for each, over a driver of that device.
//
// A program may have its own driver, its own allocator that wraps one of these, and its own [Placement],
// which chooses among free blocks in place of one of [Strategies]. The examples show an allocator and a
// placement; kernels/device/host.go is a driver, and bump in own_test.go an allocator that wraps none.
// allocatortest.Run checks that an allocator keeps the rules, or a Pool over a driver of the program.
//
// Another module imports the package with "replace mlpool => ../mlpool" in its go.mod, where ../mlpool
// is the folder of this module, and then go mod tidy.
package allocator
