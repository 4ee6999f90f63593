package observe

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
)

// longestRecord is the largest size of a record, which is kept in memory.
const longestRecord = 1 << 20

// A table reads the records of a CSV below its header.
type table struct {
	records *csv.Reader
	in      *limited
	columns map[string]int
	record  []string
	line    int // of the last record
}

// A limited reader fails once left bytes are read.
type limited struct {
	io.Reader
	left int
	last byte // that was read
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, fmt.Errorf("a record is longer than %d bytes", longestRecord)
	}
	n, err := l.Reader.Read(p[:min(len(p), l.left)])
	if l.left -= n; n > 0 {
		l.last = p[n-1]
	}
	return n, err
}

// next reads a record, and reports whether there was one.
func (t *table) next() (more bool, err error) {
	t.in.left = longestRecord
	var wrong *csv.ParseError
	t.record, err = t.records.Read()
	switch {
	case errors.Is(err, io.EOF):
		return false, nil
	case errors.As(err, &wrong):
		t.line = wrong.StartLine
		return false, err // it names its line
	case err != nil:
		return false, fmt.Errorf("after line %d: %w", t.line, err)
	}
	t.line, _ = t.records.FieldPos(0)
	return true, nil
}

// cut reports whether the table ends with the last record, and in the middle of a line.
func (t *table) cut() bool {
	_, err := t.records.Read()
	return errors.Is(err, io.EOF) && t.in.last != '\n'
}

func (t *table) field(column int) string { return strings.TrimSpace(t.record[column]) }
