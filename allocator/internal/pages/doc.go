// Package pages keeps the physical memory of a pool with virtual segments: chunks, the
// addresses that they are mapped at, and who may use what of them.
//
//   - A [Chunk] is memory that one call of the driver created. It is mapped at one address,
//     where blocks are cut from it, as long as it exists.
//   - A [Holder] is a heap that has chunks. Those that are neighbours are one range of its
//     heap. A chunk that is free moves to another holder by a change of its owner: the
//     driver is not called.
//   - A [Stitch] is a range of addresses where chunks that lie apart are mapped a second
//     time, side by side, so that a block may span them.
//   - The free-chunk index of each holder says at which ends of its chunks there is free
//     memory. [Space.Search] brings the indexes of some holders up to date, and what
//     follows finds memory in these: free runs, which are side by side, and fragments, which
//     a stitch can map side by side.
//   - [Slack] chooses how much more than the peak may be reserved before stitches and moves.
//
// What a caller may rely on:
//
//   - The chunks of a [Space] do not overlap, each is of one holder, and a holder has no two
//     neighbouring ranges, but for one of small blocks next to one of others.
//   - Nothing is unmapped or given back but by Release, Unstitch, UnstitchSome, DropEmpty,
//     ReleaseKept and Close, whose caller knows that no work uses the memory.
//   - Where the driver refuses a call, what was done before is undone; what the driver does
//     not take back is kept, counted in Held, and given back by a later call.
//   - A search looks at the chunks with a free end alone, and at what changed since the last
//     one, not at every block.
//
// The package knows no stream and no event: who moves memory between holders orders the
// streams. Its caller calls a Space from one goroutine at a time, with the locks of the heaps
// that it names.
package pages
