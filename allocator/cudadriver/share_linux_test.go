package cudadriver_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// shareable returns a Driver of a device whose pages can be exported, and the bytes of a page.
func shareable(t *testing.T, device int) (cudadriver.Driver, int64) {
	t.Helper()
	pageSize(t)
	d, err := cudadriver.New(cudadriver.Options{Device: device, Shareable: true})
	if errors.Is(err, errors.ErrUnsupported) && !kerneltest.Emulated() {
		t.Skip(err)
	}
	try(t, err)
	page, err := d.PageSize()
	try(t, err)
	return d, page
}

// A mapped is parts at adjacent addresses, from addr on.
type mapped struct {
	cudadriver.Driver
	addr  uintptr
	bytes int64
	parts []cudadriver.Part
}

// newMapped makes a part of each size.
func newMapped(t *testing.T, d cudadriver.Driver, sizes ...int64) *mapped {
	t.Helper()
	m := &mapped{Driver: d}
	for _, bytes := range sizes {
		pages, err := d.CreatePages(bytes)
		try(t, err)
		m.parts = append(m.parts, cudadriver.Part{Pages: pages, Bytes: bytes})
		m.bytes += bytes
	}
	var err error
	m.addr, err = d.ReserveRange(m.bytes)
	try(t, err)
	at := m.addr
	for _, p := range m.parts {
		try(t, d.MapPages(at, p.Pages, p.Bytes))
		at += uintptr(p.Bytes)
	}
	return m
}

func (m *mapped) close(t *testing.T) {
	t.Helper()
	at := m.addr
	for _, p := range m.parts {
		try(t, m.UnmapPages(at, p.Bytes))
		try(t, m.ReleasePages(p.Pages))
		at += uintptr(p.Bytes)
	}
	try(t, m.ReleaseRange(m.addr, m.bytes))
}

// pass sends memory from one Driver to another of this process.
func pass(t *testing.T, from, to cudadriver.Driver, m cudadriver.Memory) *cudadriver.Received {
	t.Helper()
	a, b := cudadriver.SocketPair(t)
	sent := make(chan error)
	go func() { sent <- from.Send(a, m) }()
	r, err := to.Receive(b)
	try(t, errors.Join(<-sent, err))
	return r
}

// words checks how many words of a range are not value, and fill sets them.
func words(t *testing.T, what string, addr uintptr, value uint32, bytes int64, s kernels.Stream) {
	t.Helper()
	n, err := kernels.Filler{}.Differing(addr, value, bytes, s.Handle())
	if try(t, err); n != 0 {
		t.Errorf("%s: %d words are not %d", what, n, value)
	}
}

func fill(t *testing.T, addr uintptr, value uint32, bytes int64, s kernels.Stream) {
	t.Helper()
	try(t, kernels.Filler{}.Fill(addr, value, bytes, s.Handle()))
	try(t, s.Synchronize())
}

// TestShare receives a block that begins and ends within parts, in the same process.
func TestShare(t *testing.T) {
	d, page := shareable(t, 0)
	s := newStream(t)
	free := func() int64 {
		free, _, err := d.MemInfo()
		try(t, err)
		return free
	}
	before, calls := free(), cudadriver.Counters()
	m := newMapped(t, d, page, 2*page, page)
	const offset, tail = 512, 1024
	block, bytes := m.addr+offset, m.bytes-offset-tail
	fill(t, m.addr, 1, m.bytes, s)
	fill(t, block, 2, bytes, s)
	r := pass(t, d, cudadriver.Driver{}, cudadriver.Memory{Pages: m.parts, Offset: offset, Bytes: bytes})
	if r.Bytes != bytes || r.Addr == block {
		t.Errorf("received %+v of a block of %d bytes at %#x", r, bytes, block)
	}
	words(t, "the received block", r.Addr, 2, bytes, s)
	words(t, "what is before it", r.Addr-offset, 1, offset, s)
	fill(t, r.Addr, 3, bytes, s)
	words(t, "the block", block, 3, bytes, s)
	words(t, "what is after it", block+uintptr(bytes), 1, tail, s)

	m.close(t)
	words(t, "memory that its owner released", r.Addr, 3, bytes, s)
	try(t, r.Close())
	try(t, r.Close())
	if now := free(); kerneltest.Emulated() && now != before {
		t.Errorf("%d bytes are left over", before-now)
	}
	now := cudadriver.Counters()
	if now.ExportPages != calls.ExportPages+3 || now.ImportPages != calls.ImportPages+3 {
		t.Errorf("counters went from %+v to %+v", calls, now)
	}
}

// TestShareManyParts sends one page as more parts than a message of the socket has.
func TestShareManyParts(t *testing.T) {
	d, page := shareable(t, 0)
	s := newStream(t)
	m := newMapped(t, d, page)
	fill(t, m.addr, 5, page, s)
	const count = 300
	r := pass(t, d, d, cudadriver.Memory{Pages: slices.Repeat(m.parts, count), Bytes: count * page})
	words(t, "the first part", r.Addr, 5, page, s)
	words(t, "the last part", r.Addr+uintptr(r.Bytes-page), 5, page, s)
	try(t, r.Close())
	m.close(t)
}

