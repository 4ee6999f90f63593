//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// NVTX returns nil if ranges can be shown to a profiler, else why not.
func NVTX() error {
	if C.kernels_nvtx() == 0 {
		return errors.New("built without NVTX: the CUDA toolkit had no nvtx3/nvToolsExt.h")
	}
	return nil
}

// PushRange opens an NVTX range on the calling thread, so its goroutine must be
// locked to that.
func PushRange(name string) {
	text := append([]byte(name), 0)
	C.kernels_range_push((*C.char)(unsafe.Pointer(&text[0])))
}

// PopRange closes the range that the thread opened last.
func PopRange() { C.kernels_range_pop() }
