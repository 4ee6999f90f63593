package main

import "mlpool/allocator"

func liveCases(bool) []testCase {
	return []testCase{{"1000 x 1 MiB", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		blocks := make([]allocator.Block, 1000)
		if b.quick {
			blocks = blocks[:quickOps]
		}
		round := func() (int64, error) {
			n := 0
			for n < len(blocks) && !b.over.Load() {
				var err error
				if blocks[n], err = b.a.Alloc(mib, s, "live"); err != nil {
					return int64(n), err
				}
				n++
			}
			b.holds(int64(n) * mib)
			for _, block := range blocks[:n] {
				if err := b.a.Free(block, s); err != nil {
					return int64(n), err
				}
			}
			return 2 * int64(n), nil
		}
		if err := b.measure("1000 x 1 MiB cold", "call", 1, round); err != nil {
			return err
		}
		return b.measure("1000 x 1 MiB warm", "call", 1, b.repeated(round))
	}}}
}
