package observe

import "errors"

// A word is a string that has a meaning in a snapshot.
type word uint8

const (
	_ word = iota
	// Keys of the snapshot.
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
	// The state of a live block.
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

// A snapshot keeps the entries of all traces, and the blocks that were live when it was
// taken, in the order of the file.
type snapshot struct {
	entries []entry
	at      int64 // offset of the current opcode
}

// An entry is an entry of a trace, or a live block, whose action is stateAllocated.
type entry struct {
	addr   uint64
	bytes  int64
	stream uint64
	at     int64 // offset in the file
	device int64 // of a block
	action word
}

// A span is a range of the entries.
type span struct{ first, entries int }

// join appends t to s if it follows s.
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

// append adds members to a list. What the list holds is kept if all members are entries
// in sequence, or all are lists of entries.
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

// addList adds a list to v, unless v has mostLists.
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

// set gives a dict its members, alternating keys and values, and finds out what it is.
// Python writes a thousand members at a time; a dict that has some already is opaque.
func (s *snapshot) set(d *value, members []value) error {
	var has [keys]*value
	odd := len(members)%2 != 0
	for i := range members {
		if odd || members[i].count > 1 {
			return errors.New("the keys and values of a dict are not pairs")
		}
		if key := &members[i]; i%2 == 0 && key.kind == text && key.word < keys {
			has[key.word] = &members[i+1]
		}
	}
	switch {
	case d.done:
	case has[keyTraces] != nil:
		return s.setWhole(d, &has)
	case has[keyAction] != nil:
		return s.setEntry(d, &has)
	case has[keyBlocks] != nil && has[keyDevice] != nil && has[keyStream] != nil:
		return s.setSegment(d, &has)
	case has[keyState] != nil && has[keyAddress] != nil && has[keyRequestedSize] != nil:
		return s.setBlock(d, &has)
	}
	d.done = true
	return nil
}

func (s *snapshot) setWhole(d *value, has *[keys]*value) error {
	traces := has[keyTraces]
	if traces.kind != list || traces.done || traces.lists == nil {
		return errors.New("device_traces is not a list with a list of entries for each device")
	}
	*d = value{kind: whole, lists: traces.lists}
	if held := has[keySegments]; held != nil && held.kind == list {
		d.span = held.span
	}
	return nil
}

// setEntry keeps an entry that allocates or frees a block, ran out of memory, or has an
// unknown action.
func (s *snapshot) setEntry(d *value, has *[keys]*value) error {
	e := entry{at: s.at, action: has[keyAction].word}
	*d = value{kind: entries, count: 1}
	switch e.action {
	case actionAlloc, actionFreeRequested, actionFreeCompleted:
		if err := s.numbers(has, keyAddr, keySize, keyStream); err != nil {
			return err
		}
		e.addr, e.bytes, e.stream = uint64(has[keyAddr].n), has[keySize].n, uint64(has[keyStream].n)
	case actionOOM:
	case actionOther:
		return nil
	default:
		if has[keySize] == nil || has[keyStream] == nil {
			return nil // not a dict of device_traces
		}
		e.action = actionUnknown
	}
	s.add(d, e)
	return nil
}

// setBlock keeps a live block.
func (s *snapshot) setBlock(d *value, has *[keys]*value) error {
	*d = value{kind: entries, count: 1}
	if has[keyState].word != stateAllocated {
		return nil
	}
	if err := s.numbers(has, keyAddress, keyRequestedSize); err != nil {
		return err
	}
	s.add(d, entry{
		addr: uint64(has[keyAddress].n), bytes: has[keyRequestedSize].n, at: s.at, action: stateAllocated,
	})
	return nil
}

// setSegment gives the blocks of a segment its device and stream.
func (s *snapshot) setSegment(d *value, has *[keys]*value) error {
	in := has[keyBlocks]
	if in.kind != list || in.done || in.lists != nil {
		d.done = true
		return nil
	}
	if err := s.numbers(has, keyDevice, keyStream); err != nil {
		return err
	}
	*d = value{kind: entries, count: 1, span: in.span}
	for i := range in.entries {
		e := &s.entries[in.first+i]
		e.device, e.stream = has[keyDevice].n, uint64(has[keyStream].n)
	}
	return nil
}

// add keeps e, and makes d stand for it.
func (s *snapshot) add(d *value, e entry) {
	d.span = span{len(s.entries), 1}
	s.entries = append(s.entries, e)
}

// numbers returns an error unless all wanted members are numbers.
func (s *snapshot) numbers(has *[keys]*value, wanted ...word) error {
	for _, w := range wanted {
		if has[w] == nil || has[w].kind != number {
			return errors.New("an entry, block or segment lacks a number: addr, address, size, requested_size, stream or device")
		}
	}
	return nil
}

// A kind is what a value is known to be.
type kind uint8

const (
	opaque kind = iota // skipped, such as None and stacks
	mark               // opMark
	text               // a word
	number             // of up to 64 bits
	list
	dict    // not known to be an entry
	entries // one or more dicts that are entries, in sequence
	whole   // the snapshot
)

// A value is on the stack of an unpickler. Its size is fixed, so what is skipped takes no
// memory.
type value struct {
	kind  kind
	done  bool // a list has opaque members, or a dict has members
	word  word // of a text
	count int  // number of dicts in entries
	n     int64
	span          // what a list or entries hold
	lists *[]span // what each list in a list, or in the whole, holds
}

const (
	mostValues = 1 << 17 // on the stack; Python puts 1000 together at a time
	mostLists  = 1 << 12 // in a list; a snapshot has one for each device
)
