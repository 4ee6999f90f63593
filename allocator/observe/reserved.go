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

// tellReserved sets Reserved. The blocks from before the recording are already among the
// events. A snapshot of one pool of several has entries of all: then nothing is known.
func (b *builder) tellReserved() {
	to, r := &b.requests, &b.reserved
	if r.untold || to.End == nil && r.changes == nil {
		return
	}
	start := -r.least
	if to.End != nil {
		if start = r.end - r.sum; start+r.least < 0 {
			to.notes = append(to.notes, "what was reserved earlier is unknown: the snapshot lacks segments")
			return
		}
	}
	to.Reserved = append(to.Reserved, ReservedAt{0, start})
	for _, c := range r.changes {
		to.Reserved = append(to.Reserved, ReservedAt{to.Before + c.Event, start + c.Bytes})
	}
}
