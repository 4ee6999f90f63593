package observe

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
)

// A snapshot keeps the entries of all traces, and the segments with their blocks, in the
// order of the file.
type snapshot struct {
	entries []entry
	traces  []span // of each device
	names
	conf string // PYTORCH_CUDA_ALLOC_CONF
	at   int64  // offset of the current opcode
}

// An entry is an entry of a trace, a block or a segment. The blocks of a segment precede it.
type entry struct {
	addr       uint64
	bytes      int64 // of a block, as asked for
	size       int64 // of a block, with its padding
	stream     uint64
	at         int64 // offset in the file
	stack      int32 // in names
	pool       int32
	device     int32 // of a segment
	action     word  // or the state of a block, or isSegment
	serves     word  // the type of a segment
	expandable bool  // a segment's pages are mapped one by one
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
	case has[keyTraces] != nil, has[keySegments] != nil:
		return s.setWhole(d, &has)
	case has[keyAction] != nil:
		return s.setEntry(d, &has)
	case has[keyBlocks] != nil && has[keyDevice] != nil && has[keyStream] != nil:
		return s.setSegment(d, &has)
	case has[keyState] != nil && has[keySize] != nil:
		return s.setBlock(d, &has)
	case has[keyAddr] != nil && has[keyFrames] != nil: // of a block's history
		*d = value{kind: stack, n: int64(s.stackOf(has[keyFrames]))}
		return nil
	case has[keyConf] != nil, has[keyConfOfAll] != nil, has[keyMaxSplit] != nil:
		*d = value{kind: text, n: int64(s.texts.number(s.confOf(&has)))}
		return nil
	case has[keyName] != nil && has[keyFilename] != nil:
		s.setFrame(d, &has)
		return nil
	}
	d.done = true
	return nil
}

func (s *snapshot) setWhole(d *value, has *[keys]*value) error {
	*d = value{kind: whole}
	if traces := has[keyTraces]; traces != nil {
		if traces.kind != list || traces.done || traces.lists == nil && traces.entries > 0 {
			return errors.New("device_traces is not a list with a list of entries for each device")
		}
		d.lists = traces.lists
	}
	if c := has[keySettings]; c != nil && c.kind == text {
		s.conf = s.texts.values[c.n]
	}
	if held := has[keySegments]; held != nil && held.kind == list {
		d.span = held.span
	}
	return nil
}

