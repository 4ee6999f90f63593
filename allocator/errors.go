package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/undo"
)

// OutOfMemoryError reports a request that failed after every attempt that Alloc promises. The
// allocator works on.
type OutOfMemoryError struct {
	Bytes  int64 // requested
	Stream Stream
	Tag    string

	Allocated, Reserved int64 // bytes, by the allocator, after the last attempt
	// LargestFree is the size of the largest free block of any stream, or -1 if it is not known.
	// Fragmentation is the share of free memory outside it, in percent.
	LargestFree   int64
	Fragmentation float64
	// DeviceFree and DeviceTotal are the driver's, in bytes; both 0 if unknown.
	DeviceFree, DeviceTotal int64
	Limit                   int64 // on reserved bytes; 0: none

	Advice string // what would have helped
	// Err is the driver's error or, if the driver was not asked, the reason. If the driver also refused
	// to order or release memory of other streams, Err includes the first error of these.
	Err error
}

func (e *OutOfMemoryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "allocator: out of memory: %d bytes asked for by %q on stream %#x; %d allocated, %d reserved",
		e.Bytes, e.Tag, e.Stream, e.Allocated, e.Reserved)
	if e.Limit > 0 {
		fmt.Fprintf(&b, " of at most %d", e.Limit)
	}
	if e.LargestFree >= 0 {
		fmt.Fprintf(&b, ", largest free block %d, fragmentation %.1f %%", e.LargestFree, e.Fragmentation)
	}
	if e.DeviceTotal > 0 {
		fmt.Fprintf(&b, "; device has %d free of %d", e.DeviceFree, e.DeviceTotal)
	}
	if _, own := e.Err.(noMemory); own {
		fmt.Fprintf(&b, "; %v", e.Err)
	} else if e.Err != nil {
		fmt.Fprintf(&b, "; driver: %v", e.Err)
	}
	if e.Advice != "" {
		fmt.Fprintf(&b, "; %s", e.Advice)
	}
	return b.String()
}

// Unwrap returns the driver's error.
func (e *OutOfMemoryError) Unwrap() error { return e.Err }

// OutOfMemory returns true. It identifies the error without an import of this package.
func (e *OutOfMemoryError) OutOfMemory() bool { return true }

// AtLimit reports whether the limit, rather than the device's memory, was exceeded.
func (e *OutOfMemoryError) AtLimit() bool { return errors.Is(e.Err, errLimit) }

// fromDevice sets the results of Driver.MemInfo.
func (e *OutOfMemoryError) fromDevice(free, total int64, err error) {
	if err != nil {
		e.Err = undo.Both(e.Err, err)
		return
	}
	e.DeviceFree, e.DeviceTotal = free, total
}

const smaller = "freeing blocks or asking for smaller ones, such as a smaller batch, would help"

// limitAtLeast is the advice if no limit is known to be enough.
func limitAtLeast(bytes int64) string {
	return fmt.Sprintf("the limit must be at least %d; %s", bytes, smaller)
}

// advise sets Advice, from the other fields, the limit with which the same calls would have
// succeeded, 0 if it is not known, and the bytes that are not handed out.
func (e *OutOfMemoryError) advise(enough, free int64) {
	size := blockSize(min(e.Bytes, maxRequest))
	switch least := e.Allocated + size; {
	case e.DeviceTotal > 0 && e.Bytes > e.DeviceTotal:
		e.Advice = "the request is larger than the device: a smaller one is needed"
	case enough > e.Limit && size > e.Limit:
		e.Advice = fmt.Sprintf("the request is larger than the limit: a limit of %d would be enough", enough)
	case enough > e.Limit:
		e.Advice = fmt.Sprintf("a limit of %d would be enough", enough)
	case e.AtLimit() && least > e.Limit:
		e.Advice = limitAtLeast(least)
	case free < size:
		e.Advice = smaller
	case e.LargestFree < 0:
		e.Advice = "the driver's pool has enough free memory, but it is fragmented or still in use: synchronise, then try again"
	default:
		e.Advice = "enough memory is free, but fragmented; " + smaller
	}
}

// outOfMemory reports whether a driver's error says that it is out of memory, as [Driver] requires.
func outOfMemory(err error) bool {
	var o interface{ OutOfMemory() bool }
	return errors.As(err, &o) && o.OutOfMemory()
}

// errTooLarge stands for the driver's answer to a request over maxRequest.
var errTooLarge = errors.New("request exceeds any device")

// LeakError lists the blocks that were live when their allocator was closed. Their memory was
// returned nevertheless.
type LeakError struct {
	Blocks int
	Bytes  int64 // as requested
	Tags   []TagBytes
}

