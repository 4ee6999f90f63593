package observe

import (
	"errors"
	"fmt"

	"mlpool/allocator"
)

// Requests is a recorded sequence of calls of Alloc and Free. It keeps their order, streams,
// tags and sizes as asked for, but no times, addresses or threads. Of a snapshot it also keeps
// what the recorded allocator reserved.
type Requests struct {
	Events  []Event
	Streams int      // number of streams
	Slots   int      // most blocks live at once
	Tags    []string // each in one line; Tags[0] is "", the tag of an Event whose tag is unknown

	// Categories are those of Tags. Tags of two categories may have one text.
	Categories []Category

	Allocs, Frees int   // events
	Peak          int64 // most bytes live at once

	// NoEvents says that the file has segments but nothing happened in it. Events then allocate the live blocks of End,
	// which says nothing about their order.
	NoEvents bool

	// AllocConf is the PYTORCH_CUDA_ALLOC_CONF of the recorded job, in one line, if a snapshot tells it.
	AllocConf string

	Before   int // blocks from before the recording; the first Before events allocate them
	Unfreed  int // blocks live at the end
	Failures int // requests that failed when they were recorded, and are left out

	// End is the memory of the recorded allocator after the last event. It is nil unless the
	// file has segments of the device. Its Streams are one more than those of Events.
	End *allocator.Map
	// Reserved are the times when the recorded allocator took memory from the driver or gave
	// some back, in the order of Events. The first one is at event 0. The last one has the bytes
	// of End, less unmapped ones. If the recording has lost its beginning, the bytes at event 0
	// are those of End less all changes since. Reserved is nil if the file does not tell: without
	// End, if the changes leave too little for the live blocks, and in files of WriteSnapshot.
	Reserved []ReservedAt

	notes []string // of the reader
}

// An Event is one call. Slot identifies the block from its Alloc to its Free, and is then
// reused. Streams are numbered from 0 in the order in which they occur. Tag, Pool and Bytes of
// a Free are those of its block.
type Event struct {
	Free   bool
	Shared bool // a Free of a block that other streams still use; the file does not name them
	Slot   int32
	Stream int32
	Tag    int32 // index into Tags
	Pool   int32 // a private pool, such as that of a graph, numbered from 1; 0 is the default pool or unknown
	Bytes  int64 // as asked for
}

// A ReservedAt says what the recorded allocator held from the driver after the first Event
// events, until the next ReservedAt. Several may have one Event.
type ReservedAt struct {
	Event int
	Bytes int64 // in all, not the change
}

// Notes returns short phrases about what a replay leaves out or adds.
func (r *Requests) Notes() []string {
	var notes []string
	note := func(n int, text string) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", n, text))
		}
	}
	note(r.Failures, "that failed are left out")
	if r.NoEvents {
		return append([]string{"no events: the blocks are those that are live in its segments"}, r.notes...)
	}
	note(r.Before, "from before the recording are allocated first")
	note(r.Unfreed, "never freed are freed at the end")
	return append(notes, r.notes...)
}

// MostEvents, as the device of Read, is the device with most events.
const MostEvents = -1

var errUnreadable = errors.New("is neither a CSV of RMM nor a pickled snapshot of torch.cuda.memory")
