package allocatortest

import (
	"errors"
	"fmt"
	"sync"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest/fake"
)

// A Guard is an Allocator that tells a Fake of every block of another one. It queues work
// on the block after Alloc and, unless the allocator is asleep, before Free.
type Guard struct {
	allocator.Allocator
	fake *Fake

	mu     sync.Mutex
	owners map[allocator.Block]fake.Owner // of live blocks
}

// NewGuard returns a behind a guard on f.
func NewGuard(a allocator.Allocator, f *Fake) *Guard {
	return &Guard{Allocator: a, fake: f, owners: map[allocator.Block]fake.Owner{}}
}

// Alloc implements allocator.Allocator.
func (g *Guard) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	b, err := g.Allocator.Alloc(bytes, s, tag)
	if err != nil {
		return b, err
	}
	return b, g.handedOut(b, s)
}

// AllocAligned calls the allocator's, or returns errors.ErrUnsupported.
func (g *Guard) AllocAligned(bytes, alignment int64, s allocator.Stream, tag string) (allocator.Block, error) {
	a, ok := allocator.As[allocator.AlignedAllocator](g.Allocator)
	if !ok {
		return allocator.Block{}, errors.ErrUnsupported
	}
	b, err := a.AllocAligned(bytes, alignment, s, tag)
	if err != nil {
		return b, err
	}
	return b, g.handedOut(b, s)
}

// handedOut tells the Fake of b, which the allocator returned.
func (g *Guard) handedOut(b allocator.Block, s allocator.Stream) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.owners[b], err = g.fake.HandedOut(b.Addr, b.Size, s)
	return err
}

// Use queues work on b.
func (g *Guard) Use(b allocator.Block, s allocator.Stream) error {
	g.mu.Lock()
	o, live := g.owners[b]
	g.mu.Unlock()
	if !live {
		return fmt.Errorf("allocatortest: block at %#x is used after it was freed", b.Addr)
	}
	return g.fake.Work(o, s)
}

// Free implements allocator.Allocator.
func (g *Guard) Free(b allocator.Block, s allocator.Stream) error {
	g.mu.Lock()
	o, live := g.owners[b]
	delete(g.owners, b)
	g.mu.Unlock()
	if !live {
		return g.Allocator.Free(b, s)
	}
	if !g.fake.IsAsleep() {
		if err := g.fake.Work(o, s); err != nil {
			return err
		}
	}
	g.fake.Freeing(o)
	if err := g.Allocator.Free(b, s); err != nil {
		g.mu.Lock()
		g.owners[b] = o
		g.mu.Unlock()
		return errors.Join(err, g.fake.Kept(o))
	}
	g.fake.Freed(o)
	return nil
}

// RecordStream calls the allocator's, or returns errors.ErrUnsupported.
func (g *Guard) RecordStream(b allocator.Block, s allocator.Stream) error {
	r, ok := allocator.As[allocator.StreamRecorder](g.Allocator)
	if !ok {
		return errors.ErrUnsupported
	}
	return r.RecordStream(b, s)
}

// Close implements allocator.Allocator. No block is live afterwards.
func (g *Guard) Close() error {
	g.mu.Lock()
	for _, o := range g.owners {
		g.fake.Freed(o)
	}
	clear(g.owners)
	g.mu.Unlock()
	return g.Allocator.Close()
}

// Unwrap returns the guarded allocator.
func (g *Guard) Unwrap() allocator.Allocator { return g.Allocator }
