package allocator

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"mlpool/allocator/internal/block"
)

// What the allocators that wrap another one share, and the smallest of them: Timed.

// As returns the first of a, what it wraps, what that wraps, and so on, that is
// a T: a *[Pool], or anything with a method RecordStream. Timed, Limit, Trace
// and Poison wrap another Allocator.
func As[T any](a Allocator) (T, bool) {
	for a != nil {
		if found, ok := a.(T); ok {
			return found, true
		}
		w, ok := a.(interface{ Unwrap() Allocator })
		if !ok {
			break
		}
		a = w.Unwrap()
	}
	var none T
	return none, false
}

// A decorator passes every call to the Allocator that it wraps. It is part of outer, whose allocAt and freeSized
// serve Alloc, AllocAligned and Free.
type decorator struct {
	Allocator
	outer interface {
		placer
		sizedFreer
	}
}

// Alloc implements [Allocator].
func (d decorator) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	return d.outer.allocAt(bytes, block.Place{}, s, tag)
}

// AllocAligned implements [AlignedAllocator] if the wrapped allocator does. A block from it counts like others.
func (d decorator) AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error) {
	return allocAligned(d.outer, bytes, alignment, s, tag)
}

// Free implements [Allocator].
func (d decorator) Free(b Block, s Stream) error {
	_, err := d.outer.freeSized(b, s)
	return err
}

// Unwrap returns the wrapped allocator.
func (d decorator) Unwrap() Allocator { return d.Allocator }

// driverMeter implements metered.
func (d decorator) driverMeter() *meter {
	if m, ok := d.Allocator.(metered); ok {
		return m.driverMeter()
	}
	return nil
}

// A sizedFreer is an Allocator that knows the sizes of its blocks.
type sizedFreer interface {
	// freeSized is Free and returns the bytes that b was asked for with, whatever
	// b.Size is. An error for which freed is false means that nothing changed.
	freeSized(b Block, s Stream) (bytes int64, err error)
}

// freed reports whether a Free that returned err took the block back.
func freed(err error) bool {
	if err == nil { // without a variable on the heap
		return true
	}
	var damage *RedzoneError
	return errors.As(err, &damage)
}

// RedzoneError reports a write outside a block.
type RedzoneError struct {
	Block         Block
	Tag           string
	Before, After int64 // changed words of 4 bytes on either side
}

func (e *RedzoneError) Error() string {
	return fmt.Sprintf("allocator: block %q of %d bytes at %#x was written outside: %d words before it, %d after",
		e.Tag, e.Block.Size, e.Block.Addr, e.Before, e.After)
}

// freeSized frees b with a.freeSized if a has it. Else it returns b.Size.
func freeSized(a Allocator, b Block, s Stream) (bytes int64, err error) {
	if f, ok := a.(sizedFreer); ok {
		return f.freeSized(b, s)
	}
	return b.Size, a.Free(b, s)
}

// A userOrderer is an Allocator that can make a stream wait for the users of a block.
type userOrderer interface {
	// orderUsers makes s wait, on the device, for the stream that b was allocated on
	// and for those named with RecordStream.
	orderUsers(b Block, s Stream) error
}

// sized returns a, wrapped in sizes unless it is a sizedFreer.
func sized(a Allocator) Allocator {
	if _, ok := a.(sizedFreer); ok {
		return a
	}
	z := &sizes{blocks: newHandedOut()}
	z.decorator = decorator{a, z}
	return z
}

// sizes makes an Allocator a sizedFreer: it remembers the size of each block.
type sizes struct {
	decorator
	blocks handedOut
}

// allocAt implements placer.
func (z *sizes) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	b, err := z.decorator.allocAt(bytes, at, s, tag)
	if err == nil {
		z.blocks.add(b, handed{bytes: bytes})
	}
	return b, err
}

func (z *sizes) freeSized(b Block, s Stream) (bytes int64, err error) {
	h, err := z.blocks.take(b)
	if err != nil {
		return 0, err
	}
	err = z.Allocator.Free(b, s)
	if h == nil {
		return 0, err
	}
	bytes = h.bytes
	z.blocks.done(b, h, freed(err))
	return bytes, err
}

// A Timed is an Allocator that measures the time spent in another one's Alloc
// and Free, less what the clock itself costs.
//
// It times every call, except to a [Pool], where two readings of the
// clock cost more than most calls. There the time is the sum of two:
//
//   - The time within the driver. The driver's calls measure themselves, all of them:
//     they are so rare and long that a sample would be far off.
//   - The rest, from one call in sampleEvery, chosen at random so that no pattern
//     of a training step coincides with it. Each sample stands for sampleEvery
//     calls, unless the rest is longer than outlier: then the thread most likely
//     did not run, which says nothing of other calls, and the sample stands for itself.
//
// So one interruption adds no more than its own length. The price is a bias: work outside
// the driver that is longer than outlier, such as coalescing thousands of blocks at once, is
// seen in one call of sampleEvery, and counts once. Shorter work is estimated without bias.
// Among goroutines, a driver's call also counts for the calls that return during or right
// after it, most of which wait for it.
type Timed struct {
	decorator
	driver *meter        // nil: every call is timed
	cost   time.Duration // between two readings of the clock
	spent  atomic.Int64  // nanoseconds

	now  clock
	draw func() uint32
}