// maxTagsInText keeps the one line of a LeakError readable.
const maxTagsInText = 8

func (e *LeakError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "allocator: closed with %d blocks of %d bytes not freed:", e.Blocks, e.Bytes)
	for i, t := range e.Tags {
		if i == maxTagsInText {
			fmt.Fprintf(&b, " and %d other tags", len(e.Tags)-i)
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %d x %q (%d bytes)", t.Blocks, t.Tag, t.Bytes)
	}
	return b.String()
}

// leakError returns a LeakError of blocks, or nil if there are none.
func leakError(blocks []LiveBlock) error {
	if len(blocks) == 0 {
		return nil
	}
	e := &LeakError{Blocks: len(blocks), Tags: ByTag(blocks)}
	for _, t := range e.Tags {
		e.Bytes += t.Bytes
	}
	return e
}

// TagBytes sums up the blocks with one tag.
type TagBytes struct {
	Tag    string `json:"tag"`
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"` // as requested
}

// ByTag sums blocks by tag, such as those of Live, and returns the largest sums first.
func ByTag(blocks []LiveBlock) []TagBytes {
	var tags []TagBytes
	at := map[string]int{}
	for _, b := range blocks {
		i, seen := at[b.Tag]
		if !seen {
			i = len(tags)
			at[b.Tag] = i
			tags = append(tags, TagBytes{Tag: b.Tag})
		}
		tags[i].Blocks++
		tags[i].Bytes += b.Bytes
	}
	slices.SortFunc(tags, func(a, b TagBytes) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Tag, b.Tag))
	})
	return tags
}

// fragmentation returns the percentage of all free bytes outside the largest free block.
func fragmentation(largest, all int64) float64 {
	if all == 0 {
		return 0
	}
	return math.Round(1000*(1-float64(largest)/float64(all))) / 10
}

// The error of a request that a pool cannot serve.

// atLimit is the error of growth beyond the limit. At the first refusal, a limit of the reserved bytes
// plus the request would have been enough, since it would not have changed any earlier call. Later it is
// not known.
func (p *Pool) atLimit(r *request) error {
	if !p.limited {
		r.enough = p.reserved + r.size
		if p.space != nil {
			size := block.RoundUp(r.size, p.space.Page)
			r.enough = p.reserved + size
			if p.opt.Reuse != ReuseWait { // more than the missing bytes may be needed
				r.enough += size
			}
		}
	}
	p.limited = true
	return errLimit
}

// outOfMemory returns the error of a request for which all attempts failed, in a time that does not depend
// on the number of live blocks. For an arena it returns only the reason, since no caller requested it.
func (p *Pool) outOfMemory(r *request) (*Block, error) {
	if r.forArena {
		return nil, cmp.Or(r.driverErr, error(errFull))
	}
	p.driver.refused.Add(1)
	e := &OutOfMemoryError{
		Bytes: r.bytes, Stream: r.heap.stream, Tag: r.tag,
		Reserved: p.reserved, Limit: p.opt.MaxBytes, Err: undo.Both(r.driverErr, r.refusal),
	}
	var unused int64
	p.everyHeap(func(h *heap) {
		e.Allocated += h.stats.allocated
		unused += h.Reserved() - h.stats.allocated
		e.LargestFree = max(e.LargestFree, h.largestFree())
	})
	e.Fragmentation = fragmentation(e.LargestFree, unused)
	d := p.deviceMemory(r)
	e.fromDevice(d.free, d.total, d.err)
	switch {
	case r.refusal != nil:
		e.Advice = "some free memory cannot be used: if its stream was destroyed, call ReleaseStream before destroying a stream"
	case p.opt.Reuse != ReuseWait && r.size > 0 && e.LargestFree >= r.size:
		e.Advice = "a free block of another stream is large enough: the reuse policy wait would have taken it"
	default:
		e.advise(p.limitFor(r, d), unused)
	}
	return nil, e
}

// limitFor returns the limit with which the same calls would have succeeded, or 0 if it is not known: with
// another limit, the threshold of collections and a limit that is a fraction would change too.
func (p *Pool) limitFor(r *request, d deviceMemory) int64 {
	if r.enough == 0 || p.opt.GCThreshold > 0 || p.opt.MaxFraction > 0 || d.err != nil || d.total > 0 && r.enough > p.reserved+d.free {
		return 0
	}
	return r.enough
}

// largestFree returns the bytes of the heap's largest free block.
func (h *heap) largestFree() int64 {
	largest := h.LargestFree(h.Reserved() - h.stats.allocated)
	of := -1
	for class, r := range h.waiting.Largest {
		if of >= 0 && class != of {
			break
		}
		of = class
		largest = max(largest, r.node.Size())
	}
	return largest
}
