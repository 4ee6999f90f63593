package allocatortest

import (
	"bytes"
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
			return f.Write(b.Addr, bytes.Repeat([]byte{id}, int(b.Size)))
		},
		Verify: func(b allocator.Block, s allocator.Stream, id byte) error {
			memory, err := f.Read(b.Addr, b.Size)
			if err != nil {
				return err
			}
			if right := bytes.Count(memory, []byte{id}); right != len(memory) {
				return fmt.Errorf("%d of %d bytes are not %d", len(memory)-right, len(memory), id)
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
