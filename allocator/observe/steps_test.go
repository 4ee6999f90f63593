package observe

import (
	"slices"
	"strings"
	"testing"
)

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls string // +a allocates block a, -a frees it
		want  []Span
	}{
		{"nothing is freed", "+a +b", nil},
		{"all is freed", "+a +b -b -a", []Span{{0, 4}}},
		{"one step after another", "+a -a +a +b -a -b", []Span{{0, 2}, {2, 6}}},
		{"a block stays from before", "+w +a -a +a -a", []Span{{1, 3}, {3, 5}}},
		{"one stays from within, one from between", "+a +w -a +v +a -a", []Span{{0, 3}, {4, 6}}},
		{"one is used again and then stays", "+a -a +a", []Span{{0, 2}}},
		{"one is from before the recording", "-a +b -b", []Span{{0, 2}, {2, 4}}},
	} {
		var csv strings.Builder
		csv.WriteString(rmmHeader + "\n")
		for call := range strings.FieldsSeq(c.calls) {
			action := map[byte]string{'+': "allocate", '-': "free"}[call[0]]
			csv.WriteString("1,0," + action + ",0x" + map[byte]string{'a': "1", 'b': "2", 'v': "3", 'w': "4"}[call[1]] + ",8,0\n")
		}
		trace, err := Read(strings.NewReader(csv.String()), MostEvents)
		if err != nil {
			t.Fatal(err)
		}
		if got := trace.Steps(); !slices.Equal(got, c.want) {
			t.Errorf("%s: steps %v, want %v", c.name, got, c.want)
		}
	}
}
