package main

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/internal/text"
)

// pair allocates and frees a block.
func (b *bench) pair(bytes int64, s allocator.Stream) error {
	block, err := b.a.Alloc(bytes, s, "pair")
	if err != nil {
		return err
	}
	return b.a.Free(block, s)
}

// pairs does n pairs, or fewer if the time is up, with the given sizes in turn.
func (b *bench) pairs(n int64, s allocator.Stream, sizes ...int64) (int64, error) {
	at := 0
	for i := range n {
		if b.over.Load() {
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

func pairCases(bool) []testCase {
	var cases []testCase
	for _, size := range []int64{512, 4 * kib, 64 * kib, mib, 16 * mib, 64 * mib} {
		name := sizeName(size)
		cases = append(cases, testCase{name, func(b *bench) error {
			s, err := b.NewStream()
			if err != nil {
				return err
			}
			n, err := b.count(func(n int64) (int64, error) { return b.pairs(n, s, size) })
			if err != nil {
				return err
			}
			b.holds(size)
			err = b.measure(name, "pair", 1, func() (int64, error) { return b.pairs(n, s, size) })
			if err != nil {
				return err
			}
			if !b.quick {
				n = min(max(n, leastTime), mostTimed)
			}
			return b.percentiles(n, func() error { return b.pair(size, s) })
		}})
	}
	return cases
}

func throughputCases(quick bool) []testCase {
	n := int64(10_000)
	if quick {
		n = quickOps
	}
	return []testCase{{"10k x 1 MiB", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		if _, err := b.pairs(100, s, mib); err != nil {
			return err
		}
		b.holds(mib)
		return b.measure("10k x 1 MiB", "pair", 1, func() (int64, error) { return b.pairs(n, s, mib) })
	}}}
}

func mixedCases(bool) []testCase {
	var sizes []int64
	for size := int64(64 * kib); size <= 16*mib; size *= 2 {
		sizes = append(sizes, size)
	}
	return []testCase{{"64 KiB - 16 MiB", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		n, err := b.count(func(n int64) (int64, error) { return b.pairs(n, s, sizes...) })
		if err != nil {
			return err
		}
		b.holds(16 * mib)
		return b.measure("64 KiB - 16 MiB", "pair", 1, func() (int64, error) { return b.pairs(n, s, sizes...) })
	}}}
}

func threadCases(bool) []testCase { return concurrent([]int{1, 2, 4, 8, 16}, false, mib) }

func sharedCases(bool) []testCase { return concurrent([]int{1, 2, 4, 8, 16}, true, mib) }

func tfThreadedCases(bool) []testCase {
	return concurrent([]int{1, 4, 16}, true, 256, 4096, 16384, 524288, 512, 1048576)
}

// concurrent are pairs on several threads, which share one stream or have one each.
func concurrent(threads []int, shared bool, sizes ...int64) []testCase {
	var cases []testCase
	for _, n := range threads {
		name := text.Count(n, "thread")
		cases = append(cases, testCase{name, func(b *bench) error {
			streams, err := b.streams(n)
			if err != nil {
				return err
			}
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
			if !b.quick {
				each = max(each/int64(n), leastOps)
			}
			return b.measure(name, "pair", n, func() (int64, error) { return b.onThreads(each, streams, sizes...) })
		}})
	}
	return cases
}

// onThreads does n pairs on each of len(streams) goroutines, the i-th on streams[i].
func (b *bench) onThreads(n int64, streams []allocator.Stream, sizes ...int64) (int64, error) {
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
func (b *bench) holdAll(streams []allocator.Stream, bytes int64) error {
	blocks := make([]allocator.Block, len(streams))
	for i, s := range streams {
		var err error
		if blocks[i], err = b.a.Alloc(bytes, s, "held"); err != nil {
			return err
		}
	}
	b.holds(int64(len(streams)) * bytes)
	var errs []error
	for i, s := range streams {
		errs = append(errs, b.a.Free(blocks[i], s))
	}
	return errors.Join(errs...)
}
