package observe

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
)

// A word is a string that means something in a snapshot.
type word uint8

const (
	_ word = iota
	// Keys of the whole.
	keySegments
	keyTraces
	// Keys of an entry of a device's trace.
	keyAction
	keyAddr
	keySize
	keyStream
	// Keys of a segment, which also has a stream, and of a block in it.
	keyDevice
	keyBlocks
	keyAddress
	keyRequestedSize
	keyState
	keys // how many there are
	// Actions.
	actionAlloc
	actionFreeRequested
	actionFreeCompleted
	actionOOM
	actionOther // of the allocator that was recorded
	actionUnknown
	// A state; the others are those of blocks that were freed.
	stateAllocated
)

var words = map[string]word{
	"segments":         keySegments,
	"device_traces":    keyTraces,
	"action":           keyAction,
	"addr":             keyAddr,
	"size":             keySize,
	"stream":           keyStream,
	"device":           keyDevice,
	"blocks":           keyBlocks,
	"address":          keyAddress,
	"requested_size":   keyRequestedSize,
	"state":            keyState,
	"alloc":            actionAlloc,
	"free_requested":   actionFreeRequested,
	"free_completed":   actionFreeCompleted,
	"oom":              actionOOM,
	"segment_alloc":    actionOther,
	"segment_free":     actionOther,
	"segment_map":      actionOther,
	"segment_unmap":    actionOther,
	"snapshot":         actionOther,
	"user_defined":     actionOther,
	"active_allocated": stateAllocated,
}

// longestWord is the length of the longest of words.
const longestWord = len("active_allocated")

// A snapshot is what is kept of one: the entries of all traces, and the blocks
// that were handed out when it was made, in the order of the file.
type snapshot struct {
	entries []entry
}

// An entry is one of a device's trace, or a block, whose action is
// stateAllocated.
type entry struct {
	addr   uint64
	bytes  int64
	stream uint64
	at     int64 // its place in the file
	device int64 // of a block
	action word
}

// A span is some of the entries.
type span struct{ first, entries int }

// join adds the entries of t behind those of s, if they follow.
func (s *span) join(t span) bool {
	switch {
	case t.entries == 0:
		return true
	case s.entries == 0:
		*s = t
		return true
	case s.first+s.entries != t.first:
		return false
	}
	s.entries += t.entries
	return true
}

// append adds members to a list, which stays of interest if all are entries that
// follow each other or all are lists of interest.
func (v *value) append(members []value) {
	for i := range members {
		m := &members[i]
		switch {
		case v.done:
		case m.kind == entries && v.lists == nil && v.join(m.span):
		case m.kind == list && !m.done && m.lists == nil && v.span == (span{}) && v.addList(m.span):
		default:
			v.done, v.span, v.lists = true, span{}, nil
		}
	}
}

// addList adds a list to those in v, unless there are too many.
func (v *value) addList(s span) bool {
	if v.lists == nil {
		v.lists = new([]span)
	}
	if len(*v.lists) == mostLists {
		return false
	}
	*v.lists = append(*v.lists, s)
	return true
}

// set gives a dict its members, keys and values in turn, and finds out what it
// is. One that has members already, since Python writes a thousand at a time, is
// of no interest.
func (p *unpickler) set(d *value, members []value) error {
	var has [keys]*value
	odd := len(members)%2 != 0
	for i := range members {
		if odd || members[i].count > 1 {
			return p.wrong("the keys and values of a dict are not pairs")
		}
		if key := &members[i]; i%2 == 0 && key.kind == text && key.word < keys {
			has[key.word] = &members[i+1]
		}
	}
	switch {
	case d.done:
	case has[keyTraces] != nil:
		return p.setWhole(d, &has)
	case has[keyAction] != nil:
		return p.setEntry(d, &has)
	case has[keyBlocks] != nil && has[keyDevice] != nil && has[keyStream] != nil:
		return p.setSegment(d, &has)
	case has[keyState] != nil && has[keyAddress] != nil && has[keyRequestedSize] != nil:
		return p.setBlock(d, &has)
	}
	d.done = true
	return nil
}

func (p *unpickler) setWhole(d *value, has *[keys]*value) error {
	traces := has[keyTraces]
	if traces.kind != list || traces.done || traces.lists == nil {
		return p.wrong("device_traces is not a list with a list of entries for each device")
	}
	*d = value{kind: whole, lists: traces.lists}
	if held := has[keySegments]; held != nil && held.kind == list {
		d.span = held.span
	}
	return nil
}

