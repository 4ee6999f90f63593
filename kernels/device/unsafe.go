package device

import "unsafe"

// asBytes returns the memory of s as bytes.
func asBytes[E float32 | int32](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), 4*len(s))
}

// sliceAt returns n elements of host memory from addr on. The memory is one
// allocation of a hostDriver, which keeps it alive. The address is read as a
// pointer rather than converted, since no Go pointer it came from is at hand.
func sliceAt[E any](addr uintptr, n int) []E {
	if n <= 0 {
		return nil
	}
	return unsafe.Slice((*E)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// addressOf is that of the first byte of b.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
