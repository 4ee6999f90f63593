// Package gpu is a [collective.Collective] on GPUs: NCCL's all-reduce, and exchanges of updates. GPUs of
// one host that reach each other's memory exchange by a kernel of package kernels, others by NCCL.
package gpu

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"mlpool/kernels"
	"mlpool/kernels/collective"
	"mlpool/kernels/nccl"
)

// A Comm is a rank on the current GPU of the process.
type Comm struct {
	*nccl.Comm
	ranks nccl.Ranks
	leave func()    // stops waiting for the end of the ranks
	all   []*memory // of AllocSymmetric, until Close

	mu sync.Mutex
	// err is why the ranks were aborted. It is set before abort, so that nobody takes what an aborted exchange
	// left for its result.
	err   error
	abort kernels.AbortFlag // ends exchanges that wait; 0 before the first AllocSymmetric
}

var _ collective.Collective = (*Comm)(nil)

// memory is what AllocSymmetric returned.
type memory struct {
	ranks []uintptr // where this rank reaches that of each
	bytes int
	freed bool
}

// Connect makes a communicator of ranks, as [nccl.Connect] does.
func Connect(ctx context.Context, ranks nccl.Ranks, rank, size int, within time.Duration) (*Comm, error) {
	n, err := nccl.Connect(ctx, ranks, rank, size, within)
	if err != nil {
		return nil, err
	}
	c := &Comm{Comm: n, ranks: ranks}
	c.leave = ranks.OnEnd(c.endExchanges)
	return c, nil
}

func (c *Comm) endExchanges(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = cmp.Or(c.err, reason)
	if c.abort != 0 {
		c.abort.Set()
	}
}

// Err and the methods after it: see [collective.Collective].
func (c *Comm) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.err, c.Comm.Err())
}

func (c *Comm) Abort(reason error) {
	c.endExchanges(reason)
	c.Comm.Abort(reason)
}

// Close waits for the other ranks before it frees memory that they may still use. After an Abort that
// memory, and the flag that kernels may still read, stay until the process ends.
func (c *Comm) Close() (err error) {
	if c.Err() == nil {
		for _, m := range c.all {
			err = errors.Join(err, c.close(m))
		}
	}
	c.leave()
	ended := c.Err() != nil
	err = errors.Join(err, c.Comm.Close())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abort != 0 && !ended {
		err = errors.Join(err, c.abort.Free())
		c.abort = 0
	}
	return err
}

// AllocSymmetric needs GPUs of one host that reach each other's memory, and no NCCL_P2P_DISABLE=1.
func (c *Comm) AllocSymmetric(size int) (addr uintptr, free func() error, err error) {
	if c.AcrossHosts() || c.Size() > kernels.MaxRanks {
		return 0, nil, fmt.Errorf("memory of several hosts, or of more than %d ranks: %w", kernels.MaxRanks, errors.ErrUnsupported)
	}
	m, err := c.open(kernels.ExchangeFlags + size)
	if err != nil {
		return 0, nil, err
	}
	c.all = append(c.all, m)
	return m.ranks[c.Rank()] + kernels.ExchangeFlags, func() error {
		m.freed = true // Close closes it: an error of this rank alone must not wait for the others here
		return nil
	}, nil
}

// open allocates memory, opens that of the other ranks, and tries an exchange in it. All get an error if
// one of them does.
func (c *Comm) open(size int) (*memory, error) {
	m := &memory{ranks: make([]uintptr, c.Size()), bytes: size}
	handle, err := c.allocate(m)
	all, err, ended := c.agree("memory of an exchange", handle[:], err)
	if ended != nil {
		return nil, ended
	}
	for rank := 0; rank < c.Size() && err == nil; rank++ {
		if rank != c.Rank() {
			m.ranks[rank], err = kernels.OpenIPC(kernels.IPCHandle(all[rank*len(handle):]))
		}
	}
	if _, err, ended = c.agree("opened memory of an exchange", []byte{1}, err); ended != nil {
		return nil, ended
	}
	if err == nil {
		arrives, fault := c.try(m)
		if fault != nil {
			return nil, fault
		}
		if !arrives {
			err = errors.New("what one GPU writes to the memory of another is lost: see PCI access control services (ACS) in NCCL's documentation")
		}
		if _, err, ended = c.agree("an exchange", []byte{1}, err); ended != nil {
			return nil, ended
		}
	}
	if err == nil {
		return m, nil
	}
	if ended := c.close(m); ended != nil {
		return nil, ended
	}
	if failed := (*kernels.Error)(nil); errors.As(err, &failed) && failed.OutOfMemory() {
		return nil, err
	}
	return nil, fmt.Errorf("memory that GPUs share: %w: %w", errors.ErrUnsupported, err)
}

// agree returns what all ranks say, one after the other. A rank with an error says nothing, and then all
// have one. ended is the reason if the ranks have ended.
func (c *Comm) agree(what string, mine []byte, err error) (all []byte, failed, ended error) {
	each := len(mine)
	if err != nil {
		mine = nil
	}
	all, ended = c.ranks.Exchange(what, mine, func(all [][]byte) ([]byte, error) { return bytes.Join(all, nil), nil })
	if err == nil && len(all) != each*c.Size() {
		err = errors.New("another rank has none")
	}
	return all, err, ended
}

