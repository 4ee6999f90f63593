package data

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"gorgonia.org/tensor"
)

// An IDX file is a big-endian header of 32-bit words, a magic number (its last
// byte is the number of dimensions, the one before it the element type, 8 for
// unsigned bytes) and the dimensions, followed by the elements, last dimension
// fastest.
const (
	magicLabels = 0x00000801 // then n
	magicImages = 0x00000803 // then n, rows, cols
)

// The largest contents that are read: a file that claims more is refused. MNIST's
// largest has 45 MiB of images, EMNIST's 522.
const (
	maxImages = 1 << 30
	maxLabels = 1 << 24
)

// ReadImages reads an IDX file of images, plain or gzipped, to its end and
// returns a uint8 tensor of shape [n, rows*cols]. What the header claims is
// believed only as the bytes arrive, and what is compressed is unfolded only that
// far: memory stays within a small multiple of the content read. Every deviation from
// the format is a one-line error.
func ReadImages(r io.Reader) (*tensor.Dense, error) {
	dims, body, err := readIDX(r, magicImages, maxImages, "n", "rows", "cols")
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	return tensor.New(tensor.WithShape(dims[0], dims[1]*dims[2]), tensor.WithBacking(body)), nil
}

// ReadLabels reads an IDX file of labels in the same way and returns a uint8
// tensor of shape [n]. A label over 9 is an error.
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

// readIDX reads a file with the given magic number and one dimension for each
// name, and returns the dimensions, none of them 0 and all together at most most, and
// their product in bytes.
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
	// Reading on to the end also makes gzip check its checksum.
	switch _, err := io.ReadFull(r, header[:1]); {
	case err == nil:
		return nil, nil, fmt.Errorf("trailing bytes after the %d that the header claims", size)
	case err != io.EOF:
		return nil, nil, truncatedGzip(err)
	}
	return dims, body, nil
}

// gunzip returns r, or what is compressed in r if that starts as gzip does.
func gunzip(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	if start, _ := b.Peek(2); len(start) == 2 && start[0] == 0x1f && start[1] == 0x8b {
		z, err := gzip.NewReader(b)
		return z, truncatedGzip(err)
	}
	return b, nil
}

// readN reads n bytes. The buffer starts at a megabyte at most and doubles as
// it fills, so a short file never costs what its header claims.
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

// truncated is the error of a part of which have of want bytes could be read.
func truncated(part string, have, want int, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("truncated: %d of %d bytes of %s", have, want, part)
	}
	return err
}

// truncatedGzip gives the error of a gzip header or trailer that is not all there a clearer
// text.
func truncatedGzip(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errors.New("truncated gzip")
	}
	return err
}
