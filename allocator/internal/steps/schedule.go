package steps

import "mlpool/allocator/internal/pack"

// A Schedule is what a step is expected to do, in order.
type Schedule struct {
	Stats
	Events []Event
	Layout []pack.Interval // of its blocks, in the arena
	Hash   uint64          // of the calls as they were recorded
	// Wasteful says that the schedule must not be used: other streams need much memory when the step
	// needs little of its arena.
	Wasteful bool
	Used     int64 // when a step last followed it, on the caller's clock

	next *Schedule // likely to follow in the next step
	sure bool      // next followed the last time
}

// Stats has the figures of a schedule.
type Stats struct {
	Name     string
	Requests int // of a step, with those for blocks that outlive it
	// Arena is the memory that the schedule needs, LowerBound the peak of bytes handed out, which no
	// schedule can go below.
	Arena, LowerBound int64
	// Replays counts the steps that followed the schedule, Mismatches the wrong predictions: steps that
	// were tried on it and left it, or that would have followed it untried.
	Replays, Mismatches int64
}

// StartsWith reports whether the first request of c is for bytes.
func (c *Schedule) StartsWith(bytes int64) bool { return c.Events[0].Bytes == bytes }

// A schedule may need at most 1/mostWaste more memory than its steps without it.
const mostWaste = 16

// wasteful reports whether an arena of bytes, in addition to the memory of other streams, is much more
// than the bytes handed out at any time. The blocks of the step have these lives.
func (r *Recording) wasteful(arena int64, lives []pack.Interval) bool {
	if len(r.totals) == 0 {
		return false
	}
	live := make([]int64, len(r.Events)+1) // bytes of the step, before each call
	for at, e := range r.Events {
		bytes := lives[e.Block].Size
		if !e.IsAlloc {
			bytes = -bytes
		}
		live[at+1] = live[at] + bytes
	}
	others := r.before - live[r.totals[0].calls]
	most, mostOthers, totals := int64(0), others, r.totals
	for at, bytes := range live {
		if len(totals) > 0 && totals[0].calls == at {
			others = totals[0].bytes - bytes
			mostOthers = max(mostOthers, others)
			totals = totals[1:]
		}
		most = max(most, bytes+others)
	}
	return arena+mostOthers > most+most/mostWaste
}

// Solve packs the blocks of a recording that were freed in it.
func (r *Recording) Solve() *Schedule {
	c := &Schedule{Hash: r.Hash(), Events: r.Events}
	lives := make([]pack.Interval, r.blocks)
	for at, e := range c.Events {
		if e.IsAlloc {
			c.Requests++
			lives[e.Block] = pack.Interval{Size: r.size(e.Bytes), Start: at}
		} else {
			lives[e.Block].End = at
		}
	}
	places := make([]int, len(lives)) // by number of the block
	for i, life := range lives {
		places[i] = -1
		if life.End > 0 {
			places[i] = len(c.Layout)
			c.Layout = append(c.Layout, life)
		}
	}
	c.LowerBound, c.Arena = pack.LowerBound(c.Layout), pack.Pack(c.Layout)
	c.Wasteful = r.wasteful(c.Arena, lives)
	for at := range c.Events {
		c.Events[at].Block = places[c.Events[at].Block]
	}
	return c
}
