package observe

import (
	"errors"
	"fmt"
	"math"

	"mlpool/allocator"
)

// Requests is a recorded sequence of calls of Alloc and Free. It keeps their order, streams and
// sizes as asked for, but no times, addresses, tags, threads or stacks.
type Requests struct {
	Events  []Event
	Streams int // number of streams
	Slots   int // most blocks live at once

	Allocs, Frees int   // events
	Peak          int64 // most bytes live at once

	Before   int // blocks from before the recording; the first Before events allocate them
	Unfreed  int // blocks live at the end
	Failures int // requests that failed when they were recorded, and are left out

	End  *allocator.Map
	Tags []string // of Event.Tag; the first is empty

	notes []string // of the reader
}

// An Event is one call. Slot identifies the block from its Alloc to its Free, and is then
// reused. Streams are numbered from 0 in the order in which they occur.
type Event struct {
	Free   bool
	Slot   int32
	Stream int32
	Tag    int32
	Bytes  int64 // as asked for, also of a Free
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
	note(r.Before, "from before the recording are allocated first")
	note(r.Unfreed, "never freed are freed at the end")
	return append(notes, r.notes...)
}

// MostEvents, as the device of Read, is the device with most events.
const MostEvents = -1

var errUnreadable = errors.New("is neither a CSV of RMM or MiniMalloc nor a pickled snapshot of torch.cuda.memory")

// A builder makes Requests of calls that name blocks by address. A Free of an unknown
// address frees a block from before the recording: rings lose their oldest entries, and a
// recording may begin late.
type builder struct {
	requests Requests
	before   []Event          // Allocs of blocks from before the recording
	blocks   map[uint64]block // by address, including freed blocks
	null     []int32          // slots of blocks of 0 bytes at address 0
	spare    []int32          // free slots
	streams  map[uint64]int32 // numbers of streams
	live     int64            // bytes, without blocks from before the recording
}

// A block is the last known state of an address.
type block struct {
	slot  int32 // or freedSlot
	bytes int64
}

const freedSlot = -1

var errNoEvent = errors.New("has no event")

func newBuilder() *builder {
	return &builder{blocks: map[uint64]block{}, streams: map[uint64]int32{}}
}

// alloc adds an Alloc. Address 0 stands for any number of blocks of 0 bytes.
func (b *builder) alloc(addr uint64, bytes int64, stream uint64) error {
	if bytes < 0 {
		return fmt.Errorf("%d is not a size", bytes)
	}
	if bytes > math.MaxInt64-b.live {
		return fmt.Errorf("size %d makes the sum of sizes overflow", bytes)
	}
	if addr == 0 && bytes > 0 {
		return fmt.Errorf("%d bytes are allocated at address 0", bytes)
	}
	if old, known := b.blocks[addr]; known && old.slot != freedSlot {
		return fmt.Errorf("%#x is allocated twice", addr)
	}
	slot, err := b.slot()
	if err != nil {
		return err
	}
	if addr == 0 {
		b.null = append(b.null, slot)
	} else {
		b.blocks[addr] = block{slot, bytes}
	}
	b.requests.Events = append(b.requests.Events, Event{Slot: slot, Stream: b.stream(stream), Bytes: bytes})
	b.live += bytes
	return nil
}

// free adds a Free on a stream. bytes counts only if the block is unknown. A Free of
// address 0 without a block there does nothing, as in C.
func (b *builder) free(addr uint64, bytes int64, stream uint64) error {
	if addr == 0 {
		if last := len(b.null) - 1; last >= 0 {
			b.release(block{slot: b.null[last]}, stream)
			b.null = b.null[:last]
		}
		return nil
	}
	old, known := b.blocks[addr]
	switch {
	case !known:
		var err error
		if old, err = b.hold(bytes, stream); err != nil {
			return err
		}
	case old.slot == freedSlot:
		return fmt.Errorf("%#x is freed twice", addr)
	default:
		b.live -= old.bytes
	}
	b.blocks[addr] = block{slot: freedSlot}
	b.release(old, stream)
	return nil
}

func (b *builder) release(old block, stream uint64) {
	b.spare = append(b.spare, old.slot)
	b.requests.Events = append(b.requests.Events, Event{Free: true, Slot: old.slot, Stream: b.stream(stream), Bytes: old.bytes})
}

// keep adds a block that was live before the recording and is at its end, unless an event
// has named its address.
func (b *builder) keep(addr uint64, bytes int64, stream uint64) error {
	if _, known := b.blocks[addr]; known {
		return nil
	}
	old, err := b.hold(bytes, stream)
	b.blocks[addr] = old
	return err
}

// hold records a block that was live before the recording. Its slot is new, since the
// block has occupied it from the start.
func (b *builder) hold(bytes int64, stream uint64) (block, error) {
	if bytes < 0 {
		return block{}, fmt.Errorf("%d is not a size", bytes)
	}
	slot, err := b.newSlot()
	if err != nil {
		return block{}, err
	}
	b.before = append(b.before, Event{Slot: slot, Stream: b.stream(stream), Bytes: bytes})
	return block{slot, bytes}, nil
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
	r.Tags = []string{""}
	if len(r.Events) == 0 {
		return nil, errNoEvent
	}
	r.Before = len(b.before)
	if r.Before > 0 {
		r.Events = append(b.before, r.Events...)
	}
	r.numberStreams(len(b.streams))
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

// numberStreams numbers streams in the order of the events.
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
}
