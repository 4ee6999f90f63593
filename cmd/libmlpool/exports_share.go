//go:build linux && cgo

package main

// #include "entry.h"
import "C"

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
)

// The functions that entry.c calls for memory of other processes.

// over calls f with the Unix socket of a file descriptor, which stays open, and waits as before in reads and writes.
func over(socket C.int, f func(c *net.UnixConn) error) (err error) {
	flags, _, bad := syscall.Syscall(syscall.SYS_FCNTL, uintptr(socket), syscall.F_GETFL, 0)
	fd, err := syscall.Dup(int(socket))
	if err != nil || bad != 0 {
		return fmt.Errorf("mlpool: descriptor %d: %w", socket, cmp.Or(err, error(bad)))
	}
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	c, err := net.FileConn(file) // makes all descriptors of the socket return at once
	if err != nil {
		return fmt.Errorf("mlpool: descriptor %d is not a socket: %w", socket, err)
	}
	defer func() {
		err = errors.Join(err, c.Close(), syscall.SetNonblock(int(socket), flags&syscall.O_NONBLOCK != 0))
	}()
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("mlpool: descriptor %d is not a Unix socket", socket)
	}
	return f(u)
}

//export mlpool_go_send
func mlpool_go_send(handle C.uintptr_t, b C.front_block, socket C.int, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		return over(socket, func(c *net.UnixConn) error {
			p.flush()
			m, err := p.pagesOf(uintptr(b.ptr), uint32(b.index))
			if err == nil {
				err = p.driver.Send(c, m)
			}
			return err
		})
	})
}

// received has memory of other processes, by address.
var received sync.Map

// receive maps memory of another process.
func receive(o options, open func(d cudadriver.Driver) (mapping, error), ptr *C.uintptr_t, bytes *C.size_t) error {
	err := o.probe()
	if err != nil {
		return err
	}
	d, err := cudadriver.New(o.driver)
	if err != nil {
		return err
	}
	m, err := open(d)
	if err != nil {
		return err
	}
	received.Store(m.Addr, m)
	*ptr, *bytes = C.uintptr_t(m.Addr), C.size_t(m.Bytes)
	return nil
}

//export mlpool_go_receive
func mlpool_go_receive(device, socket C.int, ptr *C.uintptr_t, bytes *C.size_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	o := options{driver: cudadriver.Options{Device: int(device)}}
	return fail(text, receive(o, func(d cudadriver.Driver) (m mapping, err error) {
		err = over(socket, func(c *net.UnixConn) (err error) {
			m.Received, err = d.Receive(c)
			return err
		})
		return m, err
	}, ptr, bytes))
}

//export mlpool_go_close_received
func mlpool_go_close_received(ptr C.uintptr_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	m, ok := received.LoadAndDelete(uintptr(ptr))
	if !ok {
		return fail(text, allocator.ErrUnknownBlock)
	}
	return fail(text, m.(mapping).close())
}

//export mlpool_go_export
func mlpool_go_export(handle C.uintptr_t, b C.front_block, to *C.mlpool_ipc_handle, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		p.flush()
		t, err := p.export(uintptr(b.ptr), uint32(b.index))
		if err == nil {
			_, err = binary.Encode(unsafe.Slice((*byte)(unsafe.Pointer(to)), unsafe.Sizeof(*to)), binary.LittleEndian, t)
		}
		return err
	})
}

//export mlpool_go_import
func mlpool_go_import(device C.int, from *C.mlpool_ipc_handle, ptr *C.uintptr_t, bytes *C.size_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	var t ticket
	if _, err := binary.Decode(unsafe.Slice((*byte)(unsafe.Pointer(from)), unsafe.Sizeof(*from)), binary.LittleEndian, &t); err != nil {
		return fail(text, err)
	}
	o := options{driver: cudadriver.Options{Device: int(device)}, allPeers: true}
	return fail(text, receive(o, t.open, ptr, bytes))
}
