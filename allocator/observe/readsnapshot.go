package observe

import (
	"bufio"
	"errors"
	"fmt"
)

// readSnapshot reads what torch.cuda.memory._dump_snapshot writes: a pickle of a
// dict. Its device_traces is a list that has, for each device, a list of entries. The
// requests are those of one device.
//
// An alloc is an Alloc of the size asked for, a free_requested is its Free on the stream of
// the block. If other streams have used the block (record_stream), its free_completed comes
// later; the snapshot does not name those streams, so they are left out, and a note counts
// such frees. An oom and an entry of an unknown action are left out and counted. Other
// entries describe segments of the recorded allocator, and snapshots.
//
// The recording may have lost its beginning, or have begun late. A block that was handed
// out before is known if an entry frees it, or if it is in a segment, which is the state at
// the end, and no entry names it.
func readSnapshot(in *bufio.Reader, device int) (*Requests, error) {
	p := &unpickler{in: in}
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
	b := newBuilder()
	notes, err := b.addEntries(p.of((*v.lists)[device]))
	if err != nil {
		return nil, err
	}
	for _, e := range p.of(v.span) {
		if e.device != int64(device) {
			continue
		}
		if err := b.keep(e.addr, e.bytes, e.stream); err != nil {
			return nil, fmt.Errorf("byte %d: %w", e.at, err)
		}
	}
	r, err := b.done()
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
func (b *builder) addEntries(entries []entry) (notes []string, err error) {
	unknown, late := 0, 0
	var requested *entry // the last known entry, if it is a free_requested
	for i := range entries {
		e := &entries[i]
		if e.action == actionUnknown {
			unknown++
			continue
		}
		if requested != nil && (e.action != actionFreeCompleted || e.addr != requested.addr) {
			late++
		}
		requested = nil
		switch e.action {
		case actionAlloc:
			err = b.alloc(e.addr, e.bytes, e.stream)
		case actionFreeRequested:
			requested = e
			err = b.free(e.addr, e.bytes, e.stream)
		case actionOOM:
			b.requests.Failures++
		}
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w", e.at, err)
		}
	}
	if requested != nil {
		late++
	}
	if unknown > 0 {
		notes = append(notes, fmt.Sprintf("%d of unknown actions are left out", unknown))
	}
	if late > 0 {
		notes = append(notes, fmt.Sprintf("%d freed while other streams used them, which the trace does not name", late))
	}
	return notes, nil
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
