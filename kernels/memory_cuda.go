//go:build cuda

package kernels

/*
#include "kernels.h"
*/
import "C"

// Fill sets every word of 4 bytes of a range to value, in the order of the
// stream.
func (Filler) Fill(addr uintptr, value uint32, bytes int64, stream uintptr) error {
	return check("Fill", C.kernels_fill_words(C.uintptr_t(stream), C.uintptr_t(addr), C.uint32_t(value), C.int64_t(bytes)))
}

// Differing counts the words of 4 bytes of a range that are not value, in the
// order of the stream, and waits for the answer.
func (Filler) Differing(addr uintptr, value uint32, bytes int64, stream uintptr) (int64, error) {
	var n C.int64_t
	err := check("Differing", C.kernels_differing(&n, C.uintptr_t(stream), C.uintptr_t(addr), C.uint32_t(value), C.int64_t(bytes)))
	return int64(n), err
}

// Spin keeps the stream busy for a number of cycles of the GPU, at most 2e9 or
// about a second, with a kernel of one thread.
func (s Stream) Spin(cycles int64) error {
	return check("Spin", C.kernels_spin(C.uintptr_t(s), C.int64_t(cycles)))
}
