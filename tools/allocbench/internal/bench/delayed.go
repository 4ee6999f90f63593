package bench

import (
	"errors"
	"fmt"

	"mlpool/allocator"
)

func tfDelayedCases(bool) []Case {
	var cases []Case
	for _, delay := range []int{1, 10, 100, 1000} {
		name := "delay " + fmt.Sprint(delay)
		cases = append(cases, Case{Name: name, Streams: 1, Run: func(b *Bench) error { return b.delayed(name, delay) }})
	}
	return cases
}

// delayed frees each block after a number of others were allocated.
func (b *Bench) delayed(name string, delay int) error {
	q := &delayQueue{Bench: b, stream: b.Streams[0], blocks: make([]allocator.Block, delay), held: make([]bool, delay)}
	n, err := b.count(q.pairs)
	if err != nil {
		return err
	}
	b.Holds(q.live())
	if err := b.Measure(name, "pair", 1, func() (int64, error) { return q.pairs(n) }); err != nil {
		return err
	}
	return q.end()
}

// A delayQueue is a ring of blocks; the one at at is freed next.
type delayQueue struct {
	*Bench
	stream allocator.Stream
	blocks []allocator.Block
	held   []bool // which of blocks are handed out
	at     int    // in blocks
	size   int    // in delayedSizes: of the next block
}

var delayedSizes = [...]int64{256, 4096, 16384, 4096, 512, 1024, 1024}

// pairs frees and allocates n blocks, or fewer if the time is up.
func (q *delayQueue) pairs(n int64) (int64, error) {
	for i := range n {
		if q.Over.Load() {
			return i, nil
		}
		if q.held[q.at] {
			q.held[q.at] = false
			if err := q.A.Free(q.blocks[q.at], q.stream); err != nil {
				return i, err
			}
		}
		block, err := q.A.Alloc(delayedSizes[q.size], q.stream, "delayed")
		if err != nil {
			return i, err
		}
		q.blocks[q.at], q.held[q.at] = block, true
		if q.at++; q.at == len(q.blocks) {
			q.at = 0
		}
		if q.size++; q.size == len(delayedSizes) {
			q.size = 0
		}
	}
	return n, nil
}

// live returns the bytes that are handed out.
func (q *delayQueue) live() (bytes int64) {
	for i, block := range q.blocks {
		if q.held[i] {
			bytes += block.Size
		}
	}
	return bytes
}

// end frees the remaining blocks.
func (q *delayQueue) end() error {
	var errs []error
	for i, block := range q.blocks {
		if q.held[i] {
			errs = append(errs, q.A.Free(block, q.stream))
		}
	}
	return errors.Join(errs...)
}
