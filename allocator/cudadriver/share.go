package cudadriver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
)

// A Memory is the physical memory behind one block, in the order of addresses. The block begins
// Offset bytes into the first part and has Bytes bytes.
type Memory struct {
	Pages         []Part
	Offset, Bytes int64
}

// A Part is memory of CreatePages or ImportPages, and its size.
type Part struct {
	Pages uintptr
	Bytes int64
}

// Send sends m over a connection to a process on this host that calls Receive. The parts must be
// pages of a Shareable Driver. Both processes can then read and write them, and each orders its own
// accesses. The memory exists until both have released it. A Send of more than 64 parts waits for
// the other process. Deadlines of c apply. After an error, close c.
func (d Driver) Send(c *net.UnixConn, m Memory) error {
	const op = "Send"
	if err := d.needShareable(op); err != nil {
		return err
	}
	h := header{parts: len(m.Pages), offset: m.Offset, bytes: m.Bytes}
	for _, p := range m.Pages {
		if p.Bytes <= 0 || p.Bytes > maxShared-h.total {
			return fmt.Errorf("cudadriver: %s: a part of %d bytes", op, p.Bytes)
		}
		h.total += p.Bytes
	}
	err := h.check()
	if err == nil && m.Offset >= m.Pages[0].Bytes {
		err = errBounds
	}
	if err == nil {
		err = sendParts(c, h, m.Pages, d.ExportPages)
	}
	if err != nil {
		return fmt.Errorf("cudadriver: %s: %w", op, err)
	}
	return nil
}

// A Received is a block of another process, at an address of this one.
type Received struct {
	Addr  uintptr
	Bytes int64

	driver Driver
	page   int64
	base   uintptr // of a range of size bytes
	size   int64
	parts  []Part // mapped side by side, from base
	mapped int64  // bytes
}

// Receive maps the memory that another process sends over c, which the device of d and its peers can
// then use. It checks what it receives: another message than that of Send is an error, after which
// nothing is left. Deadlines of c apply. After an error, close c.
func (d Driver) Receive(c *net.UnixConn) (*Received, error) {
	const op = "Receive"
	page, err := d.PageSize()
	if err != nil {
		return nil, fmt.Errorf("cudadriver: %s: %w", op, err)
	}
	r := &Received{driver: d, page: page}
	h, err := receiveParts(c, r.reserve, r.add)
	if err != nil {
		_ = r.Close() // the first error says more
		return nil, fmt.Errorf("cudadriver: %s: %w", op, err)
	}
	r.Addr, r.Bytes = r.base+uintptr(h.offset), h.bytes
	return r, nil
}

func (r *Received) reserve(h header) error {
	if h.total%r.page != 0 {
		return fmt.Errorf("memory of %d bytes, in pages of %d", h.total, r.page)
	}
	base, err := r.driver.ReserveRange(h.total)
	if err != nil {
		return err
	}
	r.base, r.size = base, h.total
	return nil
}

// add maps the memory of a descriptor after the parts so far.
func (r *Received) add(fd int, bytes int64) error {
	if bytes%r.page != 0 {
		return fmt.Errorf("a part of %d bytes, in pages of %d", bytes, r.page)
	}
	pages, err := r.driver.ImportPages(fd)
	if err != nil {
		return err
	}
	if err := r.driver.MapPages(r.base+uintptr(r.mapped), pages, bytes); err != nil {
		_ = r.driver.ReleasePages(pages) // the first error says more
		return err
	}
	r.parts, r.mapped = append(r.parts, Part{pages, bytes}), r.mapped+bytes
	return nil
}

// Close unmaps and releases the memory. All work on it must be done. A second Close continues one
// that failed, or else does nothing.
func (r *Received) Close() error {
	for last := len(r.parts) - 1; last >= 0; last-- {
		p := r.parts[last]
		at := r.mapped - p.Bytes
		if err := r.driver.UnmapPages(r.base+uintptr(at), p.Bytes); err != nil {
			return err
		}
		r.parts, r.mapped = r.parts[:last], at
		if err := r.driver.ReleasePages(p.Pages); err != nil {
			return err
		}
	}
	if r.size == 0 {
		return nil
	}
	if err := r.driver.ReleaseRange(r.base, r.size); err != nil {
		return err
	}
	r.Addr, r.Bytes, r.size = 0, 0, 0
	return nil
}

// A header begins a message. After it come the sizes of the parts, in batches of at most
// maxDescriptors: each is 8 bytes with a file descriptor. Numbers are little-endian.
type header struct {
	parts         int
	total         int64 // bytes of all parts
	offset, bytes int64
}

const (
	magic       = "mlpool\r\n" // 8 bytes
	version     = 2
	headerBytes = len(magic) + 4 + 4 + 8 + 8 + 8

	// maxDescriptors is the most that are open at once, of the 1024 that a process can usually have. Linux passes
	// at most 253.
	maxDescriptors = 64
	// maxShared is the most bytes of all parts, more than any device has. So sums cannot overflow.
	maxShared = 1 << 46
	maxParts  = 1 << 24
)

var (
	errMagic  = errors.New("this is no message of Send")
	errBounds = errors.New("the block is not within its memory")
)

func (h header) check() error {
	switch {
	case h.parts <= 0 || h.parts > maxParts || h.total < int64(h.parts) || h.total > maxShared:
		return fmt.Errorf("memory of %d bytes in %d parts", h.total, h.parts)
	case h.offset < 0 || h.bytes < 0 || h.offset >= h.total || h.bytes > h.total-h.offset:
		return errBounds
	}
	return nil
}

func (h header) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic), version)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.parts))
	for _, n := range []int64{h.total, h.offset, h.bytes} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// decode returns the header of headerBytes bytes.
func decode(b []byte) (header, error) {
	if string(b[:len(magic)]) != magic {
		return header{}, errMagic
	}
	b = b[len(magic):]
	if v := binary.LittleEndian.Uint32(b); v != version {
		return header{}, fmt.Errorf("a message of version %d, want %d: use the same mlpool on both sides", v, version)
	}
	h := header{parts: int(binary.LittleEndian.Uint32(b[4:]))}
	for i, n := range []*int64{&h.total, &h.offset, &h.bytes} {
		*n = int64(binary.LittleEndian.Uint64(b[8+8*i:]))
	}
	return h, h.check()
}
