// Package hostile runs random programs on allocators and looks for what a real
// device would answer with corrupt memory, a failed call or a hang.
//
// A program is what one seed makes of a target, which is a name from [Targets]:
// the options of the allocator, the decorators around it, the size of the device,
// which driver calls fail, and a few thousand calls. The program does what a
// careful caller may do: it orders work between streams, names streams with
// RecordStream, releases a stream before it destroys it. It also does what a
// caller must not do and the allocator has to refuse, such as a second Free.
//
// The [Device] finds memory that is reused, or returned to the driver, before the
// work on it is known to come first; blocks that overlap; streams and events that
// are used after their end; addresses that are unmapped before the work on them is
// done, or mapped over; and what is left over after Close. The memory is apart from
// its addresses: pages that are mapped twice are the same memory at both. The
// program compares the statistics with its own, and looks whether what is refused as
// out of memory could be had: from the same allocator at once or, where memory comes
// in pages, from those that nothing lies in.
//
// A program on one goroutine is repeated exactly by its seed, as far as the
// allocator does not depend on the order of a map. A target that ends in
// "/threads" runs on several, whose order differs from run to run.
package hostile
