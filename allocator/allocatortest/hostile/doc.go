// Package hostile runs random programs on allocators and finds what a real device would
// answer with corrupt memory, a failed call or a hang.
//
// A seed and a target, one of [Targets], determine a program: the options of the
// allocator, its decorators, the size of the device, the driver calls that fail, and a
// few thousand calls. The program does what a careful caller may do: it orders work
// between streams, calls RecordStream, releases a stream before it destroys it. It also
// makes calls that the allocator must refuse, such as a second Free.
//
// The device is a Strict [allocatortest.Fake], whose package says what it finds. The
// program compares the statistics with its own, and repeats each request that was
// refused as out of memory: the memory must be missing, in the same allocator at once
// or, where memory comes in pages, in the pages that no block lies in.
//
// A program on one goroutine repeats exactly, unless the allocator depends on the order
// of a map. A target that ends in "/threads" runs on several goroutines, whose order
// differs from run to run.
package hostile
