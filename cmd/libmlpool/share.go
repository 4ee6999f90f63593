//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
)

// Blocks that other processes map. A process that exports blocks answers on an abstract Unix socket: it makes the
// descriptors of a block's pages when it is asked for them, and closes them once they are sent. A connection lasts as
// long as the other process maps blocks, so that the pool knows which ones must keep their memory.

// patience is how long two processes wait for each other: long enough for a pool that is about to sleep.
const patience = time.Minute

// A ticket is what names an exported block in another process, as bytes a mlpool_ipc_handle.
type ticket struct {
	Magic  [8]byte
	ID     uint64
	Socket [32]byte // its name is "@mlpool-" and this
}

// ticketMagic begins with a byte at which PyTorch's own allocator refuses a handle.
var ticketMagic = [8]byte([]byte("\xffmlpool\x01"))

// An ask is what a process writes to the socket. The answer is the length of an error as one byte and its text, or
// 0 and, to an open, a message of cudadriver's Send.
type ask struct {
	Close bool // or open
	ID    uint64
}

// An export is a block that other processes may map.
type export struct {
	pool   *pool
	addr   uintptr
	index  uint32 // in the table
	from   *captured
	ticket ticket
	open   atomic.Int32 // mappings in other processes
}

// exports are those of one pool.
type exports struct {
	any atomic.Bool
	// mu is held by reading while the pages of a block are sent, and by writing while blocks lose theirs.
	mu     sync.RWMutex
	blocks map[uintptr]*export
}

// exporter is the socket of the process, and its exports by number.
var exporter struct {
	mu     sync.Mutex
	socket *net.UnixListener
	name   [32]byte
	last   uint64
	blocks sync.Map
}

// newTicket returns a ticket that no other export has. The first one opens the socket.
func newTicket() (ticket, error) {
	x := &exporter
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.socket == nil {
		copy(x.name[:], rand.Text()+rand.Text())
		socket, err := net.ListenUnix("unix", socketName(x.name))
		if err != nil {
			return ticket{}, err
		}
		x.socket = socket
		go accept(socket)
	}
	x.last++
	return ticket{ticketMagic, x.last, x.name}, nil
}

func socketName(name [32]byte) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: "@mlpool-" + string(name[:])}
}

// accept answers other processes as long as this one lasts.
func accept(socket *net.UnixListener) {
	for {
		c, err := socket.AcceptUnix()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // descriptors are short
			continue
		}
		go answer(c)
	}
}

