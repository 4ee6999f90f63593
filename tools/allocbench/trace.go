package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"mlpool/allocator"
)

// A trace is a recorded sequence of requests.
type trace struct {
	events  []event
	streams int // that occur in it
	slots   int // blocks handed out at once, at most

	allocs, frees int
	failures      int   // requests that failed when the trace was recorded, and are left out
	unfreed       int   // blocks still handed out at the end
	peak          int64 // bytes handed out at once, at most
}

// An event is one call. Blocks are known by slots, which are used again, and
// streams by number.
type event struct {
	free   bool
	slot   int32
	stream int32
	bytes  int64
}

// Columns of a trace; what RMM's logging_resource_adaptor writes. Thread and
// Time may be missing, and others are ignored.
const (
	colAction  = "Action"
	colPointer = "Pointer"
	colSize    = "Size"
	colStream  = "Stream"
)

// parseTrace reads a CSV with a header. Calls are taken in the order of the
// lines, whichever thread made them. An Action is allocate, free, or "allocate
// failure", which is counted.
func parseTrace(r io.Reader) (*trace, error) {
	lines := csv.NewReader(r)
	lines.ReuseRecord = true
	lines.TrimLeadingSpace = true
	lines.Comment = '#'
	header, err := lines.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("is empty: the first line names the columns")
	}
	if err != nil {
		return nil, err
	}
	columns := map[string]int{}
	for i, name := range header {
		columns[strings.TrimSpace(name)] = i
	}
	for _, name := range []string{colAction, colPointer, colSize, colStream} {
		if _, ok := columns[name]; !ok {
			return nil, fmt.Errorf("has no column %s: the first line is to be Thread,Time,Action,Pointer,Size,Stream", name)
		}
	}

	b := builder{live: map[uint64]liveSlot{}, streams: map[uint64]int32{}}
	for {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		field := func(name string) string { return strings.TrimSpace(record[columns[name]]) }
		if err := b.add(field(colAction), field(colPointer), field(colSize), field(colStream)); err != nil {
			line, _ := lines.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if len(b.events) == 0 {
		return nil, errors.New("has no event")
	}
	b.trace.streams = len(b.streams)
	b.unfreed = len(b.live)
	return &b.trace, nil
}

// A builder makes a trace of lines.
type builder struct {
	trace
	live    map[uint64]liveSlot // by pointer
	spare   []int32             // slots that are free
	streams map[uint64]int32    // numbers of streams
	bytes   int64
}

type liveSlot struct {
	slot  int32
	bytes int64
}

func (b *builder) add(action, pointer, size, stream string) error {
	if action == "allocate failure" {
		b.failures++
		return nil
	}
	p, err := parseAddress(pointer)
	if err != nil {
		return fmt.Errorf("%q is not a pointer", pointer)
	}
	s, err := parseAddress(stream)
	if err != nil {
		return fmt.Errorf("%q is not a stream", stream)
	}
	number, seen := b.streams[s]
	if !seen {
		number = int32(len(b.streams))
		b.streams[s] = number
	}
	switch action {
	case "allocate":
		bytes, err := strconv.ParseInt(size, 10, 64)
		if err != nil || bytes < 0 {
			return fmt.Errorf("%q is not a size", size)
		}
		if bytes > math.MaxInt64-b.bytes {
			return fmt.Errorf("size %d is more than can be added up", bytes)
		}
		if _, ok := b.live[p]; ok {
			return fmt.Errorf("%s is allocated, and not freed before", pointer)
		}
		slot := int32(b.slots)
		if last := len(b.spare) - 1; last >= 0 {
			slot, b.spare = b.spare[last], b.spare[:last]
		} else {
			b.slots++
		}
		b.live[p] = liveSlot{slot, bytes}
		b.events = append(b.events, event{slot: slot, stream: number, bytes: bytes})
		b.allocs++
		b.bytes += bytes
		b.peak = max(b.peak, b.bytes)
	case "free":
		block, ok := b.live[p]
		if !ok {
			return fmt.Errorf("%s is freed, and not allocated before", pointer)
		}
		delete(b.live, p)
		b.spare = append(b.spare, block.slot)
		b.events = append(b.events, event{free: true, slot: block.slot, stream: number, bytes: block.bytes})
		b.frees++
		b.bytes -= block.bytes
	default:
		return fmt.Errorf("action %q is neither allocate nor free", action)
	}
	return nil
}

// parseAddress reads what C++ prints for a pointer.
func parseAddress(s string) (uint64, error) {
	if s == "(nil)" || s == "nullptr" {
		return 0, nil
	}
	return strconv.ParseUint(s, 0, 64)
}

// replayOf returns the scenario that replays the trace in a file.
func replayOf(path string) (scenario, error) {
	f, err := os.Open(path)
	if err != nil {
		return scenario{}, err
	}
	defer f.Close()
	t, err := parseTrace(f)
	if err != nil {
		return scenario{}, fmt.Errorf("%s: %w", path, err)
	}
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	doc := fmt.Sprintf("%s: %d allocations and %d frees on %s, at most %d blocks of %s live", filepath.Base(path),
		t.allocs, t.frees, plural(t.streams, "stream"), t.slots, bytesText(t.peak))
	if t.failures > 0 {
		doc += fmt.Sprintf("; %d that failed are left out", t.failures)
	}
	if t.unfreed > 0 {
		doc += fmt.Sprintf("; %d never freed are freed at the end", t.unfreed)
	}
	return scenario{replayName, doc, false, func(bool) []testCase {
		return []testCase{{name, func(b *bench) error { return b.replay(name, t) }}}
	}}, nil
}

const replayName = "replay"

// replay makes the calls of a trace, once on an empty allocator and then again
// and again. Kernels are not part of a trace: a block that is freed on another
// stream than its own is taken to be no longer in use.
func (b *bench) replay(name string, t *trace) error {
	streams, err := b.streams(t.streams)
	if err != nil {
		return err
	}
	// A slot that is taken holds a block and the stream that it is for.
	type slot struct {
		taken  bool
		block  allocator.Block
		stream allocator.Stream
	}
	slots := make([]slot, t.slots)
	b.holds(t.peak)
	requests := func() (int64, error) {
		var ops int64
		for i := range t.events {
			if b.over.Load() {
				break
			}
			e := &t.events[i]
			s, stream := &slots[e.slot], streams[e.stream]
			ops++
			if !e.free {
				block, err := b.a.Alloc(e.bytes, stream, "replay")
				if err == nil {
					*s = slot{true, block, stream}
				} else if !outOfMemory(err) {
					return ops, err
				} else {
					b.failed++
				}
			} else if s.taken {
				s.taken = false
				if err := b.a.Free(s.block, stream); err != nil {
					return ops, err
				}
			}
		}
		for i := range slots {
			if s := &slots[i]; s.taken {
				s.taken = false
				if err := b.a.Free(s.block, s.stream); err != nil {
					return ops, err
				}
			}
		}
		return ops, nil
	}
	round := func() (int64, error) { return b.round(len(t.events), streams[0], requests) }
	if err := b.measure(name+" cold", "call", 1, round); err != nil {
		return err
	}
	return b.measure(name+" warm", "call", 1, b.repeated(round))
}
