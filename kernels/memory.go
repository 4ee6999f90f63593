package kernels

// Filler writes and compares device memory in words of 4 bytes. Addresses and sizes are
// multiples of 4. The zero value is ready for use.
type Filler struct{}
