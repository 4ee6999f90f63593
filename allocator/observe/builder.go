package observe

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"mlpool/allocator"
)

// A builder makes Requests of calls that name blocks by address. A Free of an unknown
// address frees a block from before the recording: rings lose their oldest entries, and a
// recording may begin late.
type builder struct {
	requests Requests
	before   []Event          // Allocs of blocks from before the recording
	blocks   map[uint64]block // by address, including freed blocks
	null     []block          // of 0 bytes at address 0
	spare    []int32          // free slots
	streams  map[uint64]int32 // numbers of streams
	tags     numbering[tag]
	pools    numbering[int32] // numbers of private pools, by their numbers in the file
	live     int64            // bytes, without blocks from before the recording
	reserved reserved
}

// A request is an Alloc or Free that names its block by address. tag is a number of the
// builder's, and pool one of the file's; both are 0 if they are unknown.
type request struct {
	addr      uint64
	bytes     int64
	stream    uint64
	tag, pool int32
}

// A block is the last known state of an address.
type block struct {
	slot      int32 // or freedSlot
	tag, pool int32
	bytes     int64
}

const freedSlot = -1

var errNoEvent = errors.New("has no event")

func newBuilder() *builder {
	return &builder{
		blocks: map[uint64]block{}, streams: map[uint64]int32{},
		tags: newNumbering[tag](), pools: newNumbering[int32](),
	}
}

// A tag is that of a block, with the category that its stack tells.
type tag struct {
	text     string
	category Category
}

// tag returns the number of a tag.
func (b *builder) tag(text string, c Category) int32 {
	t := tag{oneLine(text), c}
	if number, known := b.tags.numbers[t]; known {
		return number
	}
	t.text = strings.Clone(t.text) // text may be a part of a long record
	return b.tags.number(t)
}

// alloc adds an Alloc. Address 0 stands for any number of blocks of 0 bytes.
func (b *builder) alloc(r request) error {
	if r.bytes < 0 {
		return fmt.Errorf("%d is not a size", r.bytes)
	}
	if r.bytes > math.MaxInt64-b.live {
		return fmt.Errorf("size %d makes the sum of sizes overflow", r.bytes)
	}
	if r.addr == 0 && r.bytes > 0 {
		return fmt.Errorf("%d bytes are allocated at address 0", r.bytes)
	}
	if old, known := b.blocks[r.addr]; known && old.slot != freedSlot {
		return fmt.Errorf("%#x is allocated twice", r.addr)
	}
	slot, err := b.slot()
	if err != nil {
		return err
	}
	made := block{slot, r.tag, b.pools.number(r.pool), r.bytes}
	if r.addr == 0 {
		b.null = append(b.null, made)
	} else {
		b.blocks[r.addr] = made
	}
	b.requests.Events = append(b.requests.Events, b.event(made, r.stream))
	b.live += r.bytes
	return nil
}

// free adds a Free, and reports whether there is a block. r's bytes, tag and pool count only
// if the block is unknown. A Free of address 0 without a block there does nothing, as in C.
func (b *builder) free(r request) (found bool, err error) {
	if r.addr == 0 {
		last := len(b.null) - 1
		if last < 0 {
			return false, nil
		}
		b.release(b.null[last], r.stream)
		b.null = b.null[:last]
		return true, nil
	}
	old, known := b.blocks[r.addr]
	switch {
	case !known:
		if old, err = b.hold(r); err != nil {
			return false, err
		}
	case old.slot == freedSlot:
		return false, fmt.Errorf("%#x is freed twice", r.addr)
	default:
		b.live -= old.bytes
	}
	b.blocks[r.addr] = block{slot: freedSlot}
	b.release(old, r.stream)
	return true, nil
}

func (b *builder) release(old block, stream uint64) {
	b.spare = append(b.spare, old.slot)
	e := b.event(old, stream)
	e.Free = true
	b.requests.Events = append(b.requests.Events, e)
}

// event returns the Alloc of a block.
func (b *builder) event(of block, stream uint64) Event {
	return Event{Slot: of.slot, Stream: b.stream(stream), Tag: of.tag, Pool: of.pool, Bytes: of.bytes}
}

// keep adds a block that was live before the recording and is at its end, unless an event
// has named its address.
func (b *builder) keep(r request) error {
	if _, known := b.blocks[r.addr]; known {
		return nil
	}
	old, err := b.hold(r)
	b.blocks[r.addr] = old
	return err
}

// hold records a block that was live before the recording. Its slot is new, since the
// block has occupied it from the start.
func (b *builder) hold(r request) (block, error) {
	if r.bytes < 0 {
		return block{}, fmt.Errorf("%d is not a size", r.bytes)
	}
	slot, err := b.newSlot()
	if err != nil {
		return block{}, err
	}
	old := block{slot, r.tag, b.pools.number(r.pool), r.bytes}
	b.before = append(b.before, b.event(old, r.stream))
	return old, nil
}

func (b *builder) slot() (int32, error) {
	last := len(b.spare) - 1
	if last < 0 {
		return b.newSlot()
	}
	slot := b.spare[last]
	b.spare = b.spare[:last]
	return slot, nil
}

func (b *builder) newSlot() (int32, error) {
	if b.requests.Slots == math.MaxInt32 {
		return 0, errors.New("more blocks are live than an int32 counts")
	}
	b.requests.Slots++
	return int32(b.requests.Slots - 1), nil
}

func (b *builder) stream(handle uint64) int32 {
	number, seen := b.streams[handle]
	if !seen {
		number = int32(len(b.streams))
		b.streams[handle] = number
	}
	return number
}

// done returns the requests, preceded by those for blocks from before the recording.
func (b *builder) done() (*Requests, error) {
	r := &b.requests
	if len(r.Events) == 0 && r.End == nil {
		return nil, errNoEvent
	}
	r.NoEvents = len(r.Events) == 0
	r.Before = len(b.before)
	if r.Before > 0 {
		r.Events = append(b.before, r.Events...)
	}
	for _, t := range b.tags.values {
		r.Tags, r.Categories = append(r.Tags, t.text), append(r.Categories, t.category)
	}
	r.numberStreams(len(b.streams))
	b.tellReserved()
	var live int64
	for _, e := range r.Events {
		if e.Free {
			r.Frees++
			live -= e.Bytes
			continue
		}
		r.Allocs++
		if e.Bytes > math.MaxInt64-live {
			return nil, errors.New("the live blocks have more bytes than an int64 counts")
		}
		live += e.Bytes
		r.Peak = max(r.Peak, live)
	}
	r.Unfreed = r.Allocs - r.Frees
	return r, nil
}

// numberStreams numbers streams in the order of the events, and then of End.
func (r *Requests) numberStreams(n int) {
	numbers := make([]int32, n) // 1 + the new number, by the old one
	for i := range r.Events {
		s := &r.Events[i].Stream
		if numbers[*s] == 0 {
			r.Streams++
			numbers[*s] = int32(r.Streams)
		}
		*s = numbers[*s] - 1
	}
	if r.End == nil {
		return
	}
	next := int32(r.Streams)
	for i := range r.End.Segments {
		g := &r.End.Segments[i]
		number := &numbers[g.Stream]
		if *number == 0 {
			next++
			*number = next
		}
		g.Stream = allocator.Stream(*number)
		for j := range g.Blocks {
			if b := &g.Blocks[j]; b.State != allocator.MapUnmapped {
				b.Stream = g.Stream
			}
		}
	}
}
