package observe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"mlpool/allocator"
)

// rmmHeader names the columns that RMM writes.
const rmmHeader = "Thread,Time,Action,Pointer,Size,Stream"

// readRMM reads the CSV of RMM's logging_resource_adaptor. Its columns may be in any order.
// The order of the lines is the order of the calls; columns other than Action, Pointer, Size,
// Stream and Tag, which RMM does not write, are ignored. An Action is allocate, free or
// deallocate, or "allocate failure", which is counted.
func readRMM(t *table) (*Requests, error) {
	var at [4]int
	for i, name := range []string{"Action", "Pointer", "Size", "Stream"} {
		var known bool
		if at[i], known = t.columns[name]; !known {
			return nil, fmt.Errorf("has no column %s: the first line must be %s", name, rmmHeader)
		}
	}
	b := newBuilder()
	tag, tagged := t.columns["Tag"]
	note := func(said string) (*Requests, error) {
		b.requests.notes = append(b.requests.notes, fmt.Sprintf(said, t.line))
		return b.done()
	}
	for {
		more, err := t.next()
		switch {
		case !more && err == nil && t.in.last != '\n':
			return note("line %d, the last one, has no end: it may be cut off")
		case !more && err == nil:
			return b.done()
		case slices.Contains(t.record, "Action"):
			return note("another log begins on line %d and is left out")
		case err == nil:
			var r request
			if tagged {
				r.tag = b.tag(t.field(tag), Uncategorized)
			}
			if err = b.addRMM(r, t.field(at[0]), t.field(at[1]), t.field(at[2]), t.field(at[3])); err != nil {
				err = fmt.Errorf("line %d: %w", t.line, err)
			}
		}
		if errors.Is(err, io.ErrUnexpectedEOF) { // of a gzip
			return note("the file is cut off after line %d")
		}
		if err != nil && t.cut() {
			return note("line %d, the last one, is cut off and left out")
		}
		if err != nil {
			return nil, err
		}
	}
}

// addRMM adds r, of which only the tag is set, as a line describes it.
func (b *builder) addRMM(r request, action, pointer, size, stream string) (err error) {
	if action == "allocate failure" {
		b.requests.Failures++
		return nil
	}
	if r.addr, err = parseHandle(pointer); err != nil {
		return fmt.Errorf("%.40q is not a pointer", pointer)
	}
	if r.stream, err = parseHandle(stream); err != nil {
		return fmt.Errorf("%.40q is not a stream", stream)
	}
	if r.bytes, err = strconv.ParseInt(size, 10, 64); err != nil || r.bytes < 0 {
		return fmt.Errorf("%.40q is not a size", size)
	}
	switch action {
	case "allocate":
		return b.alloc(r)
	case "free", "deallocate":
		_, err := b.free(r)
		return err
	}
	return fmt.Errorf("action %.40q is none of allocate, free, deallocate and allocate failure", action)
}

// parseHandle reads a pointer or a stream as C++ prints it: hexadecimal, with or without 0x.
func parseHandle(s string) (uint64, error) {
	if s == "(nil)" || s == "nullptr" {
		return 0, nil
	}
	digits := strings.TrimPrefix(strings.TrimPrefix(s, "0x"), "0X")
	return strconv.ParseUint(digits, 16, 64)
}

// WriteCSV writes the events of t as RMM's logging_resource_adaptor does. Thread is always
// 1, as Go has no names for threads; lines are in the order of the calls. The format has no
// place for the events that the ring has lost: see [allocator.Trace.Dropped].
func WriteCSV(w io.Writer, t *allocator.Trace) error {
	events, _ := t.Events()
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, rmmHeader)
	for _, e := range events {
		at := t.Begin().Add(e.Time)
		fmt.Fprintf(out, "1,%s:%06d,%s,%#x,%d,%#x\n",
			at.Format("15:04:05"), at.Nanosecond()/1000, e.Action, e.Addr, e.Bytes, e.Stream)
	}
	return out.Flush()
}

// WriteRMM writes r as RMM's logging_resource_adaptor does. Thread is 1, Time counts calls
// instead of microseconds, and Pointer distinguishes live blocks but is no address.
func (r *Requests) WriteRMM(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, rmmHeader)
	for i, e := range r.Events {
		call := "allocate"
		if e.Free {
			call = "free"
		}
		seconds := i / 1e6
		fmt.Fprintf(out, "1,%02d:%02d:%02d:%06d,%s,%#x,%d,%#x\n", seconds/3600, seconds/60%60, seconds%60, i%1e6,
			call, (int64(e.Slot)+1)*allocator.Alignment, e.Bytes, e.Stream)
	}
	return out.Flush()
}
