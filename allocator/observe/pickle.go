package observe

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/bits"
	"strings"
)

// A pickler writes plain data as Python's pickle, protocol 2, with only the opcodes that
// pytorch.org/memory_viz reads: text is Unicode, and numbers have up to 8 bytes. finish
// returns the first error of a write.
type pickler struct {
	out  *bufio.Writer
	memo map[string]uint32 // numbers of values written before, by name
}

// picklerBatch is how many members of a list are appended at once, as in Python. A reader
// has them all on a stack.
const picklerBatch = 1000

// newPickler begins a pickle of one value, which finish ends.
func newPickler(w io.Writer) *pickler {
	p := &pickler{bufio.NewWriter(w), map[string]uint32{}}
	p.op(opProto, 2, 1)
	return p
}

func (p *pickler) finish() error {
	p.out.WriteByte(opStop)
	return p.out.Flush()
}

// op writes an opcode and the low bytes of n.
func (p *pickler) op(code byte, n uint64, bytes int) {
	p.out.WriteByte(code)
	p.out.Write(binary.LittleEndian.AppendUint64(nil, n)[:bytes])
}

func (p *pickler) int(n int64) {
	switch {
	case n == int64(uint8(n)):
		p.op(opInt1, uint64(n), 1)
	case n == int64(uint16(n)):
		p.op(opInt2, uint64(n), 2)
	case n == int64(int32(n)):
		p.op(opInt4, uint64(n), 4)
	default:
		p.op(opLong1, 8, 1)
		p.out.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
	}
}

func (p *pickler) bool(b bool) {
	code := byte(opFalse)
	if b {
		code = opTrue
	}
	p.out.WriteByte(code)
}

// once calls value to write a value the first time it is called with name, and then writes
// a reference.
func (p *pickler) once(name string, value func()) {
	at, written := p.memo[name]
	put, put4 := byte(opPut1), byte(opPut4)
	if written {
		put, put4 = opGet1, opGet4
	} else {
		value()
		at = uint32(len(p.memo))
		p.memo[name] = at
	}
	if bits.Len32(at) <= 8 {
		p.op(put, uint64(at), 1)
	} else {
		p.op(put4, uint64(at), 4)
	}
}

func (p *pickler) text(s string) {
	p.once("text "+s, func() {
		s = strings.ToValidUTF8(s, "\uFFFD") // Python refuses anything else
		p.op(opText4, uint64(len(s)), 4)
		p.out.WriteString(s)
	})
}

// dict writes a dict. members writes keys and values in turn.
func (p *pickler) dict(members func()) {
	p.out.Write([]byte{opEmptyDict, opMark})
	members()
	p.out.WriteByte(opSetItems)
}

// list writes a list of n members.
func (p *pickler) list(n int, member func(i int)) {
	p.out.WriteByte(opEmptyList)
	for from := 0; from < n; from += picklerBatch {
		p.out.WriteByte(opMark)
		for i := from; i < min(from+picklerBatch, n); i++ {
			member(i)
		}
		p.out.WriteByte(opAppends)
	}
}

// number and word write a member of a dict.
func (p *pickler) number(key string, n int64) {
	p.text(key)
	p.int(n)
}

func (p *pickler) word(key, value string) {
	p.text(key)
	p.text(value)
}
