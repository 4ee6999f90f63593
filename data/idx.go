package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"gorgonia.org/tensor"
)

// An IDX file has a big-endian header of 32-bit words, then the elements, last dimension
// fastest. The header is a magic number, whose last byte is the number of dimensions and
// the one before it the element type (8: unsigned bytes), and the dimensions.
const (
	magicLabels = 0x00000801 // then n
	magicImages = 0x00000803 // then n, rows, cols
)

// The largest contents that are read. MNIST has 45 MiB of images, EMNIST 522.
const (
	maxImages = 1 << 30
	maxLabels = 1 << 24
)

// ReadImages reads an IDX file of images, plain or gzipped, to its end and returns a uint8
// tensor of shape [n, rows*cols]. Its memory is a small multiple of the bytes that it could
// read, whatever the header claims. Every deviation from the format is a one-line error.
func ReadImages(r io.Reader) (*tensor.Dense, error) {
	dims, body, err := readIDX(r, magicImages, maxImages, "n", "rows", "cols")
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	return tensor.New(tensor.WithShape(dims[0], dims[1]*dims[2]), tensor.WithBacking(body)), nil
}

// ReadLabels reads an IDX file of labels as ReadImages does, and returns a uint8 tensor of
// shape [n]. A label over 9 is an error.
func ReadLabels(r io.Reader) (*tensor.Dense, error) {
	dims, body, err := readIDX(r, magicLabels, maxLabels, "n")
	if err != nil {
		return nil, fmt.Errorf("labels: %w", err)
	}
	for i, v := range body {
		if v >= Classes {
			return nil, fmt.Errorf("labels: label %d is %d, want 0 to %d; of EMNIST the splits digits and mnist have such labels", i, v, Classes-1)
		}
	}
	return tensor.New(tensor.WithShape(dims[0]), tensor.WithBacking(body)), nil
}

// readIDX reads a file with this magic number and one dimension for each name. It returns
// the dimensions, none of them 0, and as many bytes as their product, which is at most most.
func readIDX(r io.Reader, magic uint32, most uint64, names ...string) (dims []int, body []byte, err error) {
	r, err = gunzip(r)
	if err != nil {
		return nil, nil, err
	}
	header := make([]byte, 4*(1+len(names)))
	if n, err := io.ReadFull(r, header); err != nil {
		return nil, nil, truncated("header", n, len(header), err)
	}
	if got := binary.BigEndian.Uint32(header); got != magic {
		return nil, nil, fmt.Errorf("magic number is %#08x, want %#08x", got, magic)
	}
	size := uint64(1)
	for i, name := range names {
		d := uint64(binary.BigEndian.Uint32(header[4*(i+1):]))
		hi, lo := bits.Mul64(size, d)
		switch {
		case d == 0:
			return nil, nil, fmt.Errorf("header claims %s = 0", name)
		case hi != 0 || lo > most:
			return nil, nil, fmt.Errorf("header claims %s = %d: over %d bytes in all", name, d, most)
		}
		size = lo
		dims = append(dims, int(d))
	}
	body, err = readN(r, int(size))
	if err != nil {
		return nil, nil, err
	}
	// At the end gzip verifies its checksum.
	switch _, err := io.ReadFull(r, header[:1]); {
	case err == nil:
		return nil, nil, fmt.Errorf("trailing bytes after the %d that the header claims", size)
	case err != io.EOF:
		return nil, nil, truncatedGzip(err)
	}
	return dims, body, nil
}

// isGzip reports whether start is how a gzip member starts.
func isGzip(start []byte) bool { return bytes.Equal(start, []byte{0x1f, 0x8b}) }

// gunzip returns r, or a reader that unpacks r if it is gzipped.
func gunzip(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	if start, _ := b.Peek(2); isGzip(start) {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, truncatedGzip(err)
		}
		z.Multistream(false)
		return &members{b, z}, nil
	}
	return b, nil
}

// members reads the members of a gzip file, between and after which there may be zero bytes, as on tapes.
type members struct {
	file *bufio.Reader
	*gzip.Reader
}

func (m *members) Read(p []byte) (n int, err error) {
	for {
		if n, err = m.Reader.Read(p); err != io.EOF {
			return n, err
		}
		if n > 0 {
			return n, nil
		}
		next := byte(0)
		for next == 0 {
			if next, err = m.file.ReadByte(); err != nil {
				return 0, err
			}
		}
		if err := m.file.UnreadByte(); err != nil {
			return 0, err
		}
		if start, _ := m.file.Peek(2); !isGzip(start) {
			return 0, errors.New("trailing bytes after the gzip")
		}
		if err := m.Reset(m.file); err != nil {
			return 0, truncatedGzip(err)
		}
		m.Multistream(false)
	}
}

// readN reads n bytes into a buffer that grows with them, so that a short file never costs
// the memory that its header claims.
func readN(r io.Reader, n int) ([]byte, error) {
	buf := make([]byte, min(n, 1<<20))
	have := 0
	for {
		k, err := io.ReadFull(r, buf[have:])
		have += k
		if err != nil {
			return nil, truncated("content", have, n, err)
		}
		if have == n {
			return buf, nil
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, buf)
		buf = grown
	}
}

// truncated returns the error of a part that ended after have of want bytes.
func truncated(part string, have, want int, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("truncated: %d of %d bytes of %s", have, want, part)
	}
	return err
}

// truncatedGzip makes the error of an incomplete gzip header or trailer clearer.
func truncatedGzip(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errors.New("truncated gzip")
	}
	return err
}
