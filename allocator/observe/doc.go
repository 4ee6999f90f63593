// Package observe reads and writes what an allocator did and holds, in formats that other
// programs know. It works on plain data of package allocator (events of a trace, maps, live
// blocks) and knows nothing of how a pool works inside.
//
// Writers take an [allocator.Trace], and may run while others call it:
//
//   - [WriteCSV] writes the CSV of RMM's logging_resource_adaptor;
//   - [WriteSnapshot] writes the pickle of torch.cuda.memory._dump_snapshot, for
//     pytorch.org/memory_viz;
//   - [WritePerfetto] writes JSON for ui.perfetto.dev.
//
// [Peaks] keeps the highest counts of each part of a recording, in memory that does not
// grow with it.
//
// [Read] reads [Requests], a sequence of Alloc and Free that can be replayed, from the CSV
// of RMM or from a snapshot, gzipped or not. It tells the format by its
// contents. A snapshot may be a pickle or JSON, and may have segments alone. It also tells who
// allocated each block, what the recorded allocator reserved and how it used that at the end.
// Requests write themselves as RMM's CSV, which has no place for these.
//
// # What readers guarantee
//
// Every Free in [Requests] is of the block that its slot holds, and every Alloc finds its
// slot empty. A recording may have begun late, or have lost its beginning: blocks that it
// frees without having allocated them are allocated before the first event.
//
// The blocks of [Requests.End] cover its segments, which do not overlap, and what
// [Requests.Reserved] says last is the sum of them.
//
// A file that cannot be read is an error of one line, which names the line or the byte.
// Reading runs no code that a pickle names. Of stacks it keeps each frame once. Whatever
// lengths a file claims, what Read allocates is bounded by what the file contains.
//
// # What writers guarantee
//
// Whatever a writer of this package writes, except for Perfetto, Read reads back as the same
// calls in the same order. The error of a write is returned.
package observe
