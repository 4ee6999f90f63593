package observe

import (
	"bufio"
	"errors"
	"io"
)

// An unpickler runs a pickle. It keeps entries, four bytes for each memo, names, and a stack
// of at most mostValues; it skips all else.
type unpickler struct {
	in        *bufio.Reader
	bytesRead int64

	small [longestText]byte // the last number or text

	stack []value
	marks []int       // places of marks on the stack
	memo  []reference // by number
	puts  int         // so far
	ended error       // the file does, in the middle of the pickle

	snapshot
}

// longestText is the length of the longest text that is kept, in bytes.
const longestText = 1 << 10

func newUnpickler(in *bufio.Reader) *unpickler {
	return &unpickler{in: in, snapshot: snapshot{names: newNames()}}
}

// run reads a pickle to its end and returns its value. Of one that is cut off, it returns what closeAll makes of it.
func (p *unpickler) run() (value, error) {
	for {
		p.at = p.bytesRead
		op, err := p.byte()
		if err == nil && op == opStop {
			break
		}
		if err == nil {
			err = p.do(op)
		}
		if err != nil && p.ended != nil && p.closeAll() == nil {
			return p.stack[0], nil
		}
		if err != nil {
			return value{}, err
		}
	}
	if len(p.stack) != 1 {
		return value{}, p.wrong("the pickle ends with %d values, not one", len(p.stack))
	}
	p.at = p.bytesRead
	if _, err := p.in.ReadByte(); err == nil {
		return value{}, p.wrong("the file continues after the pickle")
	} else if !errors.Is(err, io.EOF) {
		return value{}, p.wrong("%w", err)
	}
	return p.stack[0], nil
}

// closeAll ends the lists in progress and the snapshot around them, and drops what else is in progress.
func (p *unpickler) closeAll() error {
	for len(p.stack) > 1 {
		last, bottom := len(p.stack)-1, p.bottom()
		among := bottom >= 2 && p.stack[bottom-2].kind == list // the values on top are members of a list
		var err error
		switch {
		case p.stack[last].kind == dict && !p.stack[last].done: // without members
			p.drop(last)
		case last > bottom && p.stack[last-1].kind == list && (p.stack[last].kind == entries || p.stack[last].kind == list && !among):
			err = p.fill(opAppend) // the only entry of a device, or the only device
		case len(p.marks) == 0 && last == 2:
			err = p.fill(opSetItem)
		case len(p.marks) == 0:
			p.drop(last)
		case bottom < 2:
			return p.ended
		case p.stack[bottom-2].kind == mark: // a mark right behind another
			p.drop(bottom - 1)
		case p.stack[bottom-2].kind == list:
			err = p.fill(opAppends)
		case bottom == 2 && (last-bottom)%2 == 1:
			err = p.fill(opSetItems)
		case bottom == 2: // a key without its value
			p.drop(last)
		default:
			p.drop(bottom - 2)
		}
		if err != nil {
			return err
		}
	}
	if len(p.stack) == 0 || p.stack[0].kind == mark {
		return p.ended
	}
	return nil
}

// drop takes the values from index from on off the stack, and the marks among them.
func (p *unpickler) drop(from int) {
	p.stack = p.stack[:from]
	for last := len(p.marks) - 1; last >= 0 && p.marks[last] >= from; last-- {
		p.marks = p.marks[:last]
	}
}

// do runs one opcode.
func (p *unpickler) do(op byte) error {
	switch op {
	case opProto:
		version, err := p.byte()
		if err == nil && (version < 2 || version > 5) {
			err = p.wrong("pickle protocol %d is not 2 to 5", version)
		}
		return err
	case opFrame:
		return p.skip(uint64(argument[op]))
	case opMark:
		p.marks = append(p.marks, len(p.stack))
		return p.push(value{kind: mark})
	case opNone, opEmptyTuple:
		return p.push(value{})
	case opFalse:
		return p.push(value{kind: number, n: 0})
	case opTrue:
		return p.push(value{kind: number, n: 1})
	case opEmptyList:
		return p.push(value{kind: list})
	case opEmptyDict:
		return p.push(value{kind: dict})
	case opInt1, opInt2, opInt4, opLong1, opLong4, opFloat:
		return p.number(op)
	case opText1, opText4, opText8, opBytes1, opBytes4, opBytes8, opByteArray8:
		return p.text(op)
	case opMemoize, opPut1, opPut4:
		return p.put(op)
	case opGet1, opGet4:
		return p.get(op)
	case opTuple1, opTuple2, opTuple3:
		members, err := p.pop(int(op) - opTuple1 + 1)
		if err != nil {
			return err
		}
		return p.push(p.tuple(members))
	case opTuple:
		members, err := p.popMark()
		if err != nil {
			return err
		}
		return p.push(p.tuple(members))
	case opAppend, opAppends, opSetItem, opSetItems:
		return p.fill(op)
	}
	return p.wrong("opcode %#02x is not for plain data", op)
}

