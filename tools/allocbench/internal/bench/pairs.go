package bench

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/internal/text"
)

// pair allocates and frees a block.
func (b *Bench) pair(bytes int64, s allocator.Stream) error {
	block, err := b.A.Alloc(bytes, s, "pair")
	if err != nil {
		return err
	}
	return b.A.Free(block, s)
}

// pairs does n pairs, or fewer if the time is up, with the given sizes in turn.
func (b *Bench) pairs(n int64, s allocator.Stream, sizes ...int64) (int64, error) {
	at := 0
	for i := range n {
		if b.Over.Load() {
			return i, nil
		}
		if err := b.pair(sizes[at], s); err != nil {
			return i, err
		}
		if at++; at == len(sizes) {
			at = 0
		}
	}
	return n, nil
}

// measurePairs measures pairs of the given sizes in turn, and returns how many a row has.
func (b *Bench) measurePairs(name string, sizes ...int64) (n int64, err error) {
	pairs := func(n int64) (int64, error) { return b.pairs(n, b.Streams[0], sizes...) }
	if n, err = b.count(pairs); err != nil {
		return 0, err
	}
	b.Holds(slices.Max(sizes))
	return n, b.Measure(name, "pair", 1, func() (int64, error) { return pairs(n) })
}

func pairCases(bool) []Case {
	var cases []Case
	for _, size := range []int64{512, 4 * KiB, 64 * KiB, MiB, 16 * MiB, 64 * MiB} {
		name := SizeName(size)
		cases = append(cases, Case{Name: name, Streams: 1, Run: func(b *Bench) error {
			n, err := b.measurePairs(name, size)
			if err != nil {
				return err
			}
			if !b.Quick {
				n = min(max(n, leastTime), mostTimed)
			}
			return b.percentiles(n, func() error { return b.pair(size, b.Streams[0]) })
		}})
	}
	return cases
}

func throughputCases(quick bool) []Case {
	n := int64(10_000)
	if quick {
		n = quickOps
	}
	return []Case{{Name: "10k x 1 MiB", Streams: 1, Run: func(b *Bench) error {
		s := b.Streams[0]
		if _, err := b.pairs(100, s, MiB); err != nil {
			return err
		}
		b.Holds(MiB)
		return b.Measure("10k x 1 MiB", "pair", 1, func() (int64, error) { return b.pairs(n, s, MiB) })
	}}}
}

func mixedCases(bool) []Case {
	var sizes []int64
	for size := int64(64 * KiB); size <= 16*MiB; size *= 2 {
		sizes = append(sizes, size)
	}
	return []Case{{Name: "64 KiB - 16 MiB", Streams: 1, Run: func(b *Bench) error {
		_, err := b.measurePairs("64 KiB - 16 MiB", sizes...)
		return err
	}}}
}

func threadCases(bool) []Case { return concurrent([]int{1, 2, 4, 8, 16}, false, MiB) }

func sharedCases(bool) []Case { return concurrent([]int{1, 2, 4, 8, 16}, true, MiB) }

func tfThreadedCases(bool) []Case {
	return concurrent([]int{1, 4, 16}, true, 256, 4096, 16384, 524288, 512, 1048576)
}

// concurrent are pairs on several threads, which share one stream or have one each.
func concurrent(threads []int, shared bool, sizes ...int64) []Case {
	var cases []Case
	for _, n := range threads {
		name := text.Count(n, "thread")
		cases = append(cases, Case{Name: name, Streams: n, Run: func(b *Bench) error {
			streams := b.Streams
			for i := range streams {
				if shared {
					streams[i] = streams[0]
				}
			}
			if err := b.holdAll(streams, slices.Max(sizes)); err != nil {
				return err
			}
			each, err := b.count(func(n int64) (int64, error) { return b.onThreads(n, streams, sizes...) })
			if err != nil {
				return err
			}
			if !b.Quick {
				each = max(each/int64(n), leastOps)
			}
			return b.Measure(name, "pair", n, func() (int64, error) { return b.onThreads(each, streams, sizes...) })
		}})
	}
	return cases
}

// onThreads does n pairs on each of len(streams) goroutines, the i-th on streams[i].
func (b *Bench) onThreads(n int64, streams []allocator.Stream, sizes ...int64) (int64, error) {
	type result struct {
		ops int64
		err error
	}
	results := make(chan result, len(streams))
	for _, s := range streams {
		go func() {
			ops, err := b.pairs(n, s, sizes...)
			results <- result{ops, err}
		}()
	}
	var ops int64
	var errs []error
	for range streams {
		r := <-results
		ops += r.ops
		errs = append(errs, r.err)
	}
	return ops, errors.Join(errs...)
}

// holdAll holds a block on every stream at once, so that the allocator has all memory that the
// threads may need before they are timed.
func (b *Bench) holdAll(streams []allocator.Stream, bytes int64) error {
	blocks := make([]allocator.Block, len(streams))
	for i, s := range streams {
		var err error
		if blocks[i], err = b.A.Alloc(bytes, s, "held"); err != nil {
			return err
		}
	}
	b.Holds(int64(len(streams)) * bytes)
	var errs []error
	for i, s := range streams {
		errs = append(errs, b.A.Free(blocks[i], s))
	}
	return errors.Join(errs...)
}
