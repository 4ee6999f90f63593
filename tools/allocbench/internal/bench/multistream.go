package bench

import (
	"errors"

	"mlpool/internal/text"
)

func multiStreamCases(bool) []Case {
	var cases []Case
	for _, prewarmed := range []bool{false, true} {
		for _, n := range []int{1, 2, 4} {
			name := text.Count(n, "stream")
			if prewarmed {
				name += " prewarmed"
			}
			cases = append(cases, Case{Name: name, Streams: n, Run: func(b *Bench) error { return b.multiStream(name, prewarmed) }})
		}
	}
	return cases
}

// multiStream times single rounds. The first one starts with an empty allocator, unless every stream
// had a block before.
func (b *Bench) multiStream(name string, prewarmed bool) error {
	const kernels, bytes, again = 4, 8, 20
	if err := b.Prepare(); err != nil {
		return err
	}
	if prewarmed {
		for _, s := range b.Streams {
			if err := b.pair(bytes, s); err != nil {
				return err
			}
		}
	}
	b.Holds(bytes)
	round := func() error {
		for k := range kernels {
			s := b.Streams[k%len(b.Streams)]
			block, err := b.A.Alloc(bytes, s, "result")
			if err != nil {
				return err
			}
			if err := errors.Join(b.Work(s, block.Addr), b.A.Free(block, s)); err != nil {
				return err
			}
		}
		return b.Synchronize()
	}
	first := name
	if !prewarmed {
		first += " first"
	}
	if err := b.Measure(first, "round", 1, func() (int64, error) { return 1, round() }); err != nil || prewarmed {
		return err
	}
	return b.Measure(name+" again", "round", 1, func() (int64, error) {
		n := int64(0)
		for n < again && !b.Over.Load() {
			if err := round(); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	})
}
