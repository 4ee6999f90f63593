package observe

import (
	"strings"
	"unicode"
)

// A numbering numbers values in the order in which they first occur. The zero value of T has
// number 0, and so does each new value once there are mostNumbers.
type numbering[T comparable] struct {
	values  []T
	numbers map[T]int32
}

// mostNumbers bounds the memory of a numbering. A snapshot has some thousands of texts and
// frames.
const mostNumbers = 1 << 22

func newNumbering[T comparable]() numbering[T] {
	var zero T
	return numbering[T]{[]T{zero}, map[T]int32{zero: 0}}
}

func (n *numbering[T]) number(v T) int32 {
	number, known := n.numbers[v]
	if !known && len(n.values) < mostNumbers {
		number = int32(len(n.values))
		n.numbers[v] = number
		n.values = append(n.values, v)
	}
	return number
}

// names keeps each text, frame and id of a pool of a snapshot once.
type names struct {
	texts   numbering[string]
	words   []word // meanings of the first texts, by number
	frames  numbering[frame]
	looks   []look // of frames, by number
	stacks  numbering[condensed]
	python  bool // a frame is of Python code that is not PyTorch's
	poolIDs numbering[[2]int64]
}

// A frame is one call of a stack. Its name and file are numbers of texts.
type frame struct {
	name, file int32
	line       int64
}

func newNames() names {
	n := names{
		texts: newNumbering[string](), words: []word{0}, frames: newNumbering[frame](), looks: []look{{}},
		stacks: newNumbering[condensed](), poolIDs: newNumbering[[2]int64](),
	}
	for text, meaning := range words {
		n.texts.number(text)
		n.words = append(n.words, meaning)
	}
	return n
}

// word returns the meaning of a text, 0 if it has none.
func (n *names) word(text int64) word {
	if text < int64(len(n.words)) {
		return n.words[text]
	}
	return 0
}

// oneLine replaces what would break a line of text.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r // of invalid UTF-8, U+FFFD
	}, s)
}
