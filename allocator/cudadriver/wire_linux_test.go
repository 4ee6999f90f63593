package cudadriver

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// SocketPair returns two ends of a connection, which it closes with the test.
func SocketPair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	open := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.UnixConn)
	}
	return open(ends[0]), open(ends[1])
}

// openFiles returns how many file descriptors the process has.
func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// numbered returns descriptors of a file, each at an offset of its own, by which it is recognised.
func numbered(t testing.TB) (open func(offset uintptr) (fd int, err error)) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(offset uintptr) (int, error) {
		fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err == nil {
			_, err = syscall.Seek(fd, int64(offset), 0)
		}
		return fd, err
	}
}

func numberOf(fd int) (uintptr, error) {
	at, err := syscall.Seek(fd, 0, 1)
	return uintptr(at), err
}

// TestParts sends parts in one batch and in several.
func TestParts(t *testing.T) {
	open := numbered(t)
	for _, n := range []int{1, 2, maxDescriptors, maxDescriptors + 1, 600} {
		a, b := SocketPair(t)
		before := openFiles(t)
		want := header{parts: n, offset: 3, bytes: 1}
		var parts []Part
		for i := range n {
			parts = append(parts, Part{Pages: uintptr(n - i), Bytes: int64(i + 4)})
			want.total += parts[i].Bytes
		}
		sent := make(chan error)
		go func() { sent <- sendParts(a, want, parts, open) }()
		var got []Part
		var begun header
		most := 0
		h, err := receiveParts(b, func(h header) error {
			begun = h
			return nil
		}, func(fd int, bytes int64) error {
			pages, err := numberOf(fd)
			got = append(got, Part{pages, bytes})
			most = max(most, openFiles(t)-before)
			return err
		})
		if e := <-sent; err != nil || e != nil {
			t.Fatalf("%d parts: %v, %v", n, e, err)
		}
		if h != want || begun != want || !slices.Equal(got, parts) {
			t.Errorf("%d parts: received %+v", n, h)
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d parts: %d file descriptors are left", n, now-before)
		}
		if most > 2*maxDescriptors {
			t.Errorf("%d parts: %d file descriptors were open in both processes, want at most %d in each", n, most, maxDescriptors)
		}
	}
}

// TestPartsRefused has the sender run out of descriptors, which the receiver learns.
func TestPartsRefused(t *testing.T) {
	open := numbered(t)
	for _, can := range []int{0, 3, maxDescriptors + 3} {
		a, b := SocketPair(t)
		before, n := openFiles(t), 2*maxDescriptors
		left := can
		sent := make(chan error)
		go func() {
			err := sendParts(a, header{parts: n, total: int64(n), bytes: 1}, slices.Repeat([]Part{{Bytes: 1}}, n), func(pages uintptr) (int, error) {
				if left--; left < 0 {
					return -1, syscall.EMFILE
				}
				return open(pages)
			})
			_ = a.CloseWrite()
			sent <- err
		}()
		_, err := receiveParts(b, func(header) error { return nil }, func(int, int64) error { return nil })
		want := fmt.Sprintf("%d descriptors for %d parts: the sender", can%maxDescriptors, maxDescriptors)
		if e := <-sent; e != syscall.EMFILE || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d of %d: errors %v, %v", can, n, e, err)
		}
		if now := openFiles(t); now != before {
			t.Errorf("%d of %d: %d file descriptors are left", can, n, now-before)
		}
	}
}

// A piece is what one sendmsg sends.
type piece struct {
	data []byte
	fds  int
}

// receive receives pieces, after which the sender closes the connection. It returns the sizes of the
// parts that were accepted.
func receive(t testing.TB, open func(uintptr) (int, error), pieces ...piece) (sizes []int64, h header, err error) {
	t.Helper()
	a, b := SocketPair(t)
	before := openFiles(t)
	sent := make(chan error)
	go func() {
		var bad error
		for _, p := range pieces {
			var fds []int
			for i := range p.fds {
				fd, err := open(uintptr(i))
				bad = cmp.Or(bad, err)
				fds = append(fds, fd)
			}
			var rights []byte
			if p.fds > 0 {
				rights = syscall.UnixRights(fds...)
			}
			// This fails if the receiver has closed the connection.
			_, _, _ = a.WriteMsgUnix(p.data, rights, nil)
			bad = cmp.Or(bad, closeAll(fds))
		}
		_ = a.CloseWrite()
		sent <- bad
	}()
	h, err = receiveParts(b, func(header) error { return nil }, func(fd int, bytes int64) error {
		sizes = append(sizes, bytes)
		_, err := numberOf(fd)
		return err
	})
	b.Close()
	if bad := <-sent; bad != nil {
		t.Fatal(bad)
	}
	if now := openFiles(t) + 1; now != before {
		t.Errorf("%d file descriptors are left", now-before)
	}
	return sizes, h, err
}

