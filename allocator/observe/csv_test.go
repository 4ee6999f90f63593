package observe

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

const header = rmmHeader + "\n"

// small has two streams, a block freed on the other stream, an address used twice, a
// failure, and a block that is never freed.
const small = header + `1,00:00:01:000001,allocate,0x1000,100,0x0
1,00:00:01:000002,allocate,0x2000,1000,0x7f00
2,00:00:01:000003,allocate failure,0x0,99999999,0x0
2,00:00:01:000004,free,0x1000,100,0x7f00
2,00:00:01:000005,allocate,0x1000,50,0x7f00
1,00:00:01:000006,free,0x2000,1000,0x7f00
1,00:00:01:000007,allocate,0x3000,1040,0x0
1,00:00:01:000008,free,0x1000,50,0x7f00
`

func TestRMM(t *testing.T) {
	cut := zipped(t, header+"7,0,allocate,0x1,8,0\n")
	cut = cut[:len(cut)-9]
	for name, c := range map[string]struct {
		text string
		want Requests
	}{
		"small": {small, Requests{Streams: 2, Slots: 2, Allocs: 4, Frees: 3, Peak: 1100, Unfreed: 1, Failures: 1, Events: []Event{
			ev(false, 0, 0, 100), ev(false, 1, 1, 1000), ev(true, 0, 1, 100), ev(false, 0, 1, 50),
			ev(true, 1, 1, 1000), ev(false, 1, 0, 1040), ev(true, 0, 1, 50),
		}}},
		"epoch seconds, deallocate, bare hexadecimal": {header + "7,1700000000.25,allocate,7f00a0,8,0\n7,1700000001,deallocate,7F00A0,8,0\n",
			Requests{Streams: 1, Slots: 1, Allocs: 1, Frees: 1, Peak: 8, Events: []Event{ev(false, 0, 0, 8), ev(true, 0, 0, 8)}}},
		"more bytes than an int64 counts, one after the other": {header + strings.Repeat("7,0,allocate,1,4611686018427387904,0\n7,0,free,1,4611686018427387904,0\n", 2),
			Requests{Streams: 1, Slots: 1, Allocs: 2, Frees: 2, Peak: 1 << 62, Events: slices.Repeat([]Event{ev(false, 0, 0, 1<<62), ev(true, 0, 0, 1<<62)}, 2)}},
		"cut off": {header + "7,0,allocate,0x1,8,0\n7,0,fre", Requests{Streams: 1, Slots: 1, Allocs: 1, Peak: 8, Unfreed: 1, Events: []Event{ev(false, 0, 0, 8)},
			notes: []string{"line 3, the last one, is cut off and left out"}}},
		"cut off in a pointer": {header + "7,0,allocate,0x1,8,0\n7,0,free,0x,8,0", Requests{Streams: 1, Slots: 1, Allocs: 1, Peak: 8, Unfreed: 1, Events: []Event{ev(false, 0, 0, 8)},
			notes: []string{"line 3, the last one, is cut off and left out"}}},
		"cut off in a stream": {header + "7,0,allocate,0x1,8,0x7f00", Requests{Streams: 1, Slots: 1, Allocs: 1, Peak: 8, Unfreed: 1, Events: []Event{ev(false, 0, 0, 8)},
			notes: []string{"line 2, the last one, has no end: it may be cut off"}}},
		"a gzip cut off": {cut, Requests{Streams: 1, Slots: 1, Allocs: 1, Peak: 8, Unfreed: 1, Events: []Event{ev(false, 0, 0, 8)},
			notes: []string{"the file is cut off after line 2"}}},
		"two logs": {strings.Repeat(header+"7,0,allocate,0x1,8,0\n", 2), Requests{Streams: 1, Slots: 1, Allocs: 1, Peak: 8, Unfreed: 1, Events: []Event{ev(false, 0, 0, 8)},
			notes: []string{"another log begins on line 3 and is left out"}}},
		"blocks of nothing": {header + "1,0,allocate,(nil),0,0\n1,0,allocate,(nil),0,0x1\n1,0,free,(nil),0,0\n1,0,free,0x0,0,0\n1,0,free,(nil),0,0\n",
			Requests{Streams: 2, Slots: 2, Allocs: 2, Frees: 2, Events: []Event{
				ev(false, 0, 0, 0), ev(false, 1, 1, 0), ev(true, 1, 0, 0), ev(true, 0, 0, 0),
			}}},
		"a lost beginning": {header + "1,0,allocate,0x1,10,0x5\n1,0,free,0x2,20,0x6\n1,0,free,0x1,10,0x5\n1,0,free,0x3,30,0x5\n",
			Requests{Streams: 2, Slots: 3, Allocs: 3, Frees: 3, Peak: 60, Before: 2, Events: []Event{
				ev(false, 1, 0, 20), ev(false, 0, 1, 30), ev(false, 0, 1, 10), ev(true, 1, 0, 20), ev(true, 0, 1, 10), ev(true, 0, 1, 30),
			}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := read(t, c.text)
			if name == "a lost beginning" { // the reader chooses the slots
				for i := range got.Events {
					got.Events[i].Slot, c.want.Events[i].Slot = 0, 0
				}
			}
			c.want.Tags, c.want.Categories = []string{""}, []Category{Uncategorized}
			if !reflect.DeepEqual(got, &c.want) {
				t.Errorf("got  %+v\nwant %+v", got, &c.want)
			}
		})
		checkWritten(t, read(t, c.text))
	}
}

