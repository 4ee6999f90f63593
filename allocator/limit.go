package allocator

import (
	"sync/atomic"

	"mlpool/allocator/internal/block"
)

// A Limit is an Allocator that bounds the bytes another one has handed out at a time,
// whatever that one reserves. Each block counts rounded up to Alignment, until it is freed
// through the Limit: one that is freed through what Unwrap or [As] returns counts forever.
type Limit struct {
	decorator
	most    int64
	used    atomic.Int64
	refused atomic.Int64
	closed  atomic.Bool
}

// NewLimit returns a with a limit of most bytes; one of 0 or less refuses every
// request. Blocks of a itself must not be freed through it.
func NewLimit(a Allocator, most int64) *Limit {
	return &Limit{decorator: decorator{sized(a)}, most: most}
}

// Alloc implements [Allocator].
func (l *Limit) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	return l.allocAt(bytes, block.Place{}, s, tag)
}

// AllocAligned implements [AlignedAllocator] if the wrapped allocator does. The block counts like others.
func (l *Limit) AllocAligned(bytes, alignment int64, s Stream, tag string) (Block, error) {
	return allocAligned(l, bytes, alignment, s, tag)
}

// allocAt implements placer.
func (l *Limit) allocAt(bytes int64, at block.Place, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if bytes > maxRequest || l.closed.Load() {
		return l.decorator.allocAt(bytes, at, s, tag)
	}
	size := blockSize(bytes)
	if used, ok := l.take(size); !ok {
		l.refused.Add(1)
		st := l.Stats()
		e := &OutOfMemoryError{
			Bytes: bytes, Stream: s, Tag: tag, Allocated: st.Allocated, Reserved: st.Reserved,
			LargestFree: -1, Limit: l.most, Err: errLimit, Advice: smaller,
		}
		if l.most > 0 {
			e.Advice = limitAtLeast(used + size)
		}
		return Block{}, e
	}
	b, err := l.decorator.allocAt(bytes, at, s, tag)
	if err != nil {
		l.used.Add(-size)
	}
	return b, err
}

// take adds size to the bytes used if they stay within the limit. A request that does not
// fit leaves the count alone, so it makes no other fail. used is the count before.
func (l *Limit) take(size int64) (used int64, ok bool) {
	for {
		used := l.used.Load()
		if size > l.most-used {
			return used, false
		}
		if l.used.CompareAndSwap(used, used+size) {
			return used, true
		}
	}
}

// Free implements [Allocator].
func (l *Limit) Free(b Block, s Stream) error {
	_, err := l.freeSized(b, s)
	return err
}

func (l *Limit) freeSized(b Block, s Stream) (bytes int64, err error) {
	bytes, err = freeSized(l.Allocator, b, s)
	if freed(err) {
		l.used.Add(-blockSize(bytes))
	}
	return bytes, err
}

// Stats implements [Allocator]. Refused includes the requests that the limit refused.
func (l *Limit) Stats() Stats {
	st := l.Allocator.Stats()
	st.Refused += l.refused.Load()
	return st
}

// Close implements [Allocator].
func (l *Limit) Close() error {
	l.closed.Store(true)
	return l.Allocator.Close()
}
