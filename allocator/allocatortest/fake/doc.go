// Package fake is the device of all tests of allocators. It imports no allocator package, so all of them
// can use it in tests.
//
// A [Device] has streams, events, memory, pages and a stream-ordered pool, but no hardware. It
// finds, as a [Fault] that the call returns and [Device.Faults] keeps:
//
//   - work on memory that is not ordered after the work of the previous block there,
//     even if the memory is mapped at another address;
//   - blocks that overlap, lie outside memory, or are misaligned;
//   - memory that is freed or unmapped before the host knows that its work is done;
//   - streams and events that are used after they were destroyed;
//   - pages that are mapped over others, in part or outside a range, and mapped pages
//     that are released.
//
// Streams are vector clocks: each knows how much work of every other stream comes before its next work.
// The fake treats work as done when the host learns of it: by a wait, by a query after [Device.Finish],
// or by a query that succeeds at random. [Device.Leftover] reports what was not released.
// [Device.FailAt] and [Chance] make calls fail. The size of the memory is a limit only: its contents are
// runs of equal words. An Unchecked device ([Device.Unchecked]) only counts, for programs that measure
// time or memory.
package fake