// allocate allocates this rank's memory, and the flag.
func (c *Comm) allocate(m *memory) (handle kernels.IPCHandle, err error) {
	if os.Getenv("NCCL_P2P_DISABLE") == "1" {
		return handle, errors.New("NCCL_P2P_DISABLE=1")
	}
	if c.abort == 0 {
		flag, err := kernels.NewAbortFlag()
		if err != nil {
			return handle, err
		}
		c.mu.Lock()
		c.abort = flag
		if c.err != nil {
			flag.Set()
		}
		c.mu.Unlock()
	}
	m.ranks[c.Rank()], handle, err = kernels.NewIPC(int64(m.bytes))
	return handle, err
}

// try exchanges known numbers, and reports whether they arrive: some hosts let GPUs map each other's
// memory, and then lose what they write. It leaves zeros.
func (c *Comm) try(m *memory) (arrive bool, err error) {
	n := 64 * c.Size()
	w := m.ranks[c.Rank()] + kernels.ExchangeFlags
	if kernels.ExchangeFlags+2*4*n > m.bytes {
		return true, nil // too little memory
	}
	stream, err := kernels.NewStream()
	if err != nil {
		return false, err
	}
	all := func(v int) (raw []byte) {
		for range n {
			raw = binary.NativeEndian.AppendUint32(raw, math.Float32bits(float32(v)))
		}
		return raw
	}
	got := make([]byte, 4*n)
	err = errors.Join(stream.Upload(w+uintptr(4*n), all(c.Rank()+1)), c.exchange(m, collective.Updates{W: w, X: w + uintptr(4*n), N: n}, stream.Handle()),
		stream.Download(got, w), stream.Upload(w, make([]byte, 2*4*n)), stream.Close())
	return bytes.Equal(got, all(c.Size()*(c.Size()+1)/2)), cmp.Or(c.Err(), err)
}

// close closes the memory of other ranks, and frees this rank's once they have closed it too.
func (c *Comm) close(m *memory) (err error) {
	for rank, addr := range m.ranks {
		if rank != c.Rank() && addr != 0 {
			err = errors.Join(err, kernels.CloseIPC(addr))
		}
	}
	if _, _, ended := c.agree("the end of an exchange", nil, nil); ended != nil {
		return errors.Join(err, ended)
	}
	if addr := m.ranks[c.Rank()]; addr != 0 {
		err = errors.Join(err, kernels.FreeIPC(addr))
	}
	return err
}

// Exchange is a kernel that reads and writes the memory of other GPUs if the arrays are in memory of
// AllocSymmetric, else NCCL's reduce-scatter and all-gather, and between them kernels that change this
// rank's part of the weights. It is an error if only a part of the arrays is in such memory, or if that was
// freed.
func (c *Comm) Exchange(u collective.Updates, stream uintptr) error {
	if err := c.Err(); err != nil {
		return err
	}
	for _, m := range c.all {
		first := m.ranks[c.Rank()]
		has := func(addr uintptr, bytes int) bool {
			return first <= addr && addr+uintptr(bytes) <= first+uintptr(m.bytes)
		}
		switch {
		case !has(u.W, 1) && !has(u.X, 1) && !has(u.Rounded, 1):
			continue
		case m.freed:
			return errors.New("an exchange in memory that was freed")
		case !has(u.W, 4*u.N) || !has(u.X, 4*u.N) || u.Rounded != 0 && !has(u.Rounded, 2*u.N):
			return errors.New("an exchange of arrays that are not in memory of one AllocSymmetric")
		}
		return c.exchange(m, u, stream)
	}
	return c.exchangeByNCCL(u, stream)
}

// exchangeByNCCL adds updates up in an order that is NCCL's.
func (c *Comm) exchangeByNCCL(u collective.Updates, stream uintptr) error {
	if u.N%(64*c.Size()) != 0 {
		return fmt.Errorf("an exchange of %d updates, which is no multiple of 64 for each of %d ranks", u.N, c.Size())
	}
	n := u.N / c.Size()
	part := func(addr uintptr, size int) uintptr { return addr + uintptr(c.Rank()*n*size) }
	w, s := part(u.W, 4), kernels.Stream(stream)
	if err := c.ReduceScatter(u.X, n, stream); err != nil {
		return err
	}
	if err := s.Step(w, part(u.X, 4), -1, n); err != nil { // w += x
		return err
	}
	if u.Rounded == 0 {
		return c.AllGather(u.W, 4*n, stream)
	}
	if err := s.Round(kernels.BF16, part(u.Rounded, 2), w, n); err != nil {
		return err
	}
	return c.AllGather(u.Rounded, 2*n, stream)
}

func (c *Comm) exchange(m *memory, u collective.Updates, stream uintptr) error {
	first := m.ranks[c.Rank()]
	e := kernels.Exchange{Memory: m.ranks, Rank: c.Rank(), Weights: int(u.W - first), Updates: int(u.X - first), N: u.N, Abort: c.abort}
	if u.Rounded != 0 {
		e.Rounded = int(u.Rounded - first)
	}
	return kernels.Stream(stream).Exchange(e)
}
