// Package pages keeps the physical memory of a pool with virtual segments: chunks, the addresses at
// which they are mapped, and the heaps that may use them.
//
//   - A [Chunk] is memory that one call of the driver created. It is mapped at one address,
//     where blocks are cut from it, as long as it exists.
//   - A [Holder] is a heap that has chunks. Those that are neighbours are one range of its
//     heap. A chunk that is free moves to another holder by a change of its owner: the
//     driver is not called.
//   - A [Stitch] is a range of addresses where chunks that lie apart are mapped a second
//     time, side by side, so that a block may span them.
//   - The free-chunk index of each holder says at which ends of its chunks there is free memory.
//     [Space.Search] updates the indexes of some holders, in which later calls find memory: free runs,
//     which are side by side, and fragments, which a stitch can map side by side.
//   - [Space.Sleep] releases all memory and keeps the addresses, [Space.Wake] maps new memory there.
//   - [Slack] chooses how much more than the peak may be reserved before stitches and moves.
//
// What a caller may rely on:
//
//   - The chunks of a [Space] do not overlap, each is of one holder, and neighbouring ranges of a holder
//     are joined, except that ranges for small blocks stay separate.
//   - Only Release, Unstitch, UnstitchSome, DropEmpty, ReleaseKept, Sleep and Close unmap or release
//     memory. Their caller knows that no work uses it.
//   - If the driver refuses a call, a method undoes its earlier calls. Memory that the driver refuses to
//     release is kept, counted in Held, and released by a later call.
//   - A search examines only chunks with a free end, and changes since the last search, not every block.
//
// The package knows no streams or events: its caller orders the streams when it moves memory between
// holders. A Space must be used by one goroutine at a time, which holds the locks of the heaps that a
// call names.
package pages
