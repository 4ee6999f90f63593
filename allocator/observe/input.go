package observe

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// wrong returns an error that names the byte of the current opcode.
func (p *unpickler) wrong(format string, args ...any) error {
	return fmt.Errorf("byte %d: %w", p.at, fmt.Errorf(format, args...))
}

// cut returns the error of a read that failed with err.
func (p *unpickler) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		p.ended = p.wrong("the file ends in the middle of the pickle")
		return p.ended
	}
	return p.wrong("%w", err)
}

func (p *unpickler) byte() (byte, error) {
	b, err := p.in.ReadByte()
	if err != nil {
		return 0, p.cut(err)
	}
	p.bytesRead++
	return b, nil
}

// read reads bytes ≤ longestText bytes, which are valid until the next call.
func (p *unpickler) read(bytes int) ([]byte, error) {
	into := p.small[:bytes]
	n, err := io.ReadFull(p.in, into)
	p.bytesRead += int64(n)
	if err != nil {
		return nil, p.cut(err)
	}
	return into, nil
}

// uint reads a little-endian number of bytes ≤ 8 bytes.
func (p *unpickler) uint(bytes uint8) (uint64, error) {
	digits, err := p.read(int(bytes))
	var n uint64
	for i, digit := range digits {
		n |= uint64(digit) << (8 * i)
	}
	return n, err
}

// skip skips n bytes.
func (p *unpickler) skip(n uint64) error {
	if n > math.MaxInt {
		return p.wrong("%d bytes are more than any file has", n)
	}
	skipped, err := p.in.Discard(int(n))
	p.bytesRead += int64(skipped)
	if err != nil {
		return p.cut(err)
	}
	return nil
}
