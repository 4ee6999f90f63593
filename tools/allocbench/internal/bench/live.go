package bench

import "mlpool/allocator"

func liveCases(bool) []Case {
	return []Case{{Name: "1000 x 1 MiB", Streams: 1, Run: func(b *Bench) error {
		s := b.Streams[0]
		blocks := make([]allocator.Block, 1000)
		if b.Quick {
			blocks = blocks[:quickOps]
		}
		round := func() (int64, error) {
			n := 0
			for n < len(blocks) && !b.Over.Load() {
				var err error
				if blocks[n], err = b.A.Alloc(MiB, s, "live"); err != nil {
					return int64(n), err
				}
				n++
			}
			b.Holds(int64(n) * MiB)
			for _, block := range blocks[:n] {
				if err := b.A.Free(block, s); err != nil {
					return int64(n), err
				}
			}
			return 2 * int64(n), nil
		}
		if err := b.Measure("1000 x 1 MiB cold", "call", 1, round); err != nil {
			return err
		}
		return b.Measure("1000 x 1 MiB warm", "call", 1, b.Repeated(round))
	}}}
}
