package kernels

// Filler writes and compares device memory in words of 4 bytes. Addresses and sizes are
// multiples of 4. The zero value is ready for use.
type Filler struct{}

// Fill sets every word of a range to value, in the order of the stream.
func (Filler) Fill(addr uintptr, value uint32, bytes int64, stream uintptr) error {
	return Stream(stream).fillWords(addr, value, bytes)
}

// Differing counts the words of a range that are not value, in the order of the
// stream, and waits for the answer.
func (Filler) Differing(addr uintptr, value uint32, bytes int64, stream uintptr) (int64, error) {
	return Stream(stream).differing(addr, value, bytes)
}

// Move copies words, with a kernel that starts while the one before it runs (see [Prefetch]). If
// early, the first words are read before griddepcontrol.wait: the kernel queued just before must not
// write them.
func (s Stream) Move(dst, src uintptr, bytes int64, early bool) error {
	return s.move(dst, src, bytes, early)
}

// Checksum waits for the stream, and returns a sum over bytes/4 words, each hashed with its
// index: see Checksum in package ref.
func (s Stream) Checksum(addr uintptr, bytes int64) (uint64, error) { return s.checksum(addr, bytes) }

// Spin keeps the stream busy for a number of cycles of the GPU, at most 2e9 or
// about a second, with a kernel of one thread.
func (s Stream) Spin(cycles int64) error { return s.spin(cycles) }
