package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"gorgonia.org/tensor"
)

// idx returns an IDX file: the header's words, then the body.
func idx(body []byte, words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return append(b, body...)
}

// zip returns b gzipped.
func zip(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

func TestReadImages(t *testing.T) {
	big := make([]byte, 3<<20) // the buffer has to grow
	for i := range big {
		big[i] = byte(i >> 3)
	}
	for _, tt := range []struct {
		body   []byte
		dims   []uint32
		n, per int
	}{
		{[]byte{7}, []uint32{1, 1, 1}, 1, 1},
		{[]byte{1, 2, 3}, []uint32{1, 1, 3}, 1, 3},
		{[]byte{1, 2, 3}, []uint32{3, 1, 1}, 3, 1},
		{[]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, []uint32{2, 2, 3}, 2, 6},
		{big, []uint32{3, 1024, 1024}, 3, 1 << 20},
	} {
		plain := idx(tt.body, append([]uint32{magicImages}, tt.dims...)...)
		for name, r := range map[string]io.Reader{
			"plain":            bytes.NewReader(plain),
			"gzipped":          bytes.NewReader(zip(plain)),
			"gzipped, padded":  bytes.NewReader(append(zip(plain), make([]byte, 512)...)),
			"two gzip members": bytes.NewReader(append(append(zip(plain[:7]), 0, 0), zip(plain[7:])...)),
			"in small pieces":  iotest.HalfReader(bytes.NewReader(plain)),
			"EOF with content": iotest.DataErrReader(bytes.NewReader(plain)),
		} {
			got, err := ReadImages(r)
			if err != nil {
				t.Errorf("%v %s: %v", tt.dims, name, err)
				continue
			}
			if !got.Shape().Eq(tensor.Shape{tt.n, tt.per}) || got.Dtype() != tensor.Uint8 {
				t.Errorf("%v %s: %v of shape %v", tt.dims, name, got.Dtype(), got.Shape())
			}
			s := Set{Images: got}
			if s.Len() != tt.n || s.Features() != tt.per || !bytes.Equal(s.Pixels(), tt.body) {
				t.Errorf("%v %s: content differs", tt.dims, name)
			}
		}
	}
}

func TestReadErrors(t *testing.T) {
	image := idx(make([]byte, 12), magicImages, 2, 2, 3)
	flipped := zip(image)
	flipped[len(flipped)-8] ^= 1 // in the checksum
	for _, tt := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "images: truncated: 0 of 16 bytes of header"},
		{"half a header", image[:9], "images: truncated: 9 of 16 bytes of header"},
		{"labels for images", idx(make([]byte, 12), magicLabels, 12), "images: magic number is 0x00000801, want 0x00000803"},
		{"a web page", []byte("<!DOCTYPE html><html>"), "images: magic number is 0x3c21444f, want 0x00000803"},
		{"no images", idx(nil, magicImages, 0, 2, 3), "images: header claims n = 0"},
		{"no columns", idx(nil, magicImages, 2, 2, 0), "images: header claims cols = 0"},
		{"2^31 images", idx(nil, magicImages, 1<<31, 28, 28), "images: header claims n = 2147483648: over 1073741824 bytes in all"},
		{"product over 2^64", idx(nil, magicImages, 1<<30, 1<<31, 1<<31), "images: header claims rows = 2147483648: over 1073741824 bytes in all"},
		{"body cut", image[:20], "images: truncated: 4 of 12 bytes of content"},
		{"no body", image[:16], "images: truncated: 0 of 12 bytes of content"},
		{"trailing byte", append(bytes.Clone(image), 0), "images: trailing bytes after the 12 that the header claims"},
		{"gzip header cut", zip(image)[:5], "images: truncated gzip"},
		{"gzip cut", zip(image)[:len(zip(image))-9], "images: truncated gzip"},
		{"gzip trailer cut", zip(image)[:len(zip(image))-3], "images: truncated gzip"},
		{"gzip checksum", flipped, "images: gzip: invalid checksum"},
		{"gzip trailing bytes", append(zip(image), 1, 2, 3), "images: trailing bytes after the gzip"},
		{"label 10", idx([]byte{1, 10, 3}, magicLabels, 3), "labels: label 1 is 10, want 0 to 9; of EMNIST the splits digits and mnist have such labels"},
		{"2^31 labels", idx(nil, magicLabels, 1<<31), "labels: header claims n = 2147483648: over 16777216 bytes in all"},
		{"labels cut", idx([]byte{1}, magicLabels, 2), "labels: truncated: 1 of 2 bytes of content"},
	} {
		read := ReadImages
		if strings.HasPrefix(tt.want, "labels") {
			read = ReadLabels
		}
		_, err := read(bytes.NewReader(tt.file))
		if err == nil {
			t.Errorf("%s: no error, want %s", tt.name, tt.want)
		} else if s := err.Error(); !strings.HasPrefix(s, tt.want) || strings.Contains(s, "\n") {
			t.Errorf("%s: got %s, want %s", tt.name, s, tt.want)
		}
	}
}

// TestReadFails wants the error of the reader itself.
func TestReadFails(t *testing.T) {
	broken := errors.New("broken")
	image := idx(make([]byte, 12), magicImages, 2, 2, 3)
	for n := range len(image) + 1 {
		r := io.MultiReader(bytes.NewReader(image[:n]), iotest.ErrReader(broken))
		if _, err := ReadImages(r); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestReadGzipBomb unpacks a gzip bomb only as far as the header claims.
func TestReadGzipBomb(t *testing.T) {
	const claimed, unfolded = 1 << 20, 64 << 20
	bomb := zip(idx(make([]byte, unfolded), magicImages, 16, 256, 256))
	r := bytes.NewReader(bomb)
	var err error
	if got := allocated(func() { _, err = ReadImages(r) }); got > 2*claimed {
		t.Errorf("%d bytes allocated for images of %d", got, claimed)
	}
	if want := "images: trailing bytes after the 1048576 that the header claims"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if read := len(bomb) - r.Len(); read > len(bomb)/8 {
		t.Errorf("%d bytes of %d were read", read, len(bomb))
	}
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func FuzzReadImages(f *testing.F) {
	image := idx([]byte{1, 2, 3, 4, 5, 6}, magicImages, 1, 2, 3)
	f.Add(image)
	f.Add(zip(image))
	f.Add(idx(nil, magicImages, 1<<31, 28, 28))
	f.Add(idx(make([]byte, 100), magicImages, 1<<10, 1<<10, 1<<10))
	f.Add(idx([]byte{1, 2}, magicLabels, 2))
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, read := range []func(io.Reader) (*tensor.Dense, error){ReadImages, ReadLabels} {
			var got *tensor.Dense
			var err error
			// The first buffer, gzip's window and tables, and growth: deflate
			// unpacks a byte to 1032 at most.
			bound := uint64(2<<20 + 4*1032*len(file))
			if n := allocated(func() { got, err = read(bytes.NewReader(file)) }); n > bound {
				t.Errorf("%d bytes allocated for a file of %d", n, len(file))
			}
			if err != nil {
				if strings.ContainsAny(err.Error(), "\r\n") {
					t.Errorf("error %q", err)
				}
				continue
			}
			if size := got.Shape().TotalSize(); size == 0 || size != len(got.Uint8s()) {
				t.Errorf("shape %v of %d bytes", got.Shape(), len(got.Uint8s()))
			}
		}
	})
}
