package observe

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// MostEvents, for the device of Read, chooses the device with most events.
const MostEvents = -1

var (
	gzipMagic     = []byte{0x1f, 0x8b}
	zipMagic      = []byte("PK\x03\x04")
	byteOrderMark = []byte("\xef\xbb\xbf") // what Windows puts before UTF-8
	errUnreadable = errors.New("is neither a CSV of RMM or MiniMalloc nor a pickled snapshot of torch.cuda.memory")
)

// ReadFile is Read of a file, which errors name.
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

// Read reads a trace of any format, plain or gzipped, and tells the formats by
// their contents. Of a snapshot of several devices it takes one, or the one
// with most events. Errors are of one line and say which line, or which byte of
// what was unpacked, is wrong.
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
	case begins(in, []byte("{")), begins(in, []byte("[")):
		return nil, errors.New("is JSON, which is for Perfetto only: have the trainer write a .csv or a .pickle")
	case begins(in, byteOrderMark):
		if _, err := in.Discard(len(byteOrderMark)); err != nil {
			return nil, err
		}
	}
	return readCSV(in)
}

// begins says whether the next bytes are those of magic. What cannot be read now
// fails again when it is read in earnest.
func begins(in *bufio.Reader, magic []byte) bool {
	next, _ := in.Peek(len(magic))
	return bytes.Equal(next, magic)
}
