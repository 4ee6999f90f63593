package kernels

import (
	"sync/atomic"
	"unsafe"
)

const (
	// MaxRanks is the largest number of ranks of an Exchange.
	MaxRanks = 16
	// ExchangeFlags is the number of bytes that Exchange uses at the begin of each rank's memory.
	ExchangeFlags = 256
)

// An Exchange adds the updates of all ranks to weights: w[N] += the sum over the ranks of x[N], in their order. Each rank
// computes one part of w, N/ranks elements in the order of the ranks, from its own memory. Without Rounded all ranks get
// all parts, so they have the same weights, bit for bit. With Rounded each keeps its part, and all get the new weights in
// bf16: enough where GEMMs read only these, and a quarter less to move.
type Exchange struct {
	// Memory is where this rank reaches the memory of [NewIPC] of each rank. After the flags, which only exchanges
	// write, each has weights, updates and perhaps weights in bf16, at the same places in all of them: Weights, Updates and
	// Rounded count in bytes from its begin, and are multiples of 16.
	Memory           []uintptr
	Rank             int
	Weights, Updates int
	Rounded          int       // or 0
	N                int       // a multiple of 64 times the number of ranks, up to 2^32
	Abort            AbortFlag // once it is set, kernels that wait for another rank end, and leave their work undone
}

// Exchange queues an exchange: a two-shot all-reduce, reduce-scatter and all-gather, over peer memory. All ranks call it
// in the same order, and each one only after the one before it has ended. It ends once all of them have stored their part
// of the weights everywhere. Its CTAs are so small that they run while those of the largest GEMMs do, on another stream.
func (s Stream) Exchange(e Exchange) error { return s.exchange(e) }

// An IPCHandle stands for memory of NewIPC in other processes (cudaIpcMemHandle_t).
type IPCHandle [64]byte

// NewIPC allocates memory that other processes of this host can open. It is filled with zeros.
func NewIPC(bytes int64) (addr uintptr, h IPCHandle, err error) { return newIPC(bytes) }

// FreeIPC frees what NewIPC returned. No process may have it open.
func FreeIPC(addr uintptr) error { return freeIPC(addr) }

// OpenIPC opens the memory of another process, by a GPU that can reach the memory of that process's GPU.
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
