package kernels

import (
	"sync/atomic"
	"unsafe"
)

const (
	// MaxRanks is the largest number of ranks of an Exchange.
	MaxRanks = 16
	// ExchangeFlags is the number of bytes that Exchange uses at the beginning of each rank's memory.
	ExchangeFlags = 256
)

// An Exchange adds the updates of all ranks to weights: w[N] += the sum of x[N] over the ranks, in the
// order of the ranks. Each rank computes one part of w, N/ranks elements in the order of the ranks, and
// stores it. Without Rounded it stores its part in the memory of all ranks, so that all have the same
// weights, bit for bit. With Rounded it stores its part only in its own memory, and rounded to bf16 in the
// memory of all ranks. This is enough if GEMMs read only the rounded weights, and moves a quarter less.
type Exchange struct {
	// Memory has the address of each rank's memory of [NewIPC], as this rank opened it. At its beginning
	// are flags, which only exchanges write. Weights, Updates and Rounded are the offsets in bytes of the
	// weights, the updates and the weights in bf16. They are the same in the memory of all ranks, and
	// multiples of 16.
	Memory           []uintptr
	Rank             int
	Weights, Updates int
	Rounded          int // or 0
	N                int // a multiple of 64 times the number of ranks, up to 2^32
	// Abort is a flag that ends kernels that wait for another rank. They leave their work undone.
	Abort AbortFlag
}

// Exchange queues an exchange: a two-shot all-reduce (reduce-scatter, then all-gather) over peer memory.
// All ranks queue the same exchanges in the same order. An exchange must have ended on a rank before the
// rank's next one begins. The kernel ends when all ranks have stored their parts. Its CTAs are so small
// that they run beside those of the largest GEMMs, on another stream.
func (s Stream) Exchange(e Exchange) error { return s.exchange(e) }

// An IPCHandle stands for memory of NewIPC in other processes (cudaIpcMemHandle_t).
type IPCHandle [64]byte

// NewIPC allocates memory that other processes of this host can open. It is filled with zeros.
func NewIPC(bytes int64) (addr uintptr, h IPCHandle, err error) { return newIPC(bytes) }

// FreeIPC frees what NewIPC returned. No process may have it open.
func FreeIPC(addr uintptr) error { return freeIPC(addr) }

// OpenIPC opens the memory of another process. The GPU must reach the memory of that process's GPU.
func OpenIPC(h IPCHandle) (addr uintptr, err error) { return openIPC(h) }

// CloseIPC closes what OpenIPC returned.
func CloseIPC(addr uintptr) error { return closeIPC(addr) }

// An AbortFlag is a uint32 of the host that kernels read.
type AbortFlag uintptr

// NewAbortFlag allocates a flag, which is not set.
func NewAbortFlag() (AbortFlag, error) {
	addr, err := newAbortFlag()
	return AbortFlag(addr), err
}

// Set sets the flag.
func (f AbortFlag) Set() { atomic.StoreUint32(*(**uint32)(unsafe.Pointer(&f)), 1) }

// Free frees the flag. No kernel may read it any more.
func (f AbortFlag) Free() error { return freeAbortFlag(uintptr(f)) }
