//go:build linux && cgo

package main

/*
#cgo CFLAGS: -fexceptions
#cgo LDFLAGS: -ldl
#include "entry.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/allocator/observe"
)

// The functions that entry.c calls. Each sets the text of an error and returns its code.

// codes are the results of mlpool.h by error.
var codes = []struct {
	err  error
	code C.int
}{
	{allocator.ErrWouldBlock, C.MLPOOL_ERROR_WOULD_BLOCK},
	{allocator.ErrUnknownBlock, C.MLPOOL_ERROR_UNKNOWN_BLOCK},
	{allocator.ErrDoubleFree, C.MLPOOL_ERROR_UNKNOWN_BLOCK},
	{allocator.ErrClosed, C.MLPOOL_ERROR_CLOSED},
	{allocator.ErrAsleep, C.MLPOOL_ERROR_ASLEEP},
	{errors.ErrUnsupported, C.MLPOOL_ERROR_UNSUPPORTED},
	{cudadriver.ErrNoCUDA, C.MLPOOL_ERROR_NO_DRIVER},
}

// code returns the result of mlpool.h for err.
func code(err error) C.int {
	var memory *allocator.OutOfMemoryError
	var leak *allocator.LeakError
	var driver *cudadriver.Error
	var file *fs.PathError
	var socket *net.OpError
	var system syscall.Errno
	switch {
	case err == nil:
		return C.MLPOOL_OK
	case errors.As(err, &memory):
		return C.MLPOOL_ERROR_OUT_OF_MEMORY
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	switch {
	case errors.As(err, &leak):
		return C.MLPOOL_ERROR_LEAK
	case errors.As(err, &driver) && driver.OutOfMemory():
		return C.MLPOOL_ERROR_OUT_OF_MEMORY
	case errors.As(err, &driver):
		return C.MLPOOL_ERROR_DRIVER
	case errors.As(err, &file), errors.As(err, &socket), errors.As(err, &system), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return C.MLPOOL_ERROR_FILE
	}
	return C.MLPOOL_ERROR_INVALID
}

// fail writes the error, as one line, to text, which has C.ERROR_BYTES bytes, and returns its code.
func fail(text *C.char, err error) C.int {
	if err != nil {
		line := strings.ReplaceAll(err.Error(), "\n", "; ")
		to := unsafe.Slice((*byte)(unsafe.Pointer(text)), C.ERROR_BYTES)
		to[copy(to[:len(to)-1], line)] = 0
	}
	return code(err)
}

// recovered makes a panic the error of an exported function, which defers it.
func recovered(text *C.char, result *C.int) {
	if r := recover(); r != nil {
		_ = fail(text, fmt.Errorf("mlpool: internal error: %v", r))
		*result = C.MLPOOL_ERROR_INTERNAL
	}
}

// with calls f with the pool of a handle.
func with(handle C.uintptr_t, text *C.char, f func(p *pool) error) (result C.int) {
	defer recovered(text, &result)
	p, err := open(uintptr(handle))
	if err == nil {
		err = f(p)
	}
	return fail(text, err)
}

// size returns n as an int64; a size that is too large for one is larger than any device.
func size(n C.size_t) int64 { return int64(min(n, maxBytes)) }

// tags has a copy of each tag, so that equal tags share one. recentTags has some of them by the address of
// the C string, which is usually a constant.
var (
	tags       sync.Map
	recentTags [64]atomic.Pointer[string]
)

// tag returns the copy of a C string.
func tag(text *C.char) string {
	if text == nil {
		return ""
	}
	recent := &recentTags[uintptr(unsafe.Pointer(text))/8%uintptr(len(recentTags))]
	if s := recent.Load(); s != nil && equal(text, *s) {
		return *s
	}
	s := C.GoString(text)
	if kept, known := tags.LoadOrStore(s, &s); known {
		s = *kept.(*string)
	}
	recent.Store(&s)
	return s
}

// equal reports whether a C string is s, which has no zero byte. It reads no further than the C string's end.
func equal(text *C.char, s string) bool {
	for i := range len(s) {
		if *(*byte)(unsafe.Add(unsafe.Pointer(text), i)) != s[i] {
			return false
		}
	}
	return *(*byte)(unsafe.Add(unsafe.Pointer(text), len(s))) == 0
}

//export mlpool_go_create
func mlpool_go_create(device C.int, list, environment *C.char, handle *C.uintptr_t, plain *C.int, text *C.char) (result C.int) {
	defer recovered(text, &result)
	o, err := parseOptions(int(device), C.GoString(list), strings.Split(C.GoString(environment), "\n"))
	if err != nil {
		return fail(text, err)
	}
	p, err := newPool(o)
	if err != nil {
		return fail(text, err)
	}
	*handle = C.uintptr_t(register(p))
	if p.base != nil && p.trace == nil {
		*plain = 1
	}
	return C.MLPOOL_OK
}

//export mlpool_go_check_options
func mlpool_go_check_options(list, environment, text *C.char) (result C.int) {
	defer recovered(text, &result)
	_, err := parseOptions(0, C.GoString(list), strings.Split(C.GoString(environment), "\n"))
	return fail(text, err)
}

//export mlpool_go_destroy
func mlpool_go_destroy(handle C.uintptr_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	p, err := unregister(uintptr(handle))
	if err == nil {
		p.flush()
		err = p.close()
	}
	return fail(text, err)
}

//export mlpool_go_alloc
func mlpool_go_alloc(handle C.uintptr_t, ptr *C.uintptr_t, r C.entry_request, frees *C.front_block, count C.int, captured *C.int, text *C.char) (result C.int) {
	defer recovered(text, &result)
	p, err := open(uintptr(handle))
	if err != nil {
		return fail(text, err)
	}
	if count > 0 {
		p.freeAll(unsafe.Slice(frees, count))
	}
	addr, inCapture, err := p.allocate(request{size(r.bytes), size(r.alignment), allocator.Stream(r.stream), tag(r.tag), r.try != 0})
	if err != nil {
		return fail(text, err)
	}
	if *ptr = C.uintptr_t(addr); inCapture {
		*captured = 1
	}
	return C.MLPOOL_OK
}

//export mlpool_go_free
func mlpool_go_free(handle, ptr, stream C.uintptr_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	p, err := open(uintptr(handle))
	if err == nil {
		err = p.free(uintptr(ptr), allocator.Stream(stream))
	}
	if err != nil {
		return fail(text, err)
	}
	return C.MLPOOL_OK
}

//export mlpool_go_free_all
func mlpool_go_free_all(handle C.uintptr_t, frees *C.front_block, count C.int, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		p.freeAll(unsafe.Slice(frees, count))
		return nil
	})
}

//export mlpool_go_record_stream
func mlpool_go_record_stream(handle, ptr, stream C.uintptr_t, text *C.char) C.int {
	return with(handle, text, func(p *pool) error { return p.recordStream(uintptr(ptr), allocator.Stream(stream)) })
}

//export mlpool_go_release_stream
func mlpool_go_release_stream(handle, stream C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.releaseStream(allocator.Stream(stream)) })
}

//export mlpool_go_trim
func mlpool_go_trim(handle C.uintptr_t, keep C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.alloc.Trim(size(keep)) })
}

// onPool calls f with the pool of a handle that has no plan.
func onPool(handle C.uintptr_t, text *C.char, f func(p *allocator.Pool) error) C.int {
	return flushed(handle, text, func(p *pool) error {
		if p.base == nil {
			return fmt.Errorf("mlpool: a pool with plan=true cannot do that: %w", errors.ErrUnsupported)
		}
		return f(p.base)
	})
}

//export mlpool_go_reserve
func mlpool_go_reserve(handle C.uintptr_t, bytes C.size_t, text *C.char) C.int {
	return onPool(handle, text, func(p *allocator.Pool) error { return p.Reserve(size(bytes)) })
}

//export mlpool_go_set_limit
func mlpool_go_set_limit(handle C.uintptr_t, bytes C.size_t, text *C.char) C.int {
	return onPool(handle, text, func(p *allocator.Pool) error { return p.SetMaxBytes(size(bytes)) })
}

//export mlpool_go_set_tag_limit
func mlpool_go_set_tag_limit(handle C.uintptr_t, name *C.char, bytes C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.limitTag(tag(name), size(bytes)) })
}

//export mlpool_go_on_out_of_memory
func mlpool_go_on_out_of_memory(handle C.uintptr_t, function C.mlpool_out_of_memory, arg C.uintptr_t, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		if function == nil {
			p.handler.Store(nil)
			return nil
		}
		p.handler.Store(&handler{func(bytes int64, text string) bool {
			line := C.CString(text)
			defer C.free(unsafe.Pointer(line))
			return C.entry_out_of_memory(function, arg, C.size_t(bytes), line) != 0
		}})
		return nil
	})
}

//export mlpool_go_stats
func mlpool_go_stats(handle C.uintptr_t, out *C.mlpool_stats, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		st := p.stats()
		out.allocs, out.frees, out.refused = C.int64_t(st.Allocs), C.int64_t(st.Frees), C.int64_t(st.Refused)
		out.driver_calls, out.driver_mallocs = C.int64_t(st.DriverCalls), C.int64_t(st.DriverMallocs)
		out.host_waits, out.mappings, out.stitches = C.int64_t(st.HostWaits), C.int64_t(st.Mappings), C.int64_t(st.Stitches)
		out.allocated, out.allocated_peak = C.int64_t(st.Allocated), C.int64_t(st.PeakAllocated)
		out.reserved, out.reserved_peak = C.int64_t(st.Reserved), C.int64_t(st.PeakReserved)
		return nil
	})
}

//export mlpool_go_reset_peaks
func mlpool_go_reset_peaks(handle C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		return p.each(func(a allocator.Allocator) error {
			a.ResetPeaks()
			return nil
		})
	})
}

//export mlpool_go_stats_json
func mlpool_go_stats_json(handle C.uintptr_t, buffer *C.char, room C.size_t, bytes *C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		line, err := json.Marshal(p.report())
		if err != nil {
			return err
		}
		line = append(line, 0)
		*bytes = C.size_t(len(line))
		if C.size_t(len(line)) > room {
			return fmt.Errorf("mlpool: the statistics have %d bytes: the buffer has %d", len(line), room)
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(buffer)), room), line)
		return nil
	})
}

//export mlpool_go_snapshot
func mlpool_go_snapshot(handle C.uintptr_t, path, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.snapshot(C.GoString(path)) })
}

//export mlpool_go_plan_begin
func mlpool_go_plan_begin(handle C.uintptr_t, name *C.char, stream C.uintptr_t, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		if p.plan == nil {
			return errNoPlan
		}
		return p.plan.Begin(tag(name), allocator.Stream(stream))
	})
}

//export mlpool_go_plan_end
func mlpool_go_plan_end(handle C.uintptr_t, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		if p.plan == nil {
			return errNoPlan
		}
		return p.plan.End()
	})
}

var errNoPlan = fmt.Errorf("mlpool: the pool was not created with plan=true: %w", errors.ErrUnsupported)

//export mlpool_go_sleep
func mlpool_go_sleep(handle C.uintptr_t, keep C.int, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		if !p.asleep.Swap(true) {
			C.entry_front_off(p.handle)
		}
		return p.sleepOrWake(func(s sleeper) error { return s.Sleep(keep != 0) })
	})
}

//export mlpool_go_wake
func mlpool_go_wake(handle C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		err := p.sleepOrWake(sleeper.Wake)
		if err == nil && p.asleep.Swap(false) {
			C.entry_front_on(p.handle)
		}
		return err
	})
}

//export mlpool_go_capture_begin
func mlpool_go_capture_begin(handle C.uintptr_t, id C.uint64_t, filter C.mlpool_filter, arg C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		if filter == nil {
			return errors.New("mlpool: a capture needs a filter")
		}
		err := p.captures.begin(uint64(id), func(s allocator.Stream) bool {
			return C.entry_filter(filter, arg, C.uintptr_t(s)) != 0
		})
		if err == nil {
			C.entry_front_off(p.handle) // which knows no captures
		}
		return err
	})
}

//export mlpool_go_capture_end
func mlpool_go_capture_end(handle C.uintptr_t, id C.uint64_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error {
		err := p.captures.end(uint64(id))
		if !errors.Is(err, errNoCapture) {
			C.entry_front_on(p.handle)
		}
		return err
	})
}

//export mlpool_go_capture_release
func mlpool_go_capture_release(handle C.uintptr_t, id C.uint64_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.captures.release(uint64(id)) })
}

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
func mlpool_go_send(handle, ptr C.uintptr_t, socket C.int, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		c, err := connection(socket)
		if err != nil {
			return err
		}
		return errors.Join(p.send(uintptr(ptr), c), c.Close())
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
func (p *pool) send(addr uintptr, c *net.UnixConn) error {
	e, ok := p.blocks.get(addr)
	if !ok {
		return allocator.ErrUnknownBlock
	}
	from := p.base
	if e.from != nil {
		from = e.from.alloc
	}
	if from == nil {
		return fmt.Errorf("mlpool: a pool with plan=true cannot send blocks: %w", errors.ErrUnsupported)
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

// snapshot writes the file of mlpool_snapshot.
func (p *pool) snapshot(path string) error {
	trace := p.trace
	if trace == nil {
		if !strings.HasSuffix(path, ".pickle") {
			return errors.New("mlpool: this file has calls, and the pool keeps none: create it with trace_events=N, or write a .pickle")
		}
		trace = allocator.NewTrace(p.alloc, 1) // without events
	}
	return observe.WriteFile(path, trace, p.memory())
}
