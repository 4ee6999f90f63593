package device

import (
	"fmt"

	"mlpool/allocator"
)

var _ allocator.Filler = (*HostDriver)(nil)

// Fill and Differing: see [allocator.Filler].
func (d *HostDriver) Fill(addr uintptr, value uint32, bytes int64, _ uintptr) error {
	words, err := wordsAt(addr, bytes)
	for i := range words {
		words[i] = value
	}
	return err
}

func (d *HostDriver) Differing(addr uintptr, value uint32, bytes int64, _ uintptr) (n int64, err error) {
	words, err := wordsAt(addr, bytes)
	for _, w := range words {
		if w != value {
			n++
		}
	}
	return n, err
}

func wordsAt(addr uintptr, bytes int64) ([]uint32, error) {
	if addr%4 != 0 || bytes%4 != 0 || bytes < 0 {
		return nil, fmt.Errorf("device: %d bytes at %#x are not words of 4 bytes", bytes, addr)
	}
	return sliceAt[uint32](addr, int(bytes/4)), nil
}