// TestShareRefused sends and receives what must fail and leave nothing.
func TestShareRefused(t *testing.T) {
	d, page := shareable(t, 0)
	m := newMapped(t, d, page)
	plain, err := cudadriver.Driver{}.CreatePages(page)
	try(t, err)
	part := m.parts[0]
	send := func(d cudadriver.Driver, m cudadriver.Memory) error {
		a, b := cudadriver.SocketPair(t)
		try(t, b.Close())
		return d.Send(a, m)
	}
	receive := func(write func(c *net.UnixConn) error) error {
		a, b := cudadriver.SocketPair(t)
		try(t, write(a))
		try(t, a.Close())
		r, err := d.Receive(b)
		if err == nil {
			try(t, r.Close())
		}
		return err
	}
	null, err := os.Open(os.DevNull)
	try(t, err)
	defer null.Close()
	of := func(pages uintptr, partBytes, offset, bytes int64) cudadriver.Memory {
		parts := []cudadriver.Part{{Pages: pages, Bytes: partBytes}}
		return cudadriver.Memory{Pages: parts, Offset: offset, Bytes: bytes}
	}
	for name, err := range map[string]error{
		"no parts":               send(d, cudadriver.Memory{Bytes: 1}),
		"a part of 0 bytes":      send(d, of(part.Pages, 0, 0, 0)),
		"a negative part":        send(d, of(part.Pages, -page, 0, 0)),
		"a huge part":            send(d, of(part.Pages, 1<<62, 0, 0)),
		"a negative offset":      send(d, of(part.Pages, page, -1, 1)),
		"an offset past it":      send(d, of(part.Pages, page, page, 0)),
		"a block past it":        send(d, of(part.Pages, page, 1, page)),
		"negative bytes":         send(d, of(part.Pages, page, 0, -1)),
		"a closed receiver":      send(d, of(part.Pages, page, 0, page)),
		"another Driver":         send(cudadriver.Driver{}, of(part.Pages, page, 0, page)),
		"pages not of it":        send(d, of(plain, page, 0, page)),
		"a closed sender":        receive(func(*net.UnixConn) error { return nil }),
		"a wrong size":           receive(func(c *net.UnixConn) error { return d.Send(c, of(part.Pages, 2*page, 0, page)) }),
		"a part of a page":       receive(func(c *net.UnixConn) error { return d.Send(c, of(part.Pages, page/2, 0, 1)) }),
		"other bytes":            receive(func(c *net.UnixConn) error { _, err := c.Write(make([]byte, 1000)); return err }),
		"no memory of CUDA":      receive(func(c *net.UnixConn) error { return cudadriver.SendFile(c, null, page) }),
		"a file for ImportPages": func() error { _, err := d.ImportPages(int(null.Fd())); return err }(),
		"ImportPages of -1":      func() error { _, err := d.ImportPages(-1); return err }(),
	} {
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one of one line", name, err)
		}
	}
	try(t, cudadriver.Driver{}.ReleasePages(plain))
	m.close(t)
}

// socketFD is the connection of a child that TestTwoProcesses starts.
const socketFD = 3

// TestTwoProcesses shares a block with another process, which uses another device if there are two:
// it reads the block, changes it, and answers.
func TestTwoProcesses(t *testing.T) {
	if os.Getenv(inChild) != "" {
		otherProcess(t)
		return
	}
	d, page := shareable(t, 0)
	s := newStream(t)
	m := newMapped(t, d, page, page)
	block, bytes := m.addr+256, page
	fill(t, block, 11, bytes, s)

	a, b := cudadriver.SocketPair(t)
	file, err := b.File()
	try(t, err)
	child := exec.Command(os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
	child.ExtraFiles = []*os.File{file}
	child.Env = append(os.Environ(), inChild+"=1", fmt.Sprint("BLOCK_BYTES=", bytes))
	_, err = cudadriver.New(cudadriver.Options{Peers: []int{1}})
	if err == nil && !kerneltest.Emulated() {
		child.Env = append(child.Env, "CUDA_VISIBLE_DEVICES="+swapped(os.Getenv("CUDA_VISIBLE_DEVICES")))
	}
	var out strings.Builder
	child.Stdout, child.Stderr = &out, &out
	try(t, child.Start())
	try(t, errors.Join(file.Close(), b.Close()))
	sent := d.Send(a, cudadriver.Memory{Pages: m.parts, Offset: 256, Bytes: bytes})
	answer := make([]byte, 1)
	_, read := a.Read(answer)
	err = errors.Join(sent, read, child.Wait())
	if err != nil || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out.String())
	}
	words(t, "what the other process wrote", block, 12, bytes, s)
	m.close(t)
}

// swapped returns CUDA_VISIBLE_DEVICES with the first two devices exchanged.
func swapped(visible string) string {
	devices := strings.Split(visible, ",")
	if len(devices) < 2 {
		return "1,0"
	}
	devices[0], devices[1] = devices[1], devices[0]
	return strings.Join(devices, ",")
}

func otherProcess(t *testing.T) {
	s := newStream(t)
	file := os.NewFile(socketFD, "socket")
	c, err := net.FileConn(file)
	try(t, errors.Join(err, file.Close()))
	r, err := cudadriver.Driver{}.Receive(c.(*net.UnixConn))
	try(t, err)
	if got := fmt.Sprint(r.Bytes); got != os.Getenv("BLOCK_BYTES") {
		t.Errorf("received %s bytes", got)
	}
	words(t, "the received block", r.Addr, 11, r.Bytes, s)
	fill(t, r.Addr, 12, r.Bytes, s)
	try(t, r.Close())
	_, err = c.Write([]byte{1})
	try(t, errors.Join(err, c.Close()))
}
