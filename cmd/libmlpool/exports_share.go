//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
)

// The functions that entry.c calls for memory of other processes.

// connection returns the Unix socket of a file descriptor, which stays open.
func connection(socket C.int) (*net.UnixConn, error) {
	fd, err := syscall.Dup(int(socket))
	if err != nil {
		return nil, fmt.Errorf("mlpool: descriptor %d: %w", socket, err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("mlpool: descriptor %d is not a socket: %w", socket, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("mlpool: descriptor %d is not a Unix socket", socket), c.Close())
	}
	return u, nil
}

//export mlpool_go_send
func mlpool_go_send(handle C.uintptr_t, b C.front_block, socket C.int, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		c, err := connection(socket)
		if err != nil {
			return err
		}
		return errors.Join(p.send(uintptr(b.ptr), uint32(b.index), c), c.Close())
	})
}

// received has the memory of mlpool_receive, by address.
var received sync.Map

//export mlpool_go_receive
func mlpool_go_receive(device, socket C.int, ptr *C.uintptr_t, bytes *C.size_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	d, err := cudadriver.New(cudadriver.Options{Device: int(device)})
	if err != nil {
		return fail(text, err)
	}
	c, err := connection(socket)
	if err != nil {
		return fail(text, err)
	}
	r, err := d.Receive(c)
	if err := errors.Join(err, c.Close()); err != nil {
		return fail(text, err)
	}
	received.Store(r.Addr, r)
	*ptr, *bytes = C.uintptr_t(r.Addr), C.size_t(r.Bytes)
	return C.MLPOOL_OK
}

//export mlpool_go_close_received
func mlpool_go_close_received(ptr C.uintptr_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	r, ok := received.LoadAndDelete(uintptr(ptr))
	if !ok {
		return fail(text, allocator.ErrUnknownBlock)
	}
	return fail(text, r.(*cudadriver.Received).Close())
}

// send sends the block at addr to the process at the other end of c.
func (p *pool) send(addr uintptr, index uint32, c *net.UnixConn) error {
	e, ok := p.blocks.get(index, addr, false)
	if !ok {
		return allocator.ErrUnknownBlock
	}
	from := p.base
	if e.from != nil {
		from = e.from.alloc
	}
	parts, offset, err := from.Backing(e.block)
	if err != nil {
		return err
	}
	m := cudadriver.Memory{Offset: offset, Bytes: e.block.Size}
	for _, part := range parts {
		m.Pages = append(m.Pages, cudadriver.Part(part))
	}
	return p.driver.Send(c, m)
}
