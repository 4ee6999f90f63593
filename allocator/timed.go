package allocator

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// A Timed is an Allocator that estimates the time spent in another one's Alloc
// and Free. Reading the clock twice costs more than a pool's fast path, so it
// times one call in sampleEvery, chosen at random so that no pattern of a
// training step can fall in with it, and takes off what the clock itself costs.
// A call in a steady state adds about 3 ns. The estimate is unbiased; it is
// uncertain by about one driver call times the square root of their number
// times sampleEvery, so look at it where the driver is called always or never.
type Timed struct {
	Allocator
	sampled atomic.Int64 // nanoseconds
	clock   int64        // nanoseconds that two readings are apart
}

const sampleEvery = 13

// start is what clock readings count from; a difference from it needs one
// reading of the monotonic clock and none of the wall clock.
var start = time.Now()

// NewTimed returns a with a stopwatch.
func NewTimed(a Allocator) *Timed {
	return &Timed{Allocator: a, clock: clockCost()}
}

// clockCost returns the median time between two readings of the clock.
func clockCost() int64 {
	var gaps [1001]time.Duration
	for i := range gaps {
		from := time.Since(start)
		gaps[i] = time.Since(start) - from
	}
	slices.Sort(gaps[:])
	return int64(gaps[len(gaps)/2])
}

// Time returns the time spent in Alloc and Free so far, summed over goroutines.
// An interval's time is a difference.
func (t *Timed) Time() time.Duration {
	return time.Duration(max(t.sampled.Load(), 0) * sampleEvery)
}

// Unwrap returns the allocator that is timed.
func (t *Timed) Unwrap() Allocator { return t.Allocator }

// Alloc implements [Allocator].
func (t *Timed) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if rand.Uint32() >= 1<<32/sampleEvery {
		return t.Allocator.Alloc(bytes, s, tag)
	}
	from := time.Since(start)
	b, err := t.Allocator.Alloc(bytes, s, tag)
	t.add(time.Since(start) - from)
	return b, err
}

// Free implements [Allocator].
func (t *Timed) Free(b Block, s Stream) error {
	if rand.Uint32() >= 1<<32/sampleEvery {
		return t.Allocator.Free(b, s)
	}
	from := time.Since(start)
	err := t.Allocator.Free(b, s)
	t.add(time.Since(start) - from)
	return err
}

func (t *Timed) add(d time.Duration) { t.sampled.Add(int64(d) - t.clock) }
