package observe_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"unicode/utf8"
)

// unpickle reads the opcodes of a snapshot, and no others, as Python does. Lists and tuples
// are *[]any. It is one switch over all opcodes.
func unpickle(t *testing.T, data []byte) any {
	t.Helper()
	var stack []any
	var marks []int
	memo := map[uint64]any{}
	at := 0
	take := func(n int) []byte {
		at += n
		return data[at-n : at]
	}
	number := func(n int) uint64 {
		return binary.LittleEndian.Uint64(append(slices.Clone(take(n)), make([]byte, 8-n)...))
	}
	push := func(v any) { stack = append(stack, v) }
	pop := func(from int) []any {
		items := slices.Clone(stack[from:])
		stack = stack[:from]
		return items
	}
	top := func() any { return stack[len(stack)-1] }
	for {
		switch op := take(1)[0]; op {
		case 0x80:
			if version := take(1)[0]; version != 2 {
				t.Fatalf("protocol %d", version)
			}
		case 'K', 'M':
			push(int64(number(1 + int(op-'K')/2)))
		case 'J':
			push(int64(int32(number(4))))
		case 0x8a:
			if n := take(1)[0]; n != 8 {
				t.Fatalf("a number of %d bytes", n)
			}
			push(int64(number(8)))
		case 0x88, 0x89:
			push(op == 0x88)
		case 'X':
			text := string(take(int(number(4))))
			if !utf8.ValidString(text) {
				t.Fatalf("text %q, at which Python fails", text)
			}
			push(text)
		case '}':
			push(map[string]any{})
		case ']':
			push(&[]any{})
		case '(':
			marks = append(marks, len(stack))
		case 'u', 'e':
			last := len(marks) - 1
			items := pop(marks[last])
			marks = marks[:last]
			if op == 'e' {
				l := top().(*[]any)
				*l = append(*l, items...)
				continue
			}
			for i := 0; i < len(items); i += 2 {
				top().(map[string]any)[items[i].(string)] = items[i+1]
			}
		case 0x86:
			items := pop(len(stack) - 2)
			push(&items)
		case 'q', 'r':
			memo[number(map[byte]int{'q': 1, 'r': 4}[op])] = top()
		case 'h', 'j':
			push(memo[number(map[byte]int{'h': 1, 'j': 4}[op])])
		case '.':
			if at != len(data) || len(stack) != 1 {
				t.Fatalf("the pickle ends at byte %d of %d with %d values", at, len(data), len(stack))
			}
			return stack[0]
		default:
			t.Fatalf("opcode %#x at byte %d", op, at-1)
		}
	}
}
