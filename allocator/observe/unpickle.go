package observe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
)

// Opcodes of pickle, protocols 2 to 5, as far as data without classes needs
// them. All others are refused, those that call code among them.
const (
	opMark       = '('
	opStop       = '.'
	opNone       = 'N'
	opTrue       = 0x88
	opFalse      = 0x89
	opInt4       = 'J' // BININT: 4 bytes, signed
	opInt1       = 'K' // BININT1
	opInt2       = 'M' // BININT2
	opLong1      = 0x8a
	opLong4      = 0x8b
	opFloat      = 'G'
	opText4      = 'X' // BINUNICODE: a length of 4 bytes
	opText1      = 0x8c
	opText8      = 0x8d
	opBytes4     = 'B'
	opBytes1     = 'C'
	opBytes8     = 0x8e
	opByteArray8 = 0x96
	opEmptyTuple = ')'
	opTuple      = 't'
	opTuple1     = 0x85
	opTuple2     = 0x86
	opTuple3     = 0x87
	opEmptyList  = ']'
	opAppend     = 'a'
	opAppends    = 'e'
	opEmptyDict  = '}'
	opSetItem    = 's'
	opSetItems   = 'u'
	opPut1       = 'q' // BINPUT
	opPut4       = 'r'
	opGet1       = 'h' // BINGET
	opGet4       = 'j'
	opMemoize    = 0x94
	opProto      = 0x80
	opFrame      = 0x95
)

// argument is how many bytes of a number, or of a length, follow an opcode.
var argument = [256]uint8{
	opInt1: 1, opInt2: 2, opInt4: 4, opLong1: 1, opLong4: 4, opFloat: 8,
	opText1: 1, opText4: 4, opText8: 8,
	opBytes1: 1, opBytes4: 4, opBytes8: 8, opByteArray8: 8,
	opPut1: 1, opPut4: 4, opGet1: 1, opGet4: 4,
	opFrame: 8, // a length, which is of use to those who read ahead
}

// A kind is what is known of a value.
type kind uint8

const (
	opaque  kind = iota // of no interest, which is most of a snapshot: None, stacks
	mark                // opMark
	text                // one of the words of a snapshot
	number              // that fits 64 bits
	list                // see value
	dict                // without entries, or with none of interest
	entries             // a dict, or neighbours, that stand for entries of the snapshot
	whole               // the dict that is the snapshot
)

// A value is on the stack of the pickle's machine. It holds no data that is of
// no interest, so its size is fixed and what is skipped costs no memory.
type value struct {
	kind  kind
	done  bool // of a list: it has members of no interest; of a dict: it has members
	word  word // of a text
	count int  // of entries: dicts that this value stands for
	n     int64
	span          // of a list or entries: what it holds
	lists *[]span // of a list of lists, or the whole: what each of them holds
}

const (
	mostValues = 1 << 17 // on the stack: Python puts 1000 together at a time
	mostLists  = 1 << 12 // in a list that is of interest: there is one for each device
)

// An unpickler runs a pickle. It keeps entries, one byte for each memo and a
// stack of fixed size; all else is read past.
type unpickler struct {
	in  *bufio.Reader
	at  int64 // bytes read
	ops int64 // where the current opcode is

	small [longestWord]byte // the last number or short text

	stack []value
	marks []int  // places of marks on the stack
	memo  []word // by number; 0 for what is of no interest

	snapshot
}

// run reads a pickle to its end and returns the value it stands for.
func (p *unpickler) run() (value, error) {
	for {
		p.ops = p.at
		op, err := p.byte()
		if err != nil {
			return value{}, err
		}
		if op == opStop {
			break
		}
		if err := p.do(op); err != nil {
			return value{}, err
		}
	}
	if len(p.stack) != 1 {
		return value{}, p.wrong("the pickle ends with %d values, not one", len(p.stack))
	}
	p.ops = p.at
	if _, err := p.in.ReadByte(); err == nil {
		return value{}, p.wrong("the file goes on after the pickle")
	} else if !errors.Is(err, io.EOF) {
		return value{}, p.wrong("%w", err)
	}
	return p.stack[0], nil
}

// do does one opcode.
func (p *unpickler) do(op byte) error {
	switch op {
	case opProto:
		version, err := p.byte()
		if err == nil && (version < 2 || version > 5) {
			err = p.wrong("pickle protocol %d is not of 2 to 5", version)
		}
		return err
	case opFrame:
		return p.skip(uint64(argument[op]))
	case opMark:
		p.marks = append(p.marks, len(p.stack))
		return p.push(value{kind: mark})
	case opNone, opTrue, opFalse, opEmptyTuple:
		return p.push(value{})
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
		if _, err := p.pop(int(op) - opTuple1 + 1); err != nil {
			return err
		}
		return p.push(value{})
	case opTuple:
		if _, err := p.popMark(); err != nil {
			return err
		}
		return p.push(value{})
	case opAppend, opAppends, opSetItem, opSetItems:
		return p.fill(op)
	}
	return p.wrong("opcode %#02x is not of plain data, as a snapshot is", op)
}

