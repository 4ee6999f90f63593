package allocator

import (
	"errors"
	"sync/atomic"
)

// As returns the first of a, what it wraps, what that wraps, and so on, that is
// a T: a *[Plan], or anything with a method RecordStream. Timed, Limit, Trace
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

// A sizedFreer is an Allocator that knows how large its blocks are.
type sizedFreer interface {
	// freeSized is Free and returns the bytes that were asked for with b,
	// whatever b.Size says. Unless it returns an error for which freed is true,
	// one that fails changes nothing.
	freeSized(b Block, s Stream) (bytes int64, err error)
}

// A userOrderer is an Allocator that can make a stream wait for the others that use
// a block.
type userOrderer interface {
	// orderUsers orders s, on the device, after the work on the stream that b was
	// allocated on and on those that were named with RecordStream.
	orderUsers(b Block, s Stream) error
}

// freed says whether a Free that returned err took the block back.
func freed(err error) bool {
	if err == nil {
		return true
	}
	var damage *RedzoneError
	return errors.As(err, &damage)
}

// freeSized is that of a, or else Free, with b.Size as it is.
func freeSized(a Allocator, b Block, s Stream) (bytes int64, err error) {
	if f, ok := a.(sizedFreer); ok {
		return f.freeSized(b, s)
	}
	return b.Size, a.Free(b, s)
}

// sized returns a if it knows how large its blocks are, and else a with a memory
// for that.
func sized(a Allocator) Allocator {
	if _, ok := a.(sizedFreer); ok {
		return a
	}
	return &sizes{Allocator: a, blocks: newHandedOut()}
}

// sizes is an Allocator around one that is not a sizedFreer.
type sizes struct {
	Allocator
	blocks handedOut
}

// Unwrap returns the allocator whose sizes these are.
func (z *sizes) Unwrap() Allocator { return z.Allocator }

// Alloc implements [Allocator].
func (z *sizes) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	b, err := z.Allocator.Alloc(bytes, s, tag)
	if err == nil {
		z.blocks.add(b, handed{bytes: bytes})
	}
	return b, err
}

// Free implements [Allocator].
func (z *sizes) Free(b Block, s Stream) error {
	_, err := z.freeSized(b, s)
	return err
}

// freeSized implements sizedFreer.
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

// A Limit is an Allocator that lets another one hand out no more than a number
// of bytes at a time, whatever it reserves. Each block counts rounded up to
// Alignment, until it is freed through the Limit: one that is freed through what
// Unwrap or [As] returns counts for ever.
type Limit struct {
	Allocator
	most    int64
	used    atomic.Int64
	refused atomic.Int64
	closed  atomic.Bool
}

// NewLimit returns a with a limit of most bytes; one of 0 or less refuses every
// request. Blocks of a itself must not be freed through it.
func NewLimit(a Allocator, most int64) *Limit { return &Limit{Allocator: sized(a), most: most} }

// Unwrap returns the allocator that is limited.
func (l *Limit) Unwrap() Allocator { return l.Allocator }

// Alloc implements [Allocator].
func (l *Limit) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if bytes > maxRequest || l.closed.Load() {
		return l.Allocator.Alloc(bytes, s, tag)
	}
	size := blockSize(bytes)
	if used, ok := l.take(size); !ok {
		l.refused.Add(1)
		st := l.Stats()
		e := &OutOfMemoryError{
			Bytes: bytes, Stream: s, Tag: tag, Allocated: st.Allocated, Reserved: st.Reserved,
			LargestFree: -1, Limit: l.most, Err: errLimit, Advice: smaller,
		}
		if l.most > 0 { // what was refused before, and what the allocator has, are in the way of a promise
			e.Advice = limitAtLeast(used + size)
		}
		return Block{}, e
	}
	b, err := l.Allocator.Alloc(bytes, s, tag)
	if err != nil {
		l.used.Add(-size)
	}
	return b, err
}

// take counts size bytes as used if they fit, and otherwise leaves the count alone, so
// that a request which does not fit keeps no other from fitting. It returns the bytes used before.
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

// Stats implements [Allocator]. Refused counts the requests that the limit refused too.
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

// Free implements [Allocator].
func (l *Limit) Free(b Block, s Stream) error {
	_, err := l.freeSized(b, s)
	return err
}

// freeSized implements sizedFreer.
func (l *Limit) freeSized(b Block, s Stream) (bytes int64, err error) {
	bytes, err = freeSized(l.Allocator, b, s)
	if freed(err) {
		l.used.Add(-blockSize(bytes))
	}
	return bytes, err
}