// setEntry keeps an entry if it says that a block is handed out or freed, or that
// there was no memory, or if its action is not known.
func (p *unpickler) setEntry(d *value, has *[keys]*value) error {
	e := entry{at: p.ops, action: has[keyAction].word}
	*d = value{kind: entries, count: 1}
	switch e.action {
	case actionAlloc, actionFreeRequested, actionFreeCompleted:
		if err := p.numbers(has, keyAddr, keySize, keyStream); err != nil {
			return err
		}
		e.addr, e.bytes, e.stream = uint64(has[keyAddr].n), has[keySize].n, uint64(has[keyStream].n)
	case actionOOM:
	case actionOther:
		return nil
	default:
		if has[keySize] == nil || has[keyStream] == nil {
			return nil // another dict than those of device_traces
		}
		e.action = actionUnknown
	}
	p.add(d, e)
	return nil
}

// setBlock keeps a block that is handed out.
func (p *unpickler) setBlock(d *value, has *[keys]*value) error {
	*d = value{kind: entries, count: 1}
	if has[keyState].word != stateAllocated {
		return nil
	}
	if err := p.numbers(has, keyAddress, keyRequestedSize); err != nil {
		return err
	}
	p.add(d, entry{
		addr: uint64(has[keyAddress].n), bytes: has[keyRequestedSize].n, at: p.ops, action: stateAllocated,
	})
	return nil
}

// setSegment tells the blocks of a segment what all of them have in common.
func (p *unpickler) setSegment(d *value, has *[keys]*value) error {
	in := has[keyBlocks]
	if in.kind != list || in.done || in.lists != nil {
		d.done = true
		return nil
	}
	if err := p.numbers(has, keyDevice, keyStream); err != nil {
		return err
	}
	*d = value{kind: entries, count: 1, span: in.span}
	for i := range in.entries {
		e := &p.entries[in.first+i]
		e.device, e.stream = has[keyDevice].n, uint64(has[keyStream].n)
	}
	return nil
}

// add keeps an entry, which d stands for.
func (p *unpickler) add(d *value, e entry) {
	d.span = span{len(p.entries), 1}
	p.entries = append(p.entries, e)
}

// numbers says whether all of some members are there, and are numbers.
func (p *unpickler) numbers(has *[keys]*value, wanted ...word) error {
	for _, w := range wanted {
		if has[w] == nil || has[w].kind != number {
			return p.wrong("an entry, block or segment lacks a number that it needs: addr, address, size, requested_size, stream or device")
		}
	}
	return nil
}

// readSnapshot reads what torch.cuda.memory._dump_snapshot writes: a pickle of a
// dict. Its device_traces has a list of entries for each device, of which one
// device is replayed.
//
// An alloc is an Alloc of the size asked for. A free_requested is the Free, on the
// stream of the block. Where other streams have used the block (record_stream),
// free_completed comes later, when they are done with it; the trace does not say
// which they are, so they are left out, and such frees are counted. What an oom
// asked for is left out and counted, and so is an action that is not known. The other
// entries are of the allocator that was recorded: segments, which the replay has its
// own of, and snapshots.
//
// The trace may have lost its beginning, or have begun late. Blocks that were
// handed out before are known if an entry frees them, and if they are in segments,
// which is the state at the end, and no entry names them.
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
	of := (*v.lists)[device]
	trace := p.entries[of.first:][:of.entries]
	trace = slices.DeleteFunc(trace, func(e entry) bool { return e.action == actionUnknown })
	unknown := of.entries - len(trace)
	late := 0 // frees that were completed some entries later
	for i, e := range trace {
		var err error
		switch e.action {
		case actionAlloc:
			err = b.alloc(e.addr, e.bytes, e.stream)
		case actionFreeRequested:
			err = b.free(e.addr, e.bytes, e.stream)
			if i+1 == len(trace) || trace[i+1].action != actionFreeCompleted || trace[i+1].addr != e.addr {
				late++
			}
		case actionOOM:
			b.trace.Failures++
		}
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w", e.at, err)
		}
	}
	for _, e := range p.entries[v.first:][:v.entries] {
		if e.device != int64(device) {
			continue
		}
		if err := b.keep(e.addr, e.bytes, e.stream); err != nil {
			return nil, fmt.Errorf("byte %d: %w", e.at, err)
		}
	}
	t, err := b.done()
	if errors.Is(err, errNoEvent) {
		err = fmt.Errorf("%w for device %d: was it recorded with torch.cuda.memory._record_memory_history()?", err, device)
	}
	if err != nil {
		return nil, err
	}
	if n := len(*v.lists); n > 1 {
		t.notes = append(t.notes, fmt.Sprintf("device %d of 0 to %d%s", device, n-1, chosen))
	}
	if unknown > 0 {
		t.notes = append(t.notes, fmt.Sprintf("%d of unknown actions are left out", unknown))
	}
	if late > 0 {
		t.notes = append(t.notes, fmt.Sprintf("%d freed while other streams used them, which the trace does not name", late))
	}
	return t, nil
}

// choose returns a device that there is: the one with most allocs and frees, if
// it is to choose.
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
		for _, e := range s.entries[t.first:][:t.entries] {
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
