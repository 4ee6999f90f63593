package observe

import "cmp"

// A kind is what a value is known to be.
type kind uint8

const (
	opaque     kind = iota // skipped, such as None
	mark                   // opMark
	text                   // n is its number in names
	number                 // of up to 64 bits
	list                   // n is its number in names, if it is a stack
	dict                   // not known to be an entry
	entries                // one or more dicts that are entries, in sequence
	whole                  // the snapshot
	stackFrame             // a frame; n is its number in names
	stack                  // a list of frames that has been memoized; n is its number in names
	poolID                 // an id; n is its number in names
)

// A value is on the stack of an unpickler. Its size is fixed, so what is skipped takes no
// memory.
type value struct {
	kind  kind
	done  bool // a list has opaque members, or a dict has members
	word  word // of a text
	count int  // number of dicts in entries
	memo  int  // 1 + the number of a memo of this value; 0 is none
	n     int64
	span          // what a list or entries hold
	lists *[]span // what each list in a list, or in the whole, holds
}

const (
	mostValues = 1 << 17 // on the stack; Python puts 1000 together at a time
	mostLists  = 1 << 12 // in a list; a snapshot has one for each device
)

// A reference is what a memo keeps of a value: its kind in the low four bits, and its n. Only
// texts, frames, stacks and pools are used again; 0 is anything else.
type reference uint32

func (v *value) reference() reference {
	switch kind := v.kind; kind {
	case list:
		if v.n > 0 {
			return reference(v.n<<4) | reference(stack)
		}
	case text, stackFrame, stack, poolID:
		return reference(v.n<<4) | reference(kind)
	}
	return 0
}

// value returns the value, without the word of a text.
func (r reference) value() value {
	return value{kind: kind(r & 15), n: int64(r >> 4)}
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
// in sequence, or all are lists of entries. Of frames, it keeps what condenses them.
func (s *snapshot) append(v *value, members []value) {
	for i := range members {
		m := &members[i]
		switch {
		case m.kind == stackFrame:
			v.done, v.span, v.lists = true, span{}, nil
			v.n = s.stack(v.n, m.n)
		case m.kind == stack: // of a block's history
			v.done, v.span, v.lists = true, span{}, nil
			v.n = cmp.Or(v.n, m.n)
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

// tuple returns the value of a tuple. One of two numbers may be the id of a pool.
func (s *snapshot) tuple(members []value) value {
	if len(members) != 2 || members[0].kind != number || members[1].kind != number {
		return value{}
	}
	return value{kind: poolID, n: int64(s.poolIDs.number([2]int64{members[0].n, members[1].n}))}
}
