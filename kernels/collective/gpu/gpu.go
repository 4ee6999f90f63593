// Package gpu is a [collective.Collective] on GPUs: NCCL's all-reduce, and exchanges of updates by a kernel of
// package kernels on GPUs of one host, which reach each other's memory.
package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	leave func() // stops waiting for the end of the ranks
	all   []memory

	mu   sync.Mutex
	stop kernels.Word // ends exchanges that wait; 0 before the first AllocSymmetric
}

var _ collective.Collective = (*Comm)(nil)

// memory is what AllocSymmetric returned.
type memory struct {
	ranks []uintptr // where this rank reaches that of each
	bytes int
}

// Connect makes a communicator of ranks, as [nccl.Connect] does.
func Connect(ctx context.Context, ranks nccl.Ranks, rank, size int, within time.Duration) (*Comm, error) {
	n, err := nccl.Connect(ctx, ranks, rank, size, within)
	if err != nil {
		return nil, err
	}
	c := &Comm{Comm: n, ranks: ranks}
	c.leave = ranks.OnEnd(func(error) { c.stopExchanges() })
	return c, nil
}

func (c *Comm) stopExchanges() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != 0 {
		c.stop.Set()
	}
}

// Abort ends exchanges too.
func (c *Comm) Abort(reason error) {
	c.stopExchanges()
	c.Comm.Abort(reason)
}

// Close: see [collective.Collective].
func (c *Comm) Close() error {
	c.leave()
	ended := c.Err() != nil
	err := c.Comm.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == 0 || ended {
		return err // after an Abort a kernel may still read the word
	}
	stop := c.stop
	c.stop = 0
	return errors.Join(err, stop.Free())
}

// AllocSymmetric needs GPUs of one host that reach each other's memory.
func (c *Comm) AllocSymmetric(size int) (addr uintptr, free func() error, err error) {
	if c.Apart() || c.Size() > kernels.MaxRanks {
		return 0, nil, fmt.Errorf("memory of several hosts, or more than %d ranks: %w", kernels.MaxRanks, errors.ErrUnsupported)
	}
	m, err := c.open(kernels.ExchangeFlags + size)
	if err != nil {
		return 0, nil, err
	}
	c.all = append(c.all, m)
	return m.ranks[c.Rank()] + kernels.ExchangeFlags, func() error {
		if c.Err() != nil {
			return nil // queued work of other ranks may still use the memory
		}
		return c.close(m)
	}, nil
}

// open allocates memory, and opens that of the other ranks. All get an error if one of them does.
func (c *Comm) open(size int) (memory, error) {
	m := memory{make([]uintptr, c.Size()), size}
	handle, err := c.allocate(&m)
	mine := handle[:]
	if err != nil {
		mine = nil
	}
	join := func(all [][]byte) ([]byte, error) { return bytes.Join(all, nil), nil }
	all, ended := c.ranks.Exchange("shared memory", mine, join)
	if ended != nil {
		return m, ended
	}
	if err == nil && len(all) != len(handle)*c.Size() {
		err = errors.New("another rank has none")
	}
	for rank := 0; rank < c.Size() && err == nil; rank++ {
		if rank != c.Rank() {
			m.ranks[rank], err = kernels.OpenShared(kernels.SharedHandle(all[rank*len(handle):]))
		}
	}
	mine = nil
	if err != nil {
		mine = []byte{1}
	}
	failed, ended := c.ranks.Exchange("opened memory", mine, join)
	switch {
	case ended != nil:
		return m, ended
	case len(failed) == 0:
		return m, nil
	case err == nil:
		err = errors.New("another rank cannot open it")
	}
	return m, errors.Join(fmt.Errorf("memory that GPUs share: %w: %w", errors.ErrUnsupported, err), c.close(m))
}

// allocate allocates this rank's memory, and the word.
func (c *Comm) allocate(m *memory) (handle kernels.SharedHandle, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop == 0 {
		if c.stop, err = kernels.NewWord(); err != nil {
			return handle, err
		}
	}
	m.ranks[c.Rank()], handle, err = kernels.NewShared(int64(m.bytes))
	return handle, err
}

// close closes the memory of other ranks, and frees this rank's once they have closed it too.
func (c *Comm) close(m memory) (err error) {
	for rank, addr := range m.ranks {
		if rank != c.Rank() && addr != 0 {
			err = errors.Join(err, kernels.CloseShared(addr))
		}
	}
	if _, ended := c.ranks.Exchange("closed memory", nil, func([][]byte) ([]byte, error) { return nil, nil }); ended != nil {
		return errors.Join(err, ended)
	}
	if addr := m.ranks[c.Rank()]; addr != 0 {
		err = errors.Join(err, kernels.FreeShared(addr))
	}
	return err
}

// Exchange: see [collective.Collective].
func (c *Comm) Exchange(w, x uintptr, n int, stream uintptr) error {
	if err := c.Err(); err != nil {
		return err
	}
	for _, m := range c.all {
		first := m.ranks[c.Rank()]
		if min(w, x) < first || max(w, x)+uintptr(4*n) > first+uintptr(m.bytes) {
			continue
		}
		return kernels.Stream(stream).Exchange(kernels.Exchange{
			Shared: m.ranks, Rank: c.Rank(), Weights: int(w - first), Updates: int(x - first), N: n, Stop: c.stop,
		})
	}
	return errors.New("an exchange of arrays that are not in memory of one AllocSymmetric")
}
