//go:build linux && cgo

package main

/*
#cgo CFLAGS: -fexceptions
#cgo LDFLAGS: -ldl
#include "entry.h"
extern char **environ;
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
)

// The functions that entry.c calls for pools and blocks, two that only PyTorch needs, and what all such functions share:
// each sets the text of an error and returns its code.

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
	if err == nil {
		return C.MLPOOL_OK // before the variables, which the heap has
	}
	var memory *allocator.OutOfMemoryError
	var leak *allocator.LeakError
	var driver *cudadriver.Error
	var full interface{ OutOfMemory() bool }
	var file *fs.PathError
	var socket *net.OpError
	var system syscall.Errno
	if errors.As(err, &memory) {
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
	case errors.As(err, &full) && full.OutOfMemory():
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
func size(n C.size_t) int64 { return int64(min(n, 1<<60)) }

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

// environment returns the lines of the variables MLPOOL_*. The program may have set them since Go's runtime began.
func environment() (lines []string) {
	for at := C.environ; at != nil && *at != nil; at = (**C.char)(unsafe.Add(unsafe.Pointer(at), unsafe.Sizeof(*at))) {
		if v := C.GoString(*at); strings.HasPrefix(v, "MLPOOL_") {
			lines = append(lines, strings.Split(v, "\n")...)
		}
	}
	return lines
}

//export mlpool_go_create
func mlpool_go_create(device C.int, list *C.char, handle *C.uintptr_t, plain *C.int, text *C.char) (result C.int) {
	defer recovered(text, &result)
	o, err := parseOptions(int(device), C.GoString(list), environment())
	if err != nil {
		return fail(text, err)
	}
	p, err := newPool(o)
	if err != nil {
		return fail(text, err)
	}
	*handle = C.uintptr_t(register(p))
	if p.trace == nil {
		*plain = 1
	}
	return C.MLPOOL_OK
}

//export mlpool_go_check_options
func mlpool_go_check_options(list, text *C.char) (result C.int) {
	defer recovered(text, &result)
	o, err := parseOptions(0, C.GoString(list), environment())
	if err == nil {
		err = o.pool.Check()
	}
	return fail(text, err)
}

//export mlpool_go_destroy
func mlpool_go_destroy(handle C.uintptr_t, text *C.char) (result C.int) {
	return flushed(handle, text, func(p *pool) error {
		f := p.front() // is off, so it keeps no block, and none may stay in hand
		var inHand C.uint32_t
		await(func() bool { C.front_returned(f, &inHand); return inHand == 0 })
		if err := unregister(p); err != nil {
			return err
		}
		return p.close()
	})
}

//export mlpool_go_alloc
func mlpool_go_alloc(handle C.uintptr_t, b *C.front_block, r *C.entry_request, frees *C.front_drained, outside *C.int, text *C.char) (result C.int) {
	defer recovered(text, &result)
	p, err := takenBack(uintptr(handle), frees)
	if err != nil {
		return fail(text, err)
	}
	addr, at, out, err := p.allocate(&request{
		size(r.bytes), size(r.alignment), allocator.Stream(r.stream), tag(r.tag), r.try != 0, uint64(r.id), uintptr(r.at), r.tagged != 0,
	})
	if err != nil {
		return fail(text, err)
	}
	b.ptr, b.index, b.number = C.uintptr_t(addr), C.uint32_t(at.index), C.uint32_t(at.number)
	if out {
		*outside = 1
	}
	return C.MLPOOL_OK
}

//export mlpool_go_extend
func mlpool_go_extend(handle C.uintptr_t, b *C.front_block, bytes *C.size_t, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		if e, ok := p.blocks.get(uint32(b.index), uintptr(b.ptr), false); ok {
			*bytes = C.size_t(p.base.Extend(e.block))
		}
		return nil
	})
}

//export mlpool_go_free
func mlpool_go_free(handle C.uintptr_t, b *C.front_block, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		return p.free(uintptr(b.ptr), (*uint32)(&b.index), allocator.Stream(b.stream))
	})
}

//export mlpool_go_give_back
func mlpool_go_give_back(handle C.uintptr_t, d *C.front_drained, text *C.char) (result C.int) {
	defer recovered(text, &result)
	_, err := takenBack(uintptr(handle), d)
	return fail(text, err)
}

//export mlpool_go_record_stream
func mlpool_go_record_stream(handle C.uintptr_t, b C.front_block, text *C.char) C.int {
	return with(handle, text, func(p *pool) error {
		return p.recordStream(uintptr(b.ptr), uint32(b.index), allocator.Stream(b.stream))
	})
}

//export mlpool_go_release_stream
func mlpool_go_release_stream(handle, stream C.uintptr_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.releaseStream(allocator.Stream(stream)) })
}

//export mlpool_go_trim
func mlpool_go_trim(handle C.uintptr_t, keep C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.trim(size(keep)) })
}

//export mlpool_go_reserve
func mlpool_go_reserve(handle C.uintptr_t, bytes C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.base.Reserve(size(bytes)) })
}

//export mlpool_go_set_limit
func mlpool_go_set_limit(handle C.uintptr_t, bytes C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.setMaxBytes(size(bytes)) })
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
		h := handler(func(bytes int64, text string) bool {
			line := C.CString(text)
			defer C.free(unsafe.Pointer(line))
			return C.entry_out_of_memory(function, arg, C.size_t(bytes), line) != 0
		})
		p.handler.Store(&h)
		return nil
	})
}

// mlpool_go_torch_limit sets a limit that cannot be above that of the options.
//
//export mlpool_go_torch_limit
func mlpool_go_torch_limit(handle C.uintptr_t, bytes C.size_t, text *C.char) C.int {
	return flushed(handle, text, func(p *pool) error { return p.setMaxBytes(lower(size(bytes), p.most)) })
}

// mlpool_go_torch_external notes a stream that PyTorch did not create.
//
//export mlpool_go_torch_external
func mlpool_go_torch_external(stream C.uintptr_t, text *C.char) (result C.int) {
	defer recovered(text, &result)
	mayBeGone.Store(uintptr(stream), nil)
	return C.MLPOOL_OK
}
