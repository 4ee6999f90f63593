package observe

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"mlpool/allocator"
	"mlpool/allocator/internal/pack"
)

// An edge is the begin or end of the life of a buffer.
type edge struct {
	time   int64
	end    bool
	buffer uint64 // from 1
	bytes  int64
	line   int
}

// readMiniMalloc reads MiniMalloc's CSV, which has a line for each buffer. A buffer is live
// from time lower (or begin, or start) until upper, exclusive, or end, inclusive. At one time,
// frees come before allocations, and each of them in the order of the lines. All requests are
// on one stream. Ids, hints, offsets and gaps are ignored. Alignments that are not divisors of
// allocator.Alignment are counted.
func readMiniMalloc(t *table) (*Requests, error) {
	lower, err := t.column("lower", "begin", "start")
	if err != nil {
		return nil, err
	}
	upper, err := t.column("upper", "end")
	if err != nil {
		return nil, err
	}
	size, aligned := t.columns["size"], -1
	if t.has("alignment") {
		aligned = t.columns["alignment"]
	}
	inclusive := !t.has("upper")
	var edges []edge
	coarse := 0 // buffers with an alignment that allocators do not give
	for {
		more, err := t.next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		begin := edge{buffer: uint64(len(edges)/2) + 1, line: t.line}
		end := begin
		end.end = true
		if begin.bytes, err = parseSize(t.field(size)); err != nil {
			return nil, t.wrong(err)
		}
		if begin.time, end.time, err = parseLife(t.field(lower), t.field(upper), inclusive); err != nil {
			return nil, t.wrong(err)
		}
		if aligned >= 0 {
			least, err := strconv.ParseInt(t.field(aligned), 10, 64)
			if err != nil || least < 1 {
				return nil, t.wrong(fmt.Errorf("%.40q is not an alignment", t.field(aligned)))
			}
			if allocator.Alignment%least != 0 {
				coarse++
			}
		}
		edges = append(edges, begin, end)
	}
	trace, err := playEdges(edges)
	if err == nil && coarse > 0 {
		trace.notes = append(trace.notes, fmt.Sprintf("%d want an alignment that %d bytes do not give", coarse, allocator.Alignment))
	}
	return trace, err
}

// parseLife reads the begin and the exclusive end of the life of a buffer.
func parseLife(lower, upper string, inclusive bool) (begin, end int64, err error) {
	if begin, err = strconv.ParseInt(lower, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("%.40q is not a time", lower)
	}
	end, err = strconv.ParseInt(upper, 10, 64)
	if err != nil || inclusive && end == math.MaxInt64 {
		return 0, 0, fmt.Errorf("%.40q is not a time", upper)
	}
	if inclusive {
		end++
	}
	if begin >= end {
		return 0, 0, errors.New("the buffer ends before it begins")
	}
	return begin, end, nil
}

// playEdges makes Requests of the edges of all buffers, which are in the order of the lines.
func playEdges(edges []edge) (*Requests, error) {
	slices.SortStableFunc(edges, func(a, b edge) int {
		switch {
		case a.time != b.time:
			return cmp.Compare(a.time, b.time)
		case a.end == b.end:
			return 0
		case a.end:
			return -1
		}
		return 1
	})
	b := newBuilder()
	for _, e := range edges {
		var err error
		if e.end {
			_, err = b.free(request{addr: e.buffer})
		} else {
			err = b.alloc(request{addr: e.buffer, bytes: e.bytes})
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", e.line, err)
		}
	}
	return b.done()
}

// WriteMiniMalloc writes a buffer for each block, in the order of the Allocs. Time counts
// calls, so no two are at the same time. A block that is never freed is live to the end. The
// format has no streams.
func (r *Requests) WriteMiniMalloc(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, "id,lower,upper,size")
	for id, b := range r.lives() {
		fmt.Fprintf(out, "%d,%d,%d,%d\n", id, b.Start, b.End, b.Size)
	}
	return out.Flush()
}

// lives returns the sizes and lives of the blocks, in the order of the Allocs.
func (r *Requests) lives() []pack.Interval {
	blocks := make([]pack.Interval, 0, r.Allocs)
	begun := make([]int, r.Slots) // index in blocks of the block of a slot
	for i, e := range r.Events {
		if e.Free {
			blocks[begun[e.Slot]].End = i
			continue
		}
		begun[e.Slot] = len(blocks)
		blocks = append(blocks, pack.Interval{Size: e.Bytes, Start: i, End: len(r.Events)})
	}
	return blocks
}
