//go:build !cuda

package kernels

// Fill sets every word of 4 bytes of a range to value, in the order of the
// stream.
func (Filler) Fill(addr uintptr, value uint32, bytes int64, stream uintptr) error { return ErrNoCUDA }

// Differing counts the words of 4 bytes of a range that are not value, in the
// order of the stream, and waits for the answer.
func (Filler) Differing(addr uintptr, value uint32, bytes int64, stream uintptr) (int64, error) {
	return 0, ErrNoCUDA
}

// Spin keeps the stream busy for a number of cycles of the GPU, at most 2e9 or
// about a second, with a kernel of one thread.
func (s Stream) Spin(cycles int64) error { return ErrNoCUDA }