func TestRMMForms(t *testing.T) {
	for name, text := range map[string]string{
		"other order": "Stream,Size,Pointer,Action\n0,4,4096,allocate\n",
		"spaces":      "Thread, Time, Action, Pointer, Size, Stream\n1, 0, allocate, 0x10, 4, (nil)\n",
		"comments":    "# recorded somewhere\n" + header + "1,0,allocate,0x10,4,0\n",
		"more":        "Action,Pointer,Size,Stream,Tag\nallocate,0x10,4,0,\"a, b\"\n",
		"no newline":  header + "1,0,allocate,0x10,4,0",
	} {
		if tr := read(t, text); tr.Allocs != 1 || tr.Peak != 4 {
			t.Errorf("%s: %+v", name, tr)
		}
	}
}

func TestBadRMM(t *testing.T) {
	checkBad(t, map[string]string{
		header:                                  "has no event",
		header + "1,0,allocate failure,0,4,0\n": "has no event",
		"Thread,Time,Action,Pointer,Size\n":     "has no column Stream",
		"Action,Pointer,Size,Stream,Size\n":     `line 1: column "Size" occurs twice`,
		header + "1,0,allocate,0x10,4\n":        "record on line 2: wrong number of fields",
		header + "1,0,allocate,x,4,0\n":         `line 2: "x" is not a pointer`,
		header + "1,0,allocate,0x10,-4,0\n":     `line 2: "-4" is not a size`,
		header + "1,0,allocate,0x10,4,here\n":   `line 2: "here" is not a stream`,
		header + "1,0,resize,0x10,4,0\n":        `line 2: action "resize" is none of allocate, free,`,
		header + "1,0,allocate,(nil),4,0\n":     "line 2: 4 bytes are allocated at address 0",
		header + "1,0,allocate,0x10,4,0\n" + strings.Repeat("1,0,free,0x10,4,0\n", 2): "line 4: 0x10 is freed twice",
		header + strings.Repeat("1,0,free,0x10,4,0\n", 2):                             "line 3: 0x10 is freed twice",
		header + strings.Repeat("1,0,allocate,0x10,4,0\n", 2):                         "line 3: 0x10 is allocated twice",
		header + "1,0,allocate,1,9223372036854775807,0\n1,0,allocate,2,1,0\n":         "line 3: size 1 makes the sum of sizes overflow",
		header + "1,0,free,1,9223372036854775807,0\n1,0,free,2,1,0\n":                 "more bytes than an int64 counts",
		header + "1,0,allocate,0x10,4,0\n" + strings.Repeat("x", longestRecord+5000):  "after line 2: a record is longer than",
		header + "1,0,allocate,0x10,4,0\n\"" + strings.Repeat("x\n", longestRecord):   "after line 2: a record is longer than",
		header + "1,0," + strings.Repeat("x", 5000) + ",0x10,4,0\n":                   `line 2: action "xxxxxxxx`,
		header + "1,0,allocate,0x10,\"4,0\n":                                          `line 2, column 24: extraneous or missing " in quoted-field`,
	})
}

func FuzzRMM(f *testing.F) {
	f.Add(small)
	f.Add(header)
	f.Add(header + "1,0,allocate,(nil),0,0x0\n1,0,free,0,0,0\n1,0,free,3,4,5\n")
	f.Add("Action,Pointer,Size,Stream\n\"allocate\",1,9223372036854775807,ffffffffffffffff\n")
	f.Fuzz(fuzz)
}

// fuzz reads a file. An error must be one line, and requests must survive being written and
// read back.
func fuzz(t *testing.T, text string) {
	tr, err := Read(strings.NewReader(text), MostEvents)
	if err != nil {
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("error of several lines: %q", err)
		}
		return
	}
	check(t, tr)
	checkWritten(t, tr)
}
