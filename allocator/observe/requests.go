// Package traces reads recorded sequences of memory requests in the formats that
// people have, and writes them in those that others read:
//
//   - the CSV of RMM's logging_resource_adaptor, which cmd/train writes too;
//   - the CSV of MiniMalloc;
//   - the pickled snapshot of torch.cuda.memory (read only).
//
// A trace keeps the order of the calls, sizes as asked for and streams. It does
// not keep times, addresses, tags, threads or stacks.
package observe

import (
	"errors"
	"fmt"
	"math"
)

// Requests is a recorded sequence of requests.
type Requests struct {
	Events  []Event
	Streams int // that occur in it
	Slots   int // blocks handed out at once, at most

	Allocs, Frees int   // events
	Peak          int64 // bytes handed out at once, at most

	Before   int // blocks from before the recording: the first Before events allocate them
	Unfreed  int // blocks still handed out at the end
	Failures int // requests that failed when the trace was recorded, and are left out

	notes []string // of the reader
}

// An Event is one call. Blocks are known by slots, which are used again: a slot
// is that of one block from its Alloc to its Free. Streams are numbered from 0 in
// the order in which they occur.
type Event struct {
	Free   bool
	Slot   int32
	Stream int32
	Bytes  int64 // as asked for, also of a Free
}

// Notes says, in short phrases, what a replay of the trace leaves out or adds.
func (t *Requests) Notes() []string {
	var notes []string
	note := func(n int, text string) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf("%d %s", n, text))
		}
	}
	note(t.Failures, "that failed are left out")
	note(t.Before, "from before the recording are allocated first")
	note(t.Unfreed, "never freed are freed at the end")
	return append(notes, t.notes...)
}

// A builder makes a trace of calls that name blocks by address. A Free of an
// address that did not occur before is of a block from before the recording,
// since rings lose their oldest entries and a recording may begin late.
type builder struct {
	trace   Requests
	before  []Event          // allocations of blocks from before the recording
	blocks  map[uint64]block // by address, those that were freed too
	null    []int32          // slots of the blocks of 0 bytes at address 0
	spare   []int32          // slots that are free
	streams map[uint64]int32 // numbers of streams
	live    int64            // bytes, without those from before the recording
}

// A block is what was last known of an address.
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
		return fmt.Errorf("size %d is more than can be added up", bytes)
	}
	if addr == 0 && bytes > 0 {
		return fmt.Errorf("%d bytes are allocated at address 0", bytes)
	}
	if old, known := b.blocks[addr]; known && old.slot != freedSlot {
		return fmt.Errorf("%#x is allocated, and not freed before", addr)
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
	b.trace.Events = append(b.trace.Events, Event{Slot: slot, Stream: b.stream(stream), Bytes: bytes})
	b.live += bytes
	return nil
}

// free adds a Free on a stream. The size counts only if nothing is known of the
// block. A Free of address 0 without a block there is nothing, as in C.
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
	b.trace.Events = append(b.trace.Events, Event{Free: true, Slot: old.slot, Stream: b.stream(stream), Bytes: old.bytes})
}

// keep adds a block that was handed out before the recording and still is at its
// end, unless an event has named its address: then that event says what is there.
func (b *builder) keep(addr uint64, bytes int64, stream uint64) error {
	if _, known := b.blocks[addr]; known {
		return nil
	}
	old, err := b.hold(bytes, stream)
	b.blocks[addr] = old
	return err
}

// hold notes a block that was handed out before the recording. Its slot is new,
// since it has been taken all the time.
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
	if b.trace.Slots == math.MaxInt32 {
		return 0, errors.New("more blocks are live than can be counted")
	}
	b.trace.Slots++
	return int32(b.trace.Slots - 1), nil
}

func (b *builder) stream(handle uint64) int32 {
	number, seen := b.streams[handle]
	if !seen {
		number = int32(len(b.streams))
		b.streams[handle] = number
	}
	return number
}

// done returns the trace, with the blocks from before the recording at its front.
func (b *builder) done() (*Requests, error) {
	t := &b.trace
	if len(t.Events) == 0 {
		return nil, errNoEvent
	}
	t.Before = len(b.before)
	if t.Before > 0 {
		t.Events = append(b.before, t.Events...)
	}
	t.numberStreams(len(b.streams))
	var live int64
	for _, e := range t.Events {
		if e.Free {
			t.Frees++
			live -= e.Bytes
			continue
		}
		t.Allocs++
		if e.Bytes > math.MaxInt64-live {
			return nil, errors.New("the blocks that are live at once have more bytes than can be added up")
		}
		live += e.Bytes
		t.Peak = max(t.Peak, live)
	}
	t.Unfreed = t.Allocs - t.Frees
	return t, nil
}

// numberStreams numbers streams in the order of the events.
func (t *Requests) numberStreams(n int) {
	numbers := make([]int32, n) // of what events have now, plus 1
	for i := range t.Events {
		s := &t.Events[i].Stream
		if numbers[*s] == 0 {
			t.Streams++
			numbers[*s] = int32(t.Streams)
		}
		*s = numbers[*s] - 1
	}
}
