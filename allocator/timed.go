package allocator

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// A Timed is an Allocator that measures the time spent in another one's Alloc
// and Free, less what the clock itself costs.
//
// It times every call of an [Async] or a [Malloc], each of which calls the
// driver and may wait for the device: a sample of such times is far off. For the
// others two readings of the clock cost more than the call, so one call in
// sampleEvery is timed, chosen at random so that no pattern of a training step
// falls in with it. That adds a few nanoseconds to a call. The estimate is unbiased,
// and uncertain by about one driver call times the square root of their number
// times sampleEvery: small where such calls are rare.
type Timed struct {
	Allocator
	oneIn int64        // calls
	below uint32       // a call is timed whose random number is at most this
	sum   atomic.Int64 // nanoseconds of the calls timed
	clock int64        // nanoseconds that two readings are apart
}

const sampleEvery = 13

// start is what clock readings count from; a difference from it needs one
// reading of the monotonic clock and none of the wall clock.
var start = time.Now()

// NewTimed returns a with a stopwatch.
func NewTimed(a Allocator) *Timed {
	t := &Timed{Allocator: a, oneIn: sampleEvery, clock: clockCost()}
	_, async := As[*Async](a)
	_, malloc := As[*Malloc](a)
	if async || malloc {
		t.oneIn = 1
	}
	t.below = uint32(math.MaxUint32 / t.oneIn)
	return t
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
	return time.Duration(max(t.sum.Load(), 0) * t.oneIn)
}

// Unwrap returns the allocator that is timed.
func (t *Timed) Unwrap() Allocator { return t.Allocator }

// Alloc implements [Allocator].
func (t *Timed) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if rand.Uint32() > t.below {
		return t.Allocator.Alloc(bytes, s, tag)
	}
	from := time.Since(start)
	b, err := t.Allocator.Alloc(bytes, s, tag)
	t.add(time.Since(start) - from)
	return b, err
}

// Free implements [Allocator].
func (t *Timed) Free(b Block, s Stream) error {
	if rand.Uint32() > t.below {
		return t.Allocator.Free(b, s)
	}
	from := time.Since(start)
	err := t.Allocator.Free(b, s)
	t.add(time.Since(start) - from)
	return err
}

func (t *Timed) add(d time.Duration) { t.sum.Add(int64(d) - t.clock) }