// setEntry keeps an entry that allocates or frees a block or memory of the driver, ran out of
// memory, or has an unknown action.
func (s *snapshot) setEntry(d *value, has *[keys]*value) error {
	e := entry{at: s.at, action: has[keyAction].word}
	*d = value{kind: entries, count: 1}
	switch e.action {
	case actionAlloc, actionFreeRequested, actionFreeCompleted:
		if err := s.numbers(has, keyAddr, keySize, keyStream); err != nil {
			return err
		}
		e.addr, e.bytes, e.stream = uint64(has[keyAddr].n), has[keySize].n, uint64(has[keyStream].n)
		e.stack, e.pool = s.stackOf(has[keyFrames]), poolOf(has)
	case actionReserve, actionRelease:
		if err := s.numbers(has, keySize); err != nil {
			return err
		}
		e.bytes = has[keySize].n
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

// confOf returns the PYTORCH_CUDA_ALLOC_CONF of allocator_settings. If that is empty, it says what the settings are.
func (s *snapshot) confOf(has *[keys]*value) string {
	for _, key := range []word{keyConf, keyConfOfAll} {
		if v := has[key]; v != nil && v.kind == text && v.n > 0 {
			if conf := s.texts.values[v.n]; conf != "" {
				return conf
			}
		}
	}
	var conf []string
	if v := has[keyExpandableSegments]; v != nil && v.kind == number && v.n == 1 {
		conf = append(conf, "expandable_segments:True")
	}
	if v := has[keyMaxSplit]; v != nil && v.kind == number && v.n > 0 && v.n < mostReserved {
		conf = append(conf, fmt.Sprintf("max_split_size_mb:%d", v.n>>20))
	}
	return strings.Join(conf, ",")
}

func (s *snapshot) setBlock(d *value, has *[keys]*value) error {
	if err := s.numbers(has, keySize); err != nil {
		return err
	}
	e := entry{bytes: has[keySize].n, size: has[keySize].n, at: s.at, action: has[keyState].word}
	e.stack = cmp.Or(s.stackOf(has[keyFrames]), s.stackOf(has[keyHistory]))
	if has[keyAddress] != nil { // else it follows the block before
		if err := s.numbers(has, keyAddress); err != nil {
			return err
		}
		e.addr = uint64(has[keyAddress].n)
	}
	if has[keyRequestedSize] != nil {
		if err := s.numbers(has, keyRequestedSize); err != nil {
			return err
		}
		e.bytes = has[keyRequestedSize].n
	}
	*d = value{kind: entries, count: 1}
	s.add(d, e)
	return nil
}

// setSegment keeps a segment, unless its blocks are not the last entries.
func (s *snapshot) setSegment(d *value, has *[keys]*value) error {
	in := has[keyBlocks]
	if in.kind != list || in.done || in.lists != nil {
		d.done = true
		return nil
	}
	if err := s.numbers(has, keyDevice, keyStream, keyAddress, keyTotalSize); err != nil {
		return err
	}
	e := entry{
		addr: uint64(has[keyAddress].n), bytes: has[keyTotalSize].n, stream: uint64(has[keyStream].n),
		at: s.at, pool: poolOf(has), device: -1, action: isSegment,
	}
	if n := has[keyDevice].n; 0 <= n && n <= math.MaxInt32 {
		e.device = int32(n)
	}
	if serves := has[keyType]; serves != nil {
		e.serves = serves.word
	}
	if x := has[keyExpandable]; x != nil && x.kind == number {
		e.expandable = x.n != 0
	}
	held := in.span
	for i := range held.entries {
		s.entries[held.first+i].pool = e.pool
	}
	*d = value{kind: entries, count: 1}
	s.add(d, e)
	if !held.join(d.span) {
		*d = value{kind: dict, done: true}
		return nil
	}
	d.span = held
	return nil
}

// setFrame makes d a frame, unless its name or file is too long to be kept.
func (s *snapshot) setFrame(d *value, has *[keys]*value) {
	name, file := has[keyName], has[keyFilename]
	if name.kind != text || file.kind != text {
		d.done = true
		return
	}
	f := frame{name: int32(name.n), file: int32(file.n)}
	if line := has[keyLine]; line != nil && line.kind == number {
		f.line = line.n
	}
	*d = value{kind: stackFrame, n: int64(s.frame(f))}
}

// stackOf returns the number of the stack that v is, 0 if it is none.
func (s *snapshot) stackOf(v *value) int32 {
	if v != nil && (v.kind == list || v.kind == stack) {
		return int32(v.n)
	}
	return 0
}

// poolOf returns the number of the pool of a dict, 0 if it has none.
func poolOf(has *[keys]*value) int32 {
	if v := has[keyPool]; v != nil && v.kind == poolID {
		return int32(v.n)
	}
	return 0
}

// add keeps e, and makes d stand for it.
func (s *snapshot) add(d *value, e entry) {
	d.span = span{len(s.entries), 1}
	s.entries = append(s.entries, e)
}

var errNoNumber = errors.New("an entry, block or segment lacks a number: " +
	"addr, address, size, total_size, requested_size, stream or device")

// numbers returns an error unless all wanted members are numbers.
func (s *snapshot) numbers(has *[keys]*value, wanted ...word) error {
	for _, w := range wanted {
		if has[w] == nil || has[w].kind != number {
			return errNoNumber
		}
	}
	return nil
}
