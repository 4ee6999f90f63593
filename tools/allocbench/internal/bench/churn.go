package bench

import (
	"errors"

	"mlpool/allocator"
)

func churnCases(bool) []Case {
	return []Case{
		{Name: "32 streams", Streams: 32, Run: func(b *Bench) error { return b.churn("32 streams") }},
		{Name: "1 stream", Streams: 1, Run: func(b *Bench) error { return b.churn("1 stream") }},
		{Name: "two temporaries", Streams: 1, Run: temporaries},
	}
}

// churn holds churnBlocks blocks, distributed over the streams, and replaces them one by one at
// random.
func (b *Bench) churn(name string) error {
	c := &churner{Bench: b, random: 1}
	for i := range c.blocks {
		if err := c.fill(i); err != nil {
			return err
		}
	}
	// The same number for every allocator, because the peaks grow with it.
	n := int64(50_000)
	if b.Quick {
		n = quickOps
	}
	if _, _, err := b.Within(func() (int64, error) { return c.pairs(n) }); err != nil {
		return err
	}
	err := b.Measure(name, "pair", 1, func() (int64, error) {
		done, err := c.pairs(n)
		b.Holds(c.peak)
		return done, err
	})
	if err != nil {
		return err
	}
	return c.end()
}

const churnBlocks = 32

// A churner has the blocks of churn.
type churner struct {
	*Bench
	blocks      [churnBlocks]allocator.Block
	random      random
	bytes, peak int64 // handed out now, and at most
}

// stream returns the stream of block i.
func (c *churner) stream(i int) allocator.Stream { return c.Streams[i%len(c.Streams)] }

// fill allocates block i, of a random size.
func (c *churner) fill(i int) error {
	block, err := c.A.Alloc(churnSize(&c.random), c.stream(i), "churn")
	if err != nil {
		return err
	}
	c.blocks[i] = block
	c.bytes += block.Size
	c.peak = max(c.peak, c.bytes)
	return nil
}

// pairs frees and allocates n blocks, or fewer if the time is up.
func (c *churner) pairs(n int64) (int64, error) {
	for done := range n {
		if c.Over.Load() {
			return done, nil
		}
		i := int(c.random.below(churnBlocks))
		c.bytes -= c.blocks[i].Size
		if err := c.A.Free(c.blocks[i], c.stream(i)); err != nil {
			return done, err
		}
		if err := c.fill(i); err != nil {
			return done, err
		}
	}
	return n, nil
}

// end frees all blocks.
func (c *churner) end() error {
	var errs []error
	for i, block := range c.blocks {
		errs = append(errs, c.A.Free(block, c.stream(i)))
	}
	return errors.Join(errs...)
}

// churnSize returns one of the nine powers of two from 64 KiB to 16 MiB.
func churnSize(r *random) int64 { return int64(64*KiB) << r.below(9) }

// temporaries allocates two blocks of a random size and frees both, like a stage of a data
// pipeline.
func temporaries(b *Bench) error {
	s, r := b.Streams[0], random(1)
	var peak int64
	steps := func(n int64) (int64, error) {
		for i := int64(0); i < n; i += 2 {
			if b.Over.Load() {
				return i, nil
			}
			size := churnSize(&r)
			peak = max(peak, 2*size)
			first, err := b.A.Alloc(size, s, "temporary")
			if err != nil {
				return i, err
			}
			second, err := b.A.Alloc(size, s, "temporary")
			if err != nil {
				return i, errors.Join(err, b.A.Free(first, s))
			}
			if err := errors.Join(b.A.Free(first, s), b.A.Free(second, s)); err != nil {
				return i, err
			}
		}
		return n, nil
	}
	n, err := b.count(steps)
	if err != nil {
		return err
	}
	return b.Measure("two temporaries", "pair", 1, func() (int64, error) {
		done, err := steps(n &^ 1)
		b.Holds(peak)
		return done, err
	})
}
