package observe

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// A snapshotReader makes Requests of a snapshot.
type snapshotReader struct {
	*builder
	*snapshot
	tagNumbers []int32 // 1 + the tag of a stack, by its number; 0 is not known yet
}

// readSnapshot reads what torch.cuda.memory._dump_snapshot writes: a pickle of a
// dict. Its device_traces is a list that has, for each device, a list of entries. The
// requests are those of one device.
//
// An alloc is an Alloc of the size asked for, a free_requested is its Free on the stream of
// the block. If other streams have used the block (record_stream), its free_completed comes
// later; the snapshot does not name those streams, so they are left out, the Free is Shared,
// and a note counts such frees. A recording may lack one of the two (skip_actions): a block
// ends at its free_completed if nothing requested that before. An oom and an entry of an unknown
// action are left out and counted. Entries of segments change what is reserved. Other entries describe snapshots.
//
// The tag of an alloc describes its stack by one frame: the innermost one in Python code that
// is not PyTorch's, or else a node of autograd's graph, or else the innermost one that is not of
// the recorder or of an allocator. Of what WriteSnapshot wrote it is the tag. If there are stacks
// of Python, an alloc without one was made by a thread of autograd: it is one of Gradients.
//
// The recording may have lost its beginning, or have begun late. A block that was handed
// out before is known if an entry frees it, or if it is in a segment, which is the state at
// the end, and no entry names it. Of a file that is cut off, the segments are left out: its events end earlier.
func readSnapshot(in *bufio.Reader, device int) (*Requests, error) {
	p := newUnpickler(in)
	v, err := p.run()
	if err != nil {
		return nil, err
	}
	switch {
	case p.ended != nil && v.kind != whole:
		return nil, p.ended
	case v.kind == list && !v.done && v.lists == nil && v.entries > 0: // of torch.cuda.memory_snapshot
	case v.kind != whole:
		return nil, fmt.Errorf("%w: the pickle is neither a dict with device_traces nor a list of segments", errUnreadable)
	case v.lists != nil:
		p.traces = *v.lists
	}
	chosen := ""
	if device == MostEvents {
		chosen = ", which has most events"
	}
	device, devices, err := p.choose(p.of(v.span), device)
	if err != nil {
		return nil, err
	}
	s := snapshotReader{newBuilder(), &p.snapshot, make([]int32, len(p.stacks.values))}
	var notes []string
	if device < len(p.traces) {
		if notes, err = s.addEntries(p.of(p.traces[device])); err != nil {
			return nil, err
		}
	}
	if p.ended != nil {
		notes = append(notes, "the file is cut off: its last events and its segments are left out")
	} else if err := s.addSegments(p.of(v.span), device); err != nil {
		return nil, err
	}
	r, err := s.done()
	if errors.Is(err, errNoEvent) && p.ended != nil {
		return nil, p.ended
	}
	if errors.Is(err, errNoEvent) {
		err = fmt.Errorf("%w for device %d: was it recorded with torch.cuda.memory._record_memory_history()?", err, device)
	}
	if err != nil {
		return nil, err
	}
	r.AllocConf = oneLine(p.conf)
	if devices > 1 {
		r.notes = append(r.notes, fmt.Sprintf("device %d of 0 to %d%s", device, devices-1, chosen))
	}
	r.notes = append(r.notes, notes...)
	return r, nil
}

// addEntries adds the requests among entries, and returns notes about what is left out.
func (s *snapshotReader) addEntries(entries []entry) (notes []string, err error) {
	requests := slices.ContainsFunc(entries, func(e entry) bool { return e.action == actionFreeRequested })
	completions := slices.ContainsFunc(entries, func(e entry) bool { return e.action == actionFreeCompleted })
	unknown, late := 0, 0
	var requested *entry // the last known entry, if it is a free_requested
	freed := -1          // its event, if it has one
	share := func() {
		late++
		if freed >= 0 && completions {
			s.requests.Events[freed].Shared = true
		}
	}
	for i := range entries {
		e := &entries[i]
		switch e.action {
		case actionUnknown:
			unknown++
			continue
		case actionReserve, actionRelease:
			if err := s.reserve(e.bytes, e.action == actionRelease); err != nil {
				return nil, e.wrong("%w", err)
			}
			continue
		}
		if requested != nil && (e.action != actionFreeCompleted || e.addr != requested.addr) {
			share()
		}
		requested = nil
		switch e.action {
		case actionAlloc:
			err = s.alloc(s.request(e))
		case actionFreeRequested:
			requested, freed = e, -1
			var found bool
			if found, err = s.free(s.request(e)); found {
				freed = len(s.requests.Events) - 1
			}
		case actionFreeCompleted:
			if old, known := s.blocks[e.addr]; known && old.slot != freedSlot || !known && !requests {
				_, err = s.free(s.request(e))
			}
		case actionOOM:
			s.requests.Failures++
		}
		if err != nil {
			return nil, e.wrong("%w", err)
		}
	}
	if requested != nil {
		share()
	}
	if unknown > 0 {
		notes = append(notes, fmt.Sprintf("%d of unknown actions are left out", unknown))
	}
	if late > 0 && completions {
		notes = append(notes, fmt.Sprintf("%d freed while other streams used them, which the trace does not name", late))
	}
	return notes, nil
}

// request returns an alloc or free_requested. The stack of a free is not that of the block's
// allocation, unless it is a tag.
func (s *snapshotReader) request(e *entry) request {
	r := request{addr: e.addr, bytes: e.bytes, stream: e.stream, pool: e.pool}
	switch {
	case e.action == actionAlloc && e.stack == 0 && s.python:
		r.tag = s.tag("", Gradients)
	case e.action == actionAlloc || s.own(s.frames.values[s.stacks.values[e.stack].frame]):
		r.tag = s.tagOf(e.stack)
	}
	return r
}

// tagOf returns the number of the tag that stands for a stack.
func (s *snapshotReader) tagOf(number int32) int32 {
	known := &s.tagNumbers[number]
	if *known == 0 {
		stack := s.stacks.values[number]
		*known = 1 + s.tag(s.describe(stack.frame), stack.category)
	}
	return *known - 1
}

// of returns the entries in t.
func (s *snapshot) of(t span) []entry { return s.entries[t.first:][:t.entries] }

// choose returns device, or for MostEvents the device with most allocs and frees, and among those without any the one
// with most bytes in segments. held are the segments and their blocks. choose also returns how many devices there are.
func (s *snapshot) choose(held []entry, device int) (chosen, devices int, err error) {
	devices = len(s.traces)
	bytes := map[int]int64{}
	for _, e := range held {
		if e.action == isSegment && e.device >= 0 {
			bytes[int(e.device)] += min(e.bytes, mostReserved>>16)
			devices = max(devices, int(e.device)+1)
		}
	}
	if device != MostEvents {
		if device < 0 || device >= devices {
			return 0, 0, fmt.Errorf("has no device %d: there are 0 to %d", device, devices-1)
		}
		return device, devices, nil
	}
	most := 0
	for i, t := range s.traces {
		events := 0
		for _, e := range s.of(t) {
			if e.action == actionAlloc || e.action == actionFreeRequested || e.action == actionFreeCompleted {
				events++
			}
		}
		if events > most {
			chosen, most = i, events
		}
	}
	if most > 0 {
		return chosen, devices, nil
	}
	for _, i := range slices.Sorted(maps.Keys(bytes)) {
		if bytes[i] > bytes[chosen] {
			chosen = i
		}
	}
	return chosen, devices, nil
}
