package allocatortest

import (
	"errors"
	"fmt"
	"sync"

	"mlpool/allocator"
)

// A Guard is an Allocator that uses every block of another one on the Fake when
// it is handed out and again just before it is freed, and faults if two blocks
// that are handed out overlap.
type Guard struct {
	allocator.Allocator
	fake *Fake

	mu     sync.Mutex
	owners map[allocator.Block]uint64
	next   uint64
}

// NewGuard returns a behind a guard on f.
func NewGuard(a allocator.Allocator, f *Fake) *Guard {
	return &Guard{Allocator: a, fake: f, owners: map[allocator.Block]uint64{}}
}

// Alloc implements allocator.Allocator.
func (g *Guard) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	b, err := g.Allocator.Alloc(bytes, s, tag)
	if err != nil {
		return b, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next++
	g.owners[b] = g.next
	return b, g.fake.own(b.Addr, max(b.Size, 1), s, g.next)
}

// Use queues work on b.
func (g *Guard) Use(b allocator.Block, s allocator.Stream) error {
	g.mu.Lock()
	owner, live := g.owners[b]
	g.mu.Unlock()
	if !live {
		return fmt.Errorf("allocatortest: block at %#x is used after it was freed", b.Addr)
	}
	return g.fake.Use(b.Addr, max(b.Size, 1), s, owner)
}

// Free implements allocator.Allocator.
func (g *Guard) Free(b allocator.Block, s allocator.Stream) error {
	g.mu.Lock()
	owner, live := g.owners[b]
	delete(g.owners, b)
	if live {
		g.fake.disown(owner)
	}
	g.mu.Unlock()
	if live {
		if err := g.fake.Use(b.Addr, max(b.Size, 1), s, owner); err != nil {
			return err
		}
	}
	err := g.Allocator.Free(b, s)
	if err != nil && live {
		g.mu.Lock()
		g.owners[b] = owner
		g.fake.reown(owner)
		g.mu.Unlock()
	}
	return err
}

// RecordStream passes the call on, if the allocator has it, and else is
// errors.ErrUnsupported.
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
	clear(g.owners)
	g.mu.Unlock()
	return g.Allocator.Close()
}

// Unwrap returns the guarded allocator.
func (g *Guard) Unwrap() allocator.Allocator { return g.Allocator }
