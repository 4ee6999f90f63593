package kernels

import (
	"sync/atomic"
	"unsafe"
)

const (
	// MaxRanks is the largest number of ranks of an Exchange.
	MaxRanks = 16
	// ExchangeFlags is the number of bytes that Exchange uses at the begin of shared memory.
	ExchangeFlags = 256
)

// An Exchange adds the updates of all ranks to the weights of all ranks: w[N] += the sum over the ranks of x[N], in
// their order. All ranks have the same weights before it and after it, bit for bit. Each computes one part of them.
type Exchange struct {
	// Shared is where this rank reaches the memory of [NewShared] of each rank. After the flags, which only exchanges
	// write, each has weights and updates, both at the same place in all of them: Weights and Updates count in bytes
	// from its begin, and are multiples of 16.
	Shared           []uintptr
	Rank             int
	Weights, Updates int
	N                int  // a multiple of 64 times the number of ranks
	Stop             Word // once it is set, kernels that wait for another rank end
}

// Exchange queues an exchange. All ranks call it in the same order, on one stream each. It ends once all of them have
// stored their part of the weights everywhere. Its CTAs are as small as those of AddUpdates.
func (s Stream) Exchange(e Exchange) error { return s.exchange(e) }

// A SharedHandle stands for memory of NewShared in other processes (cudaIpcMemHandle_t).
type SharedHandle [64]byte

// NewShared allocates memory that other processes of this host can open. It is filled with zeros.
func NewShared(bytes int64) (addr uintptr, h SharedHandle, err error) { return newShared(bytes) }

// FreeShared frees what NewShared returned. No process may have it open.
func FreeShared(addr uintptr) error { return freeShared(addr) }

// OpenShared opens the memory of another process, by a GPU that can reach the memory of that process's GPU.
func OpenShared(h SharedHandle) (addr uintptr, err error) { return openShared(h) }

// CloseShared closes what OpenShared returned.
func CloseShared(addr uintptr) error { return closeShared(addr) }

// A Word is a uint32 of the host that kernels read.
type Word uintptr

// NewWord allocates a word, which is 0.
func NewWord() (Word, error) {
	addr, err := newWord()
	return Word(addr), err
}

// Set makes the word 1.
func (w Word) Set() {
	atomic.StoreUint32(*(**uint32)(unsafe.Pointer(&w)), 1)
}

// Free frees the word. No kernel may read it any more.
func (w Word) Free() error { return freeWord(uintptr(w)) }