func sizesOf(sizes ...int64) (b []byte) {
	for _, n := range sizes {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// TestHostile receives messages that Send does not send.
func TestHostile(t *testing.T) {
	open := numbered(t)
	good := header{parts: 2, total: 8, offset: 1, bytes: 6}
	with := func(change func(*header)) piece {
		h := good
		change(&h)
		return piece{h.encode(), 0}
	}
	begin, nothing := piece{good.encode(), 0}, func(*header) {}
	otherVersion := piece{slices.Clone(begin.data), 0}
	otherVersion.data[len(magic)]++
	cases := map[string][]piece{
		"nothing":               {},
		"another protocol":      {{[]byte("GET / HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\n\r\n"), 0}},
		"another version":       {otherVersion},
		"half a header":         {{begin.data[:headerBytes/2], 0}},
		"no parts":              {with(func(h *header) { h.parts = 0 })},
		"too many parts":        {with(func(h *header) { h.parts = 1<<32 - 1 })},
		"more parts than bytes": {with(func(h *header) { h.parts = 9 })},
		"too many bytes":        {with(func(h *header) { h.total = 1 << 62 })},
		"negative total":        {with(func(h *header) { h.total = -8 })},
		"negative offset":       {with(func(h *header) { h.offset = -1 })},
		"negative bytes":        {with(func(h *header) { h.bytes = -1 })},
		"offset past the end":   {with(func(h *header) { h.offset = 8 })},
		"block past the end":    {with(func(h *header) { h.bytes = 8 })},
		"overflowing block":     {with(func(h *header) { h.offset, h.bytes = 7, 1<<63-1 })},
		"only a header":         {with(nothing)},
		"half the sizes":        {begin, {sizesOf(4), 2}},
		"no descriptors":        {begin, {sizesOf(4, 4), 0}},
		"too few descriptors":   {begin, {sizesOf(4, 4), 1}},
		"too many descriptors":  {begin, {sizesOf(4, 4), 3}},
		"far too many":          {begin, {sizesOf(4, 4), maxDescriptors}},
		"twice as many":         {begin, {sizesOf(4), 2}, {sizesOf(4), 2}},
		"with the header":       {{begin.data, 2}, {sizesOf(4, 4), 0}},
		"all in one":            {{append(slices.Clone(begin.data), sizesOf(4, 4)...), 2}},
		"a part of 0 bytes":     {begin, {sizesOf(8, 0), 2}},
		"a negative part":       {begin, {sizesOf(16, -8), 2}},
		"parts past the total":  {begin, {sizesOf(4, 5), 2}},
		"parts below it":        {begin, {sizesOf(4, 3), 2}},
		"a part before offset":  {begin, {sizesOf(1, 7), 2}},
	}
	for name, pieces := range cases {
		_, _, err := receive(t, open, pieces...)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one of one line", name, err)
		}
	}
	sizes, h, err := receive(t, open, begin, piece{sizesOf(4), 1}, piece{sizesOf(4), 1})
	if err != nil || h != good || len(sizes) != 2 {
		t.Errorf("a message in pieces: %v, %+v, %v", sizes, h, err)
	}
}

func FuzzReceiveParts(f *testing.F) {
	good := header{parts: 2, total: 8, offset: 1, bytes: 6}
	f.Add(good.encode(), uint8(0), sizesOf(4, 4), uint8(2))
	f.Add(good.encode(), uint8(1), sizesOf(4, 4), uint8(1))
	f.Add(bytes.Repeat([]byte{0xff}, headerBytes), uint8(0), sizesOf(-1), uint8(9))
	open := numbered(f)
	f.Fuzz(func(t *testing.T, one []byte, fds uint8, two []byte, more uint8) {
		if len(one) == 0 || len(two) == 0 || len(one)+len(two) > 1<<14 {
			return // a message has a byte at least
		}
		pieces := []piece{{one, int(fds) % maxDescriptors}, {two, int(more) % maxDescriptors}}
		sizes, h, err := receive(t, open, pieces...)
		total := int64(0)
		for _, n := range sizes {
			total += n
		}
		whole := total == h.total && len(sizes) == h.parts && h.offset+h.bytes <= total
		if total > maxShared || err == nil && !whole {
			t.Errorf("accepted %v, %+v, %v", sizes, h, err)
		}
	})
}

// SendFile sends a file as if it were memory of bytes bytes.
func SendFile(c *net.UnixConn, f *os.File, bytes int64) error {
	h := header{parts: 1, total: bytes, bytes: bytes}
	return sendParts(c, h, []Part{{Bytes: bytes}}, func(uintptr) (int, error) { return syscall.Dup(int(f.Fd())) })
}
