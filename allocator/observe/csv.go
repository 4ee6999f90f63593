package observe

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
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

func (t *table) has(column string) bool {
	_, ok := t.columns[column]
	return ok
}

// column returns the index of a column.
func (t *table) column(name string) (int, error) {
	if i, ok := t.columns[name]; ok {
		return i, nil
	}
	return 0, fmt.Errorf("has no column %s", name)
}

func (t *table) field(column int) string { return strings.TrimSpace(t.record[column]) }

// wrong adds the line to err.
func (t *table) wrong(err error) error { return fmt.Errorf("line %d: %w", t.line, err) }

// parseSize reads a number of bytes.
func parseSize(s string) (int64, error) {
	bytes, err := strconv.ParseInt(s, 10, 64)
	if err != nil || bytes < 0 {
		return 0, fmt.Errorf("%.40q is not a size", s)
	}
	return bytes, nil
}