const (
	sampleEvery = 13
	outlier     = 10 * time.Microsecond
)

// start is what clock readings count from: such a difference needs one reading of the
// monotonic clock and none of the wall clock.
var start = time.Now()

// NewTimed returns a with a stopwatch.
func NewTimed(a Allocator) *Timed {
	t := &Timed{
		now: func() time.Duration { return time.Since(start) }, draw: rand.Uint32,
	}
	t.decorator = decorator{sized(a), t}
	t.driver, t.cost = t.driverMeter(), clockCost(t.now)
	if t.driver != nil {
		t.driver.clock.CompareAndSwap(nil, &t.now)
	}
	return t
}

// clockCost returns the median time between two readings of the clock.
func clockCost(now clock) time.Duration {
	var gaps [1001]time.Duration
	for i := range gaps {
		from := now()
		gaps[i] = now() - from
	}
	slices.Sort(gaps[:])
	return gaps[len(gaps)/2]
}

// Time returns the time spent in Alloc and Free so far, summed over goroutines.
func (t *Timed) Time() time.Duration { return time.Duration(max(t.spent.Load(), 0)) }

// allocAt implements placer.
func (t *Timed) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	c := t.begin()
	b, err := t.decorator.allocAt(bytes, at, s, tag)
	t.end(c)
	return b, err
}

// Free implements [Allocator].
func (t *Timed) Free(b Block, s Stream) error {
	c := t.begin()
	err := t.Allocator.Free(b, s)
	t.end(c)
	return err
}

func (t *Timed) freeSized(b Block, s Stream) (bytes int64, err error) {
	c := t.begin()
	bytes, err = freeSized(t.Allocator, b, s)
	t.end(c)
	return bytes, err
}

// A timedCall is the state of the clocks when a call began.
type timedCall struct {
	from   time.Duration // -1: the call is not timed
	driver int64         // meter.spent
}

func (t *Timed) begin() timedCall {
	if t.driver == nil {
		return timedCall{from: t.now()}
	}
	c := timedCall{from: -1, driver: t.driver.spent.Load()}
	if t.draw() <= math.MaxUint32/sampleEvery {
		c.from = t.now()
	}
	return c
}

func (t *Timed) end(c timedCall) {
	var took time.Duration
	if c.from >= 0 {
		took = t.now() - c.from
	}
	if t.driver == nil {
		t.spent.Add(int64(took - t.cost))
		return
	}
	driver := time.Duration(t.driver.spent.Load() - c.driver)
	if c.from < 0 {
		if driver > 0 {
			t.spent.Add(int64(driver))
		}
		return
	}
	t.spent.Add(int64(estimate(took, driver, t.cost)))
}

// estimate returns the time that a timed call adds: the time within the driver, and the
// rest for itself and the calls that were not timed.
func estimate(took, driver, cost time.Duration) time.Duration {
	driver = min(driver, took)
	rest := took - driver - cost
	if driver > 0 {
		rest = max(rest, 0)
	}
	if rest > outlier {
		return driver + rest
	}
	return driver + rest*sampleEvery
}

// allocAt implements placer for the wrapped allocator.
func (d decorator) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if at.Unit == 0 {
		return d.Allocator.Alloc(bytes, s, tag)
	}
	if a, ok := d.Allocator.(placer); ok {
		return a.allocAt(bytes, at, s, tag)
	}
	if a, ok := d.Allocator.(AlignedAllocator); ok && at.Offset == 0 {
		return a.AllocAligned(bytes, at.Unit, s, tag)
	}
	return Block{}, fmt.Errorf("allocator: the wrapped allocator aligns no block: %w", errors.ErrUnsupported)
}

// A placer is an allocator that can place a block.
type placer interface {
	Allocator
	// allocAt is Alloc of a block at a place. With the zero Place it is Alloc.
	allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error)
}

// allocAligned is AllocAligned of an allocator that can place blocks.
func allocAligned(a placer, bytes, alignment int64, s Stream, tag string) (Block, error) {
	if alignment <= 0 || alignment > maxAlignment || alignment&(alignment-1) != 0 {
		return Block{}, ErrBadAlignment
	}
	if alignment <= Alignment {
		return a.Alloc(bytes, s, tag)
	}
	return a.allocAt(bytes, block.Place{Unit: alignment}, s, tag)
}
