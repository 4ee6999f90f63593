package allocatortest

import (
	"errors"
	"fmt"
	"testing"

	"mlpool/allocator"
)

// NewEnv returns the Env of an allocator on f, behind a [Guard] and with every hook, so that
// Run checks the order of each reuse.
func NewEnv(t *testing.T, f *Fake, a allocator.Allocator) *Env {
	t.Helper()
	g := NewGuard(a, f)
	return &Env{
		Allocator: g,
		Streams:   []allocator.Stream{0, 7, 0x5000, 0x6000_0000},
		Limit:     min(f.Total(), 1<<30),
		Use:       g.Use,
		Fill: func(b allocator.Block, s allocator.Stream, id byte) error {
			if err := g.Use(b, s); err != nil {
				return err
			}
			return f.Set(b.Addr, id, b.Size)
		},
		Verify: func(b allocator.Block, s allocator.Stream, id byte) error {
			switch others, err := f.Other(b.Addr, id, b.Size); {
			case err != nil:
				return err
			case others != 0:
				return fmt.Errorf("%d of %d bytes are not %d", others, b.Size, id)
			}
			return g.Use(b, s)
		},
		Order: func(from, to allocator.Stream) error {
			f.Order(from, to)
			return nil
		},
		Sync: func() error {
			f.Synchronize()
			return nil
		},
		Closed: func() error { return errors.Join(f.Faults(), f.Leftover()) },
	}
}
