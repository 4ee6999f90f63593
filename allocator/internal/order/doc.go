// Package order says which work must end before memory is used again. It knows streams and
// events, and nothing of the memory.
//
//   - [Events] records events on streams, makes streams and the host wait for them, and
//     keeps those that nothing needs for the next record.
//   - [Users] are the streams that use memory of other streams.
//   - A [Queue] is what was freed while other streams may still use it.
//
// What a caller may rely on:
//
//   - What Queue.After returned waits for all work that was queued, when After was called, on
//     every stream of its Uses that was not released, and for nothing queued later.
//   - A queue passes each item that was pushed to [Owner].Ready once: after its events were found
//     done, or the host or the stream that takes it was made to wait for them. An item
//     that is claimed is not passed: the stream that claims it was made to wait.
//   - Events of one stream end in the order of their records. So a queue queries few events, however
//     many items wait, and never makes more calls than its bound.
//   - If the driver refuses an event, nothing changes.
//   - No event goes back to the driver before Trim or Close: one request may find the
//     work of thousands done.
//
// A queue knows only the size class of an item. It learns the size of a round for each class, so that a
// stream waits only for frees several rounds old. A queue must be used by one goroutine at a time,
// Events and Users may be used by several.
package order

// Stream names a queue of device work.
type Stream = uintptr
