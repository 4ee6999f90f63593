package bench

import (
	"fmt"

	"mlpool/allocator"
)

func randomCases(quick bool) []Case {
	nums, sizes := []int{1_000, 10_000, 100_000}, []int64{1, 4, 64, 256, 1024, 4096}
	if quick {
		nums, sizes = []int{quickOps}, []int64{1, 64}
	}
	var cases []Case
	for _, num := range nums {
		for _, most := range sizes {
			name := fmt.Sprintf("%d <= %s", num, SizeName(most*MiB))
			cases = append(cases, Case{Name: name, Streams: 1, Run: func(b *Bench) error { return b.random(name, num, most*MiB) }})
		}
	}
	return cases
}

// random does three rounds of the same requests. The first starts with an empty allocator, the last in
// a steady state; further rounds would show how well the processor predicts the sequence. If the time
// limit ends a round, the next ones are left out.
func (b *Bench) random(name string, num int, largest int64) error {
	blocks := make([]allocator.Block, 0, num)
	for round := range 3 {
		name := name + [...]string{" cold", " second", " warm"}[round]
		err := b.Measure(name, "call", 1, func() (int64, error) { return b.randomRound(b.Streams[0], blocks, largest) })
		if err != nil {
			return err
		}
		last := len(b.Rows) - 1
		if b.Rows[last].Cut {
			break
		}
		if round == 1 { // it only warms up
			b.Rows = b.Rows[:last]
		}
	}
	return nil
}

// randomRound does 2*len(blocks) calls, of which at most len(blocks) allocate, and then frees the
// remaining blocks.
func (b *Bench) randomRound(s allocator.Stream, blocks []allocator.Block, largest int64) (int64, error) {
	const most = 16000 * MiB
	r := random(1)
	num := cap(blocks)
	var ops, bytes, peak int64
	allocs := 0
	drop := func(i int) error {
		block := blocks[i]
		blocks[i] = blocks[len(blocks)-1]
		blocks = blocks[:len(blocks)-1]
		bytes -= block.Size
		ops++
		return b.A.Free(block, s)
	}
	for range 2 * num {
		if b.Over.Load() {
			break
		}
		size := 1 + r.below(largest)
		if len(blocks) == 0 || r.below(100) < 73 && allocs < num && bytes+size < most {
			block, err := b.A.Alloc(size, s, "random")
			if err == nil {
				blocks = append(blocks, block)
				allocs++
				bytes += size
				peak = max(peak, bytes)
				ops++
				continue
			}
			if !OutOfMemory(err) {
				return ops, err
			}
			b.Failed++
		}
		if len(blocks) > 0 {
			if err := drop(int(r.below(int64(num))) % len(blocks)); err != nil {
				return ops, err
			}
		}
	}
	for len(blocks) > 0 {
		if err := drop(len(blocks) - 1); err != nil {
			return ops, err
		}
	}
	b.Holds(peak)
	return ops, nil
}
