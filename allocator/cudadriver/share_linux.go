package cudadriver

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Write sends b to the other end of c. If that has ended, the result is an error, whatever the program does with SIGPIPE.
func Write(c *net.UnixConn, b []byte) error { return sendMessage(c, b, nil) }

// sendMessage is Write with control messages for the first byte.
func sendMessage(c *net.UnixConn, b, control []byte) error {
	raw, err := c.SyscallConn()
	for err == nil && len(b) > 0 {
		n := 0
		var bad error
		err = raw.Write(func(fd uintptr) bool {
			n, bad = syscall.SendmsgN(int(fd), b, control, nil, syscall.MSG_NOSIGNAL)
			return bad != syscall.EAGAIN && bad != syscall.EINTR
		})
		err = cmp.Or(err, bad)
		b, control = b[n:], nil
	}
	return err
}

// sendParts sends h and then the sizes of the parts, with the descriptors that export returns.
func sendParts(c *net.UnixConn, h header, parts []Part, export func(pages uintptr) (fd int, err error)) error {
	if err := Write(c, h.encode()); err != nil {
		return err
	}
	for len(parts) > maxDescriptors {
		if err := sendBatch(c, parts[:maxDescriptors], export); err != nil {
			return err
		}
		parts = parts[maxDescriptors:]
		// The kernel limits how many descriptors are under way.
		if _, err := io.ReadFull(c, make([]byte, len(more))); err != nil {
			return fmt.Errorf("the receiver wants no more: %w", err)
		}
	}
	return sendBatch(c, parts, export)
}

// more is what a receiver answers to a batch, other than the last.
var more = []byte{1}

func sendBatch(c *net.UnixConn, batch []Part, export func(pages uintptr) (fd int, err error)) (err error) {
	fds := make([]int, 0, len(batch))
	defer func() { err = cmp.Or(err, closeAll(fds)) }()
	var sizes []byte
	var refused error
	for _, p := range batch {
		sizes = binary.LittleEndian.AppendUint64(sizes, uint64(p.Bytes))
		if refused != nil {
			continue // the receiver sees too few
		}
		fd, err := export(p.Pages)
		if err == nil {
			fds = append(fds, fd)
		}
		refused = err
	}
	return cmp.Or(refused, sendMessage(c, sizes, syscall.UnixRights(fds...)))
}

// receiveParts receives what sendParts sends. It calls begin with the header and accept with each
// descriptor, which it closes afterwards. The first error ends it.
func receiveParts(c *net.UnixConn, begin func(header) error,
	accept func(fd int, bytes int64) error) (header, error) {

	first := make([]byte, headerBytes)
	if _, err := io.ReadFull(c, first); err != nil {
		return header{}, err
	}
	h, err := decode(first)
	if err == nil {
		err = begin(h)
	}
	total := int64(0)
	checked := func(fd int, bytes int64) error {
		if total == 0 && bytes <= h.offset || bytes <= 0 || bytes > h.total-total {
			return fmt.Errorf("a part of %d bytes in memory of %d", bytes, h.total)
		}
		total += bytes
		return accept(fd, bytes)
	}
	for left := h.parts; left > 0 && err == nil; {
		n := min(left, maxDescriptors)
		left -= n
		if err = receiveBatch(c, n, checked); err == nil && left > 0 {
			err = Write(c, more)
		}
	}
	if err == nil && total != h.total {
		err = fmt.Errorf("parts of %d bytes in memory of %d", total, h.total)
	}
	return h, err
}

// receiveBatch receives n parts.
func receiveBatch(c *net.UnixConn, n int, accept func(fd int, bytes int64) error) (err error) {
	var fds []int
	defer func() { err = cmp.Or(err, closeAll(fds)) }()
	sizes, control := make([]byte, 8*n), make([]byte, syscall.CmsgSpace(4*maxDescriptors))
	for got := 0; got < len(sizes); {
		k, controls, _, _, err := c.ReadMsgUnix(sizes[got:], control)
		rights, bad := descriptors(control[:controls])
		fds = append(fds, rights...)
		switch {
		case err != nil:
			return err
		case bad != nil:
			return bad
		case k == 0:
			return io.ErrUnexpectedEOF
		case len(fds) > n:
			return fmt.Errorf("more than %d descriptors for %d parts", n, n)
		}
		got += k
	}
	if len(fds) < n {
		return fmt.Errorf("%d descriptors for %d parts: the sender could export no more, or ulimit -n is too low", len(fds), n)
	}
	for i, fd := range fds {
		if err := accept(fd, int64(binary.LittleEndian.Uint64(sizes[8*i:]))); err != nil {
			return err
		}
	}
	return nil
}

// descriptors returns the file descriptors of control messages.
func descriptors(control []byte) (fds []int, err error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	for _, m := range messages {
		if m.Header.Level != syscall.SOL_SOCKET || m.Header.Type != syscall.SCM_RIGHTS {
			continue
		}
		rights, bad := syscall.ParseUnixRights(&m)
		fds, err = append(fds, rights...), cmp.Or(err, bad)
	}
	return fds, err
}

func closeAll(fds []int) (err error) {
	for _, fd := range fds {
		if bad := syscall.Close(fd); bad != nil && !errors.Is(bad, syscall.EINTR) {
			err = cmp.Or(err, os.NewSyscallError("close", bad))
		}
	}
	return err
}
