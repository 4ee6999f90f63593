//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

import "errors"

// Fill sets every word of 4 bytes of a range to value, in the order of the
// stream.
func (Driver) Fill(addr uintptr, value uint32, bytes int64, stream uintptr) error {
	return check("Fill", C.kernels_fill_words(C.uintptr_t(stream), C.uintptr_t(addr), C.uint32_t(value), C.int64_t(bytes)))
}

// Differing counts the words of 4 bytes of a range that are not value, in the
// order of the stream, and waits for the answer.
func (Driver) Differing(addr uintptr, value uint32, bytes int64, stream uintptr) (int64, error) {
	var n C.int64_t
	err := check("Differing", C.kernels_differing(&n, C.uintptr_t(stream), C.uintptr_t(addr), C.uint32_t(value), C.int64_t(bytes)))
	return int64(n), err
}

// Spin keeps the stream busy for a number of cycles of the GPU, at most 2e9 or
// about a second, with a kernel of one thread.
func (s Stream) Spin(cycles int64) error {
	return check("Spin", C.kernels_spin(C.uintptr_t(s), C.int64_t(cycles)))
}

// NewMemPoolWith makes an empty pool with settings of its own.
func NewMemPoolWith(o MemPoolOptions) (MemPool, error) {
	p, err := NewMemPool()
	if err != nil {
		return 0, err
	}
	flag := func(on bool) C.int {
		if on {
			return 1
		}
		return 0
	}
	err = check("NewMemPoolWith", C.kernels_pool_set(C.uintptr_t(p), C.int64_t(o.ReleaseThreshold),
		flag(o.FollowEvents), flag(o.Opportunistic), flag(o.InternalDependencies)))
	if err != nil {
		return 0, errors.Join(err, p.ClosePool())
	}
	return p, nil
}
