package observe

import (
	"errors"
	"fmt"
)

// reserved collects what the recorded allocator reserved.
type reserved struct {
	changes []ReservedAt // Bytes are the sum of all changes so far, and Event is without blocks from before
	sum     int64
	least   int64 // the lowest sum, or 0
	end     int64 // bytes of End that are mapped
	untold  bool  // entries do not tell all changes, as those of WriteSnapshot
}

// mostReserved is more bytes than any device has. Sums of two such numbers do not overflow.
const mostReserved = 1 << 60

var errReserved = errors.New("more bytes are reserved than any device has")

// reserve adds bytes of memory from the driver, or takes memory away that returned to it.
func (b *builder) reserve(bytes int64, release bool) error {
	r := &b.reserved
	switch {
	case bytes < 0:
		return fmt.Errorf("%d is not a size", bytes)
	case bytes > mostReserved:
		return errReserved
	case release:
		r.sum -= bytes
	default:
		r.sum += bytes
	}
	if r.sum > mostReserved || r.sum < -mostReserved {
		return errReserved
	}
	r.least = min(r.least, r.sum)
	r.changes = append(r.changes, ReservedAt{len(b.requests.Events), r.sum})
	return nil
}

// tellReserved sets Reserved, if End tells what was reserved last. The blocks from before the recording are already
// among the events. A snapshot of one pool of several has entries of all, and a recording may leave entries of segments
// out (skip_actions). If memory of live blocks is missing then, nothing is known.
func (b *builder) tellReserved() {
	to, r := &b.requests, &b.reserved
	if r.untold || to.End == nil {
		return
	}
	start := r.end - r.sum
	to.Reserved = append(to.Reserved, ReservedAt{0, start})
	for _, c := range r.changes {
		to.Reserved = append(to.Reserved, ReservedAt{to.Before + c.Event, start + c.Bytes})
	}
	if start+r.least < 0 || to.liveBeyondReserved() || r.changes == nil && b.blocksBeyondEnd() {
		to.Reserved = nil
		to.notes = append(to.notes, "what was reserved earlier is unknown: the snapshot lacks segments, or entries of them")
	}
}

// liveBeyondReserved reports whether more bytes are live at some event than are reserved.
func (r *Requests) liveBeyondReserved() bool {
	var live int64
	next := 1
	for i, e := range r.Events {
		for next < len(r.Reserved) && r.Reserved[next].Event <= i {
			next++
		}
		if live += e.Bytes; e.Free {
			live -= 2 * e.Bytes
		}
		if live > r.Reserved[next-1].Bytes {
			return true
		}
	}
	return false
}

// blocksBeyondEnd reports whether a block was where End has no memory.
func (b *builder) blocksBeyondEnd() bool {
	segments := snapshotSegments(*b.requests.End)
	for addr := range b.blocks {
		if !within(segments, uintptr(addr)) {
			return true
		}
	}
	return false
}
