package observe

import (
	"fmt"
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
	ranks   []rank // of frames, by number
	poolIDs numbering[[2]int64]
}

// A frame is one call of a stack. Its name and file are numbers of texts.
type frame struct {
	name, file int32
	line       int64
}

// A rank says how well a frame stands for its stack.
type rank uint8

const (
	unnamed rank = iota
	named
	user // Python code that is not PyTorch's
)

func newNames() names {
	n := names{
		texts: newNumbering[string](), words: []word{0}, frames: newNumbering[frame](), ranks: []rank{unnamed},
		poolIDs: newNumbering[[2]int64](),
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

// frame returns the number of a frame.
func (n *names) frame(f frame) int32 {
	number := n.frames.number(f)
	if int(number) == len(n.ranks) {
		n.ranks = append(n.ranks, n.rankOf(f))
	}
	return number
}

// better returns the one of two frames of a stack that stands for the stack: the first one of
// the higher rank. In PyTorch the innermost frame is the first.
func (n *names) better(first, later int64) int64 {
	if n.ranks[later] > n.ranks[first] {
		return later
	}
	return first
}

func (n *names) rankOf(f frame) rank {
	name, file := n.texts.values[f.name], n.texts.values[f.file]
	typed := strings.HasPrefix(file, "<") && strings.HasSuffix(file, ">") // such as <stdin>
	script := strings.HasSuffix(file, ".py") || typed && !strings.HasPrefix(file, "<frozen ")
	torch := strings.Contains("/"+strings.ReplaceAll(file, `\`, "/"), "/torch/")
	switch {
	case script && !torch && !strings.Contains(file, "??"):
		return user
	case n.own(f) || name != "" && !strings.Contains(name, "??"):
		return named
	}
	return unnamed
}

// own reports whether f is the frame of a tag, which WriteSnapshot writes.
func (n *names) own(f frame) bool {
	return f.line == 0 && n.texts.values[f.file] == ownFile
}

// describe describes frame number, which stands for a stack, in one line.
func (n *names) describe(number int32) string {
	f := n.frames.values[number]
	name, file := n.texts.values[f.name], n.texts.values[f.file]
	switch {
	case n.ranks[number] == unnamed:
		return ""
	case n.own(f) || file == "" || strings.Contains(file, "??"):
		return name
	}
	file = file[strings.LastIndexAny(file, `/\`)+1:]
	if f.line > 0 {
		file = fmt.Sprintf("%s:%d", file, f.line)
	}
	return strings.TrimSpace(name + " " + file)
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
