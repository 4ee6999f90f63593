package observe

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Values of Python in addition to string, int, float64 and nil. pairs is a dict, and raw a
// piece of a pickle.
type (
	pairs []any
	seq   []any
	tuple []any
	raw   string
)

// A pythonPickler writes as Python does: lists in batches, or in one piece as PyTorch's C++,
// and each string once.
type pythonPickler struct {
	strings.Builder
	protocol, batch, memos int
	seen                   map[string]int
}

func dump(protocol int, v any) string { return dumpIn(protocol, 1000, v) }

func dumpIn(protocol, batch int, v any) string {
	p := &pythonPickler{protocol: protocol, batch: batch, seen: map[string]int{}}
	p.add("\x80", string(rune(protocol)))
	if protocol >= 4 {
		p.add("\x95", p.le(8, 1<<40)) // a length that is wrong
	}
	p.value(v)
	p.add(".")
	return p.String()
}

func (p *pythonPickler) add(parts ...string) {
	for _, part := range parts {
		p.WriteString(part)
	}
}

func (p *pythonPickler) le(bytes int, n uint64) string {
	return string(binary.LittleEndian.AppendUint64(nil, n)[:bytes])
}

func (p *pythonPickler) memoize() {
	switch {
	case p.protocol >= 4:
		p.add("\x94")
	case p.memos < 256:
		p.add("q", p.le(1, uint64(p.memos)))
	default:
		p.add("r", p.le(4, uint64(p.memos)))
	}
	p.memos++
}

func (p *pythonPickler) value(v any) {
	switch v := v.(type) {
	case nil:
		p.add("N")
	case raw:
		p.add(string(v))
	case int:
		switch {
		case v >= 0 && v < 256:
			p.add("K", p.le(1, uint64(v)))
		case v >= 0 && v < 1<<16:
			p.add("M", p.le(2, uint64(v)))
		case v == int(int32(v)):
			p.add("J", p.le(4, uint64(v)))
		default:
			p.add("\x8a\x08", p.le(8, uint64(v)))
		}
	case float64:
		p.add("G", p.le(8, 0))
	case string:
		p.text(v)
	case tuple:
		p.add("(")
		for _, item := range v {
			p.value(item)
		}
		p.add("t")
		p.memoize()
	case seq:
		p.add("]")
		p.memoize()
		for len(v) > 0 {
			n := min(len(v), p.batch)
			p.fill(v[:n], n == 1, "a", "e")
			v = v[n:]
		}
	case pairs:
		p.add("}")
		p.memoize()
		p.fill(v, len(v) == 2, "s", "u")
	default:
		panic(fmt.Sprintf("%T is not written", v))
	}
}

func (p *pythonPickler) text(s string) {
	if at, ok := p.seen[s]; ok {
		p.add("h", p.le(1, uint64(at)))
		return
	}
	if p.memos < 256 {
		p.seen[s] = p.memos
	}
	if p.protocol >= 4 && len(s) < 256 {
		p.add("\x8c", p.le(1, uint64(len(s))), s)
	} else {
		p.add("X", p.le(4, uint64(len(s))), s)
	}
	p.memoize()
}

// fill appends items to a list or dict at once.
func (p *pythonPickler) fill(items []any, alone bool, one, many string) {
	if len(items) == 0 {
		return
	}
	if !alone {
		p.add("(")
	}
	for _, item := range items {
		p.value(item)
	}
	if alone {
		p.add(one)
	} else {
		p.add(many)
	}
}

var calls = seq{pairs{"name", "forward", "filename", "model.py", "line", 7}, pairs{"name", "main", "line", 1 << 40}}
