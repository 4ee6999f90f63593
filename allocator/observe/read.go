package observe

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

var (
	gzipMagic     = []byte{0x1f, 0x8b}
	zipMagic      = []byte("PK\x03\x04")
	byteOrderMark = []byte("\xef\xbb\xbf") // Windows writes it before UTF-8
)

// ReadFile reads a file with Read. Its errors name the file.
func ReadFile(path string, device int) (*Requests, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := Read(f, device)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Read reads requests in any format, plain or gzipped, which it recognizes by the contents.
// Of a snapshot of several devices it reads one. An error is one line that names the line,
// or the byte of the unpacked file, that is wrong.
func Read(r io.Reader, device int) (*Requests, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	if begins(in, gzipMagic) {
		unpacked, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReaderSize(unpacked, 1<<16)
	}
	switch {
	case begins(in, []byte{opProto}):
		return readSnapshot(in, device)
	case begins(in, zipMagic):
		return nil, fmt.Errorf("is a zip archive: unpack it; %w", errUnreadable)
	case begins(in, byteOrderMark):
		if _, err := in.Discard(len(byteOrderMark)); err != nil {
			return nil, err
		}
	}
	start, _ := in.Peek(1 << 9) // an error repeats at the next read
	switch start = bytes.TrimSpace(start); {
	case bytes.HasPrefix(start, []byte("version https://git-lfs.")):
		return nil, errors.New("is a pointer of Git LFS, not the file: run git lfs pull")
	case bytes.HasPrefix(start, []byte("<")):
		return nil, errors.New("is an HTML page, not a recording: download the file that it shows or links to")
	case bytes.HasPrefix(start, []byte("{")), bytes.HasPrefix(start, []byte("[")):
		return readJSON(in, device)
	}
	return readCSV(in)
}

// begins reports whether the next bytes are magic. An error repeats at the next read.
func begins(in *bufio.Reader, magic []byte) bool {
	next, _ := in.Peek(len(magic))
	return bytes.Equal(next, magic)
}

// readCSV reads a CSV of RMM.
func readCSV(r io.Reader) (*Requests, error) {
	in := &limited{Reader: r}
	t := &table{records: csv.NewReader(in), in: in, columns: map[string]int{}}
	t.records.ReuseRecord = true
	t.records.TrimLeadingSpace = true
	t.records.Comment = '#'
	switch more, err := t.next(); {
	case errors.As(err, new(*csv.ParseError)):
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	case err != nil:
		return nil, err
	case !more:
		return nil, errors.New("is empty: the first line names the columns")
	}
	for i, name := range t.record {
		name = strings.TrimSpace(name)
		if _, twice := t.columns[name]; twice {
			return nil, fmt.Errorf("line %d: column %.40q occurs twice", t.line, name)
		}
		t.columns[name] = i
	}
	if _, ok := t.columns["Action"]; !ok {
		return nil, fmt.Errorf("%w: the first line has no column Action", errUnreadable)
	}
	return readRMM(t)
}
