package observe

import (
	"bufio"
	"errors"
	"fmt"
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
// and a note counts such frees. An oom and an entry of an unknown action are left out and
// counted. Entries of segments change what is reserved. Other entries describe snapshots.
//
// The tag of an alloc describes its stack by one frame: the innermost one in Python code that
// is not PyTorch's, or else a node of autograd's graph, or else the innermost one that is not of
// the recorder or of an allocator. Of what WriteSnapshot wrote it is the tag. If there are stacks
// of Python, an alloc without one was made by a thread of autograd: it is one of Gradients.
//
// The recording may have lost its beginning, or have begun late. A block that was handed
// out before is known if an entry frees it, or if it is in a segment, which is the state at
// the end, and no entry names it.
func readSnapshot(in *bufio.Reader, device int) (*Requests, error) {
	p := newUnpickler(in)
	v, err := p.run()
	if err != nil {
		return nil, err
	}
	if v.kind != whole {
		return nil, fmt.Errorf("%w: the pickle is not a dict with device_traces", errUnreadable)
	}
	chosen := ""
	if device == MostEvents {
		chosen = ", which has most events"
	}
	if device, err = p.choose(*v.lists, device); err != nil {
		return nil, err
	}
	s := snapshotReader{newBuilder(), &p.snapshot, make([]int32, len(p.stacks.values))}
	notes, err := s.addEntries(p.of((*v.lists)[device]))
	if err != nil {
		return nil, err
	}
	if err := s.addSegments(p.of(v.span), device); err != nil {
		return nil, err
	}
	r, err := s.done()
	if errors.Is(err, errNoEvent) {
		err = fmt.Errorf("%w for device %d: was it recorded with torch.cuda.memory._record_memory_history()?", err, device)
	}
	if err != nil {
		return nil, err
	}
	if n := len(*v.lists); n > 1 {
		r.notes = append(r.notes, fmt.Sprintf("device %d of 0 to %d%s", device, n-1, chosen))
	}
	r.notes = append(r.notes, notes...)
	return r, nil
}

// addEntries adds the requests among entries, and returns notes about what is left out.
func (s *snapshotReader) addEntries(entries []entry) (notes []string, err error) {
	unknown, late := 0, 0
	var requested *entry // the last known entry, if it is a free_requested
	freed := -1          // its event, if it has one
	share := func() {
		late++
		if freed >= 0 {
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
	if late > 0 {
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

// choose returns device, or for MostEvents the device with most allocs and frees.
func (s *snapshot) choose(traces []span, device int) (int, error) {
	if device != MostEvents {
		if device < 0 || device >= len(traces) {
			return 0, fmt.Errorf("has no device %d: there are 0 to %d", device, len(traces)-1)
		}
		return device, nil
	}
	best, most := 0, 0
	for i, t := range traces {
		events := 0
		for _, e := range s.of(t) {
			if e.action == actionAlloc || e.action == actionFreeRequested {
				events++
			}
		}
		if events > most {
			best, most = i, events
		}
	}
	return best, nil
}