// number reads a number. What is no whole one of 64 bits is of no interest.
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

// text reads a string, or bytes, and finds out whether it is a word of a
// snapshot.
func (p *unpickler) text(op byte) error {
	size, err := p.uint(argument[op])
	if err != nil {
		return err
	}
	if size > uint64(longestWord) {
		if err := p.skip(size); err != nil {
			return err
		}
		return p.push(value{})
	}
	letters, err := p.read(int(size))
	if err != nil {
		return err
	}
	if w, ok := words[string(letters)]; ok {
		return p.push(value{kind: text, word: w})
	}
	return p.push(value{})
}

// put remembers the value on top, which is one byte of memory: a list or a dict
// that is used a second time is a stack, and of no interest.
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
	if number >= uint64(p.at) {
		return p.wrong("memo %d is more than %d bytes can have filled", number, p.at)
	}
	if missing := int(number) + 1 - len(p.memo); missing > 0 {
		p.memo = append(p.memo, make([]word, missing)...)
	}
	p.memo[number] = top.word
	return nil
}

// get pushes what put remembered.
func (p *unpickler) get(op byte) error {
	number, err := p.uint(argument[op])
	if err != nil {
		return err
	}
	if number >= uint64(len(p.memo)) {
		return p.wrong("memo %d is not filled", number)
	}
	if w := p.memo[number]; w != 0 {
		return p.push(value{kind: text, word: w})
	}
	return p.push(value{})
}

// fill puts values into the list or dict below them.
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
	switch isList := op == opAppend || op == opAppends; {
	case isList && into.kind == list:
		into.append(items)
	case !isList && into.kind == dict:
		if err := p.set(into, items); err != nil {
			return err
		}
		p.merge()
	default:
		return p.wrong("members are put into what is no list or dict, or into a finished one")
	}
	return nil
}

// merge makes one value of the entries on top and those below, so that a list of
// millions that is put together at once needs no stack for them.
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
		return p.wrong("more than %d values wait to be put together", mostValues)
	}
	p.stack = append(p.stack, v)
	return nil
}

// bottom is the place of the first value above the last mark.
func (p *unpickler) bottom() int {
	if last := len(p.marks) - 1; last >= 0 {
		return p.marks[last] + 1
	}
	return 0
}

// pop takes n values, which the next push overwrites. None may stand for more
// than one.
func (p *unpickler) pop(n int) ([]value, error) {
	from := len(p.stack) - n
	if from < p.bottom() {
		return nil, p.wrong("values are taken where there are none")
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

// popMark takes all values above the last mark, and the mark.
func (p *unpickler) popMark() ([]value, error) {
	last := len(p.marks) - 1
	if last < 0 {
		return nil, p.wrong("values are taken where there is no mark")
	}
	from := p.marks[last]
	items := p.stack[from+1:]
	p.stack, p.marks = p.stack[:from], p.marks[:last]
	return items, nil
}

func (p *unpickler) top() (*value, error) {
	if len(p.stack) <= p.bottom() {
		return nil, p.wrong("a value is needed where there is none")
	}
	return &p.stack[len(p.stack)-1], nil
}

// wrong names the place of an error.
func (p *unpickler) wrong(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", p.ops, fmt.Errorf(format, args...))
}

// cut says why the file cannot be read on.
func (p *unpickler) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return p.wrong("the file ends in the middle of the pickle")
	}
	return p.wrong("%w", err)
}

func (p *unpickler) byte() (byte, error) {
	b, err := p.in.ReadByte()
	if err != nil {
		return 0, p.cut(err)
	}
	p.at++
	return b, nil
}

// read reads up to longestWord bytes, which stay until the next call.
func (p *unpickler) read(bytes int) ([]byte, error) {
	into := p.small[:bytes]
	n, err := io.ReadFull(p.in, into)
	p.at += int64(n)
	if err != nil {
		return nil, p.cut(err)
	}
	return into, nil
}

// uint reads an unsigned number of up to 8 bytes, the lowest first.
func (p *unpickler) uint(bytes uint8) (uint64, error) {
	digits, err := p.read(int(bytes))
	var n uint64
	for i, digit := range digits {
		n |= uint64(digit) << (8 * i)
	}
	return n, err
}

// skip reads past n bytes.
func (p *unpickler) skip(n uint64) error {
	if n > math.MaxInt {
		return p.wrong("%d bytes are more than any file has", n)
	}
	skipped, err := p.in.Discard(int(n))
	p.at += int64(skipped)
	if err != nil {
		return p.cut(err)
	}
	return nil
}