// answer answers a process until it closes c.
func answer(c *net.UnixConn) {
	var open []*export
	defer func() {
		_ = recover() // the other process sees that the connection ends
		for _, e := range open {
			e.open.Add(-1)
		}
		_ = c.Close()
	}()
	if _, err := sameUser(c); err != nil {
		return
	}
	for {
		var a ask
		if err := binary.Read(c, binary.LittleEndian, &a); err != nil {
			return
		}
		if a.Close {
			if i := slices.IndexFunc(open, func(e *export) bool { return e.ticket.ID == a.ID }); i >= 0 {
				open[i].open.Add(-1)
				open = slices.Delete(open, i, i+1)
			}
			_ = reply(c, "") // the process may have ended
			continue
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		e, err := send(c, a.ID)
		switch {
		case err != nil:
			_ = c.CloseWrite() // of half a message; what the process maps counts on
		case e != nil:
			open = append(open, e)
		}
		_ = c.SetDeadline(time.Time{})
	}
}

// send sends the export of a number and returns it, or sends why it cannot.
func send(c *net.UnixConn, id uint64) (*export, error) {
	found, ok := exporter.blocks.Load(id)
	if !ok {
		return nil, reply(c, "the block was freed")
	}
	e := found.(*export)
	x := &e.pool.exports
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.blocks[e.addr] != e {
		return nil, reply(c, "the block was freed")
	}
	m, err := e.pool.pagesOf(e.addr, e.index)
	if err != nil {
		return nil, reply(c, err.Error())
	}
	if err := reply(c, ""); err != nil {
		return nil, err
	}
	if err := e.pool.driver.Send(c, m); err != nil {
		return nil, err
	}
	e.open.Add(1)
	return e, nil
}

func reply(c *net.UnixConn, text string) error {
	text = text[:min(len(text), 255)]
	return cudadriver.Write(c, append([]byte{byte(len(text))}, text...))
}

// sameUser returns the process at the other end, 0 if this one cannot name it, or an error unless it is of this user.
func sameUser(c *net.UnixConn) (pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *syscall.Ucred
	var bad error
	err = raw.Control(func(fd uintptr) {
		peer, bad = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err := errors.Join(err, bad); err != nil {
		return 0, err
	}
	if peer.Uid != uint32(os.Geteuid()) {
		return 0, fmt.Errorf("mlpool: process %d, which exported the block, is another user's", peer.Pid)
	}
	return int(peer.Pid), nil
}

// pagesOf returns the pages of the block at addr, which has an index in the table, after a flush: it has no room.
func (p *pool) pagesOf(addr uintptr, index uint32) (cudadriver.Memory, error) {
	e, ok := p.blocks.get(index, addr, false)
	if !ok {
		return cudadriver.Memory{}, allocator.ErrUnknownBlock
	}
	parts, offset, err := p.source(&e).Backing(e.block)
	if err == nil && !p.driver.shareable {
		err = fmt.Errorf("mlpool: other processes cannot map this memory: create the pool with shareable=true: %w", errors.ErrUnsupported)
	}
	if err != nil {
		return cudadriver.Memory{}, err
	}
	m := cudadriver.Memory{Offset: offset, Bytes: e.block.Size}
	for _, part := range parts {
		m.Pages = append(m.Pages, cudadriver.Part(part))
	}
	return m, nil
}

// export returns the ticket of the block at addr, which has an index in the table. The block keeps it until it is freed.
func (p *pool) export(addr uintptr, index uint32) (ticket, error) {
	if _, err := p.pagesOf(addr, index); err != nil {
		return ticket{}, err
	}
	x := &p.exports
	x.any.Store(true)
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.blocks[addr]; e != nil {
		return e.ticket, nil
	}
	t, err := newTicket()
	if err != nil {
		return ticket{}, err
	}
	block, ok := p.blocks.get(index, addr, true)
	if !ok {
		return ticket{}, allocator.ErrUnknownBlock
	}
	e := &export{pool: p, addr: addr, index: index, from: block.from, ticket: t}
	x.blocks[addr] = e
	exporter.blocks.Store(t.ID, e)
	return t, nil
}

// forget ends the export of the block at addr, if it has one.
func (x *exports) forget(addr uintptr) {
	if !x.any.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.blocks[addr]; e != nil {
		exporter.blocks.Delete(e.ticket.ID)
		delete(x.blocks, addr)
	}
}

// close ends all exports.
func (x *exports) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.blocks {
		exporter.blocks.Delete(e.ticket.ID)
	}
	clear(x.blocks)
}

// unmapped calls f, which gives other memory to all blocks, or to those of c, if no other process maps one.
func (x *exports) unmapped(c *captured, f func() error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for addr, e := range x.blocks {
		if e.open.Load() > 0 && (c == nil || e.from == c) {
			return fmt.Errorf("mlpool: another process maps the block at %#x, which cannot sleep before it is closed there", addr)
		}
	}
	return f()
}

// An owner is a process some of whose blocks this one maps.
type owner struct {
	name [32]byte
	conn *net.UnixConn
	pid  int // 0: unknown
	uses int
}

var owners = struct {
	mu     sync.Mutex // held while a block is opened or closed
	byName map[[32]byte]*owner
}{byName: map[[32]byte]*owner{}}

// A mapping is memory of another process.
type mapping struct {
	*cudadriver.Received
	owner *owner // nil: of mlpool_receive
	id    uint64
}

// open maps the block of a ticket with a driver.
func (t ticket) open(d cudadriver.Driver) (mapping, error) {
	if t.Magic != ticketMagic {
		return mapping{}, errors.New("mlpool: the handle is not one of mlpool_export, or is that of another version")
	}
	owners.mu.Lock()
	defer owners.mu.Unlock()
	o := owners.byName[t.Socket]
	if o == nil {
		c, err := net.DialUnix("unix", nil, socketName(t.Socket))
		if err != nil {
			return mapping{}, fmt.Errorf("mlpool: the process that exported the block has ended, or has another network namespace: %w", err)
		}
		pid, err := sameUser(c)
		if err != nil {
			return mapping{}, errors.Join(err, c.Close())
		}
		o = &owner{name: t.Socket, conn: c, pid: pid}
		owners.byName[t.Socket] = o
	}
	o.uses++
	refusal, err := o.ask(ask{ID: t.ID})
	if err == nil && refusal == "" {
		var r *cudadriver.Received
		if r, err = d.Receive(o.conn); err == nil {
			return mapping{r, o, t.ID}, nil
		}
	}
	if err != nil {
		delete(owners.byName, t.Socket) // another open needs another connection
		err = fmt.Errorf("mlpool: the process that exported the block did not send it: %w", err)
	} else {
		err = fmt.Errorf("mlpool: the process that exported the block: %s", strings.TrimPrefix(refusal, "mlpool: "))
	}
	return mapping{}, errors.Join(err, o.release())
}

// ask asks the owner, and returns why it refuses. Caller holds owners.mu.
func (o *owner) ask(a ask) (refusal string, err error) {
	if o.pid > 0 && syscall.Kill(o.pid, 0) == syscall.ESRCH { // a child of its fork may keep the connection open
		return "", fmt.Errorf("process %d: %w", o.pid, syscall.ESRCH)
	}
	question, err := binary.Append(nil, binary.LittleEndian, a)
	if err == nil {
		err = o.conn.SetDeadline(time.Now().Add(patience))
	}
	if err == nil {
		err = cudadriver.Write(o.conn, question)
	}
	if err != nil {
		return "", err
	}
	var text [256]byte
	if _, err = io.ReadFull(o.conn, text[:1]); err == nil {
		_, err = io.ReadFull(o.conn, text[1:1+text[0]])
	}
	return string(text[1 : 1+int(text[0])]), err
}

// release ends one use of the connection. Caller holds owners.mu.
func (o *owner) release() error {
	if o.uses--; o.uses > 0 {
		return nil
	}
	if owners.byName[o.name] == o {
		delete(owners.byName, o.name)
	}
	return o.conn.Close()
}

// close unmaps the memory, on which no work may run.
func (m mapping) close() error {
	if err := m.Close(); err != nil {
		received.Store(m.Addr, m) // for another try
		return err
	}
	if m.owner == nil {
		return nil
	}
	owners.mu.Lock()
	defer owners.mu.Unlock()
	_, _ = m.owner.ask(ask{Close: true, ID: m.id}) // a process that has ended counts no mappings
	return m.owner.release()
}
