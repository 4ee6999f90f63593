// Package allocatortest tests allocators. [Run] is one suite for every implementation,
// [Fake] is the one device that all tests run on, and a [Guard] tells the device of
// each block that an allocator hands out. Package hostile runs random programs on them.
//
// A Fake has streams, events, memory, pages and a stream-ordered pool, and no hardware.
// It guarantees to find, as a [Fault] that the call returns and [Fake.Faults] keeps:
//
//   - work on memory, at whatever address it is mapped, that is not ordered after the
//     work of the block that had the memory before;
//   - blocks that overlap, lie outside memory, or are misaligned;
//   - memory that is freed or unmapped before the host knows the work on it to be done;
//   - streams and events that are used after their end;
//   - pages that are mapped over others, in part, outside a range, or released while
//     they are mapped.
//
// Order is kept in vector clocks: each stream knows how much work of every other it
// comes after. Work begins when it is queued and ends when the host finds out, by a
// wait, or by a query after [Fake.Finish] or by [Chance]. What an allocator did not give
// back [Fake.Leftover] reports. Calls can be made to fail one by one ([Fake.FailAt])
// or at random, and the memory is as large as NewFake is told.
//
// Memory has contents for a Filler, kept as runs of equal words, so that a device may
// have more memory than the machine. An [Fake.Unchecked] device only counts: it is for
// programs that measure time or memory.
package allocatortest
