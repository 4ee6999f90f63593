package replay

import (
	"context"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/tools/allocbench/internal/bench"
)

// Peak replays events once on a device with bytes of memory. It returns the most bytes reserved and the event that
// reached them first. The error of a request without memory is an allocator.OutOfMemoryError.
func Peak(ctx context.Context, t *observe.Requests, events []observe.Event, open func(bench.Device) (allocator.Allocator, error), bytes int64) (most int64, at int, err error) {
	d := bench.NewNullOf(bytes).PagesFor(t.Peak)
	a, err := open(d)
	if err != nil {
		return 0, 0, err
	}
	streams := make([]allocator.Stream, t.Streams)
	for i := range streams {
		if streams[i], err = d.NewStream(); err != nil {
			return 0, 0, err
		}
	}
	slots, usePool := make([]slot, t.Slots), bench.PoolUser(a)
	for i := range events {
		if i%1024 == 0 && ctx.Err() != nil {
			return 0, 0, ctx.Err()
		}
		e := &events[i]
		sl, stream := &slots[e.Slot], streams[e.Stream]
		if e.Free {
			err = a.Free(sl.block, stream)
			sl.taken = false
		} else {
			usePool(e.Pool)
			sl.block, err = a.Alloc(e.Bytes, stream, "")
			sl.taken, sl.stream = err == nil, stream
		}
		if err != nil {
			break
		}
		// The device knows this at once; the statistics of a pool take longer with each stream.
		free, total, err := d.MemInfo()
		if err != nil {
			return 0, 0, err
		}
		if now := total - free; !e.Free && now > most {
			most, at = now, i
		}
	}
	if err != nil {
		return most, at, err // the device is dropped with what is live
	}
	for i := range slots {
		if sl := &slots[i]; sl.taken {
			if err := a.Free(sl.block, sl.stream); err != nil {
				return 0, 0, err
			}
		}
	}
	most = max(most, a.Stats().PeakReserved) // also within a call
	return most, at, a.Close()
}
