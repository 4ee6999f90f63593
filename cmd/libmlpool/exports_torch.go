//go:build linux && cgo

package main

// #include "entry.h"
import "C"

// The functions that entry.c calls for _torch.py.

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