// number reads a number. One that is not an integer of up to 64 bits is opaque.
func (p *unpickler) number(op byte) error {
	size := uint64(argument[op])
	if op == opLong1 || op == opLong4 {
		var err error
		if size, err = p.uint(argument[op]); err != nil {
			return err
		}
	}
	if size > 8 || op == opFloat {
		if err := p.skip(size); err != nil {
			return err
		}
		return p.push(value{})
	}
	u, err := p.uint(uint8(size))
	if err != nil {
		return err
	}
	n := int64(u)
	if op != opInt1 && op != opInt2 {
		unused := 64 - 8*size
		n = n << unused >> unused // the highest bit is the sign
	}
	return p.push(value{kind: number, n: n})
}

// text reads a string or bytes. One of more than longestText bytes is opaque.
func (p *unpickler) text(op byte) error {
	size, err := p.uint(argument[op])
	if err != nil {
		return err
	}
	if size > longestText {
		if err := p.skip(size); err != nil {
			return err
		}
		return p.push(value{})
	}
	letters, err := p.read(int(size))
	if err != nil {
		return err
	}
	number, known := p.texts.numbers[string(letters)]
	if !known {
		number = p.texts.number(string(letters))
	}
	return p.push(value{kind: text, word: p.word(int64(number)), n: int64(number)})
}

// mostSkipped numbers may be left out before one of the memo: picklers count from 0 on.
const mostSkipped = 1024

// put stores the value on top of the stack. Python stores a list or dict before it fills it.
func (p *unpickler) put(op byte) error {
	number := uint64(len(p.memo))
	if op != opMemoize {
		var err error
		if number, err = p.uint(argument[op]); err != nil {
			return err
		}
	}
	top, err := p.top()
	if err != nil {
		return err
	}
	if number > uint64(p.puts+mostSkipped) {
		return p.wrong("memo %d follows only %d others", number, p.puts)
	}
	p.puts++
	if missing := int(number) + 1 - len(p.memo); missing > 0 {
		p.memo = append(p.memo, make([]reference, missing)...)
	}
	p.memo[number] = top.reference()
	top.memo = int(number) + 1
	return nil
}

// get pushes what put stored.
func (p *unpickler) get(op byte) error {
	number, err := p.uint(argument[op])
	if err != nil {
		return err
	}
	if number >= uint64(len(p.memo)) {
		return p.wrong("memo %d is not filled", number)
	}
	v := p.memo[number].value()
	if v.kind == text {
		v.word = p.word(v.n)
	}
	return p.push(v)
}

// fill moves values into the list or dict below them.
func (p *unpickler) fill(op byte) error {
	var items []value
	var err error
	switch op {
	case opAppend:
		items, err = p.pop(1)
	case opSetItem:
		items, err = p.pop(2)
	default:
		items, err = p.popMark()
	}
	if err != nil {
		return err
	}
	into, err := p.top()
	if err != nil {
		return err
	}
	memo := into.memo
	switch isList := op == opAppend || op == opAppends; {
	case isList && into.kind == list:
		p.append(into, items)
	case !isList && into.kind == dict:
		if err := p.set(into, items); err != nil {
			return p.wrong("%w", err)
		}
	default:
		return p.wrong("members are added to a value that is not a list or dict in progress")
	}
	if memo > 0 {
		into.memo, p.memo[memo-1] = memo, into.reference()
	}
	p.merge()
	return nil
}

// merge joins the entries on top of the stack with those below, so that a list of
// millions that is built at once needs no stack for them.
func (p *unpickler) merge() {
	last := len(p.stack) - 1
	if last-1 < p.bottom() || p.stack[last].kind != entries || p.stack[last-1].kind != entries {
		return
	}
	if below := &p.stack[last-1]; below.join(p.stack[last].span) {
		below.count += p.stack[last].count
		p.stack = p.stack[:last]
	}
}

func (p *unpickler) push(v value) error {
	if len(p.stack) == mostValues {
		return p.wrong("more than %d values are on the stack", mostValues)
	}
	p.stack = append(p.stack, v)
	return nil
}

// bottom returns the index of the first value above the last mark.
func (p *unpickler) bottom() int {
	if last := len(p.marks) - 1; last >= 0 {
		return p.marks[last] + 1
	}
	return 0
}

// pop takes n values, which the next push overwrites. None may be several entries.
func (p *unpickler) pop(n int) ([]value, error) {
	from := len(p.stack) - n
	if from < p.bottom() {
		return nil, p.wrong("the stack has too few values")
	}
	items := p.stack[from:]
	for _, v := range items {
		if v.count > 1 {
			return nil, p.wrong("entries are taken apart")
		}
	}
	p.stack = p.stack[:from]
	return items, nil
}

// popMark takes the values above the last mark, and the mark.
func (p *unpickler) popMark() ([]value, error) {
	last := len(p.marks) - 1
	if last < 0 {
		return nil, p.wrong("the stack has no mark")
	}
	from := p.marks[last]
	items := p.stack[from+1:]
	p.stack, p.marks = p.stack[:from], p.marks[:last]
	return items, nil
}

func (p *unpickler) top() (*value, error) {
	if len(p.stack) <= p.bottom() {
		return nil, p.wrong("the stack is empty")
	}
	return &p.stack[len(p.stack)-1], nil
}
