package allocator

import "sync/atomic"

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

// A Limit is an Allocator that lets another one hand out no more than a number
// of bytes at a time, whatever it reserves. Each block counts rounded up to
// Alignment.
type Limit struct {
	Allocator
	most int64
	used atomic.Int64
}

// NewLimit returns a with a limit of most bytes.
func NewLimit(a Allocator, most int64) *Limit { return &Limit{Allocator: a, most: most} }

// Unwrap returns the allocator that is limited.
func (l *Limit) Unwrap() Allocator { return l.Allocator }

// Alloc implements [Allocator].
func (l *Limit) Alloc(bytes int64, s Stream, tag string) (Block, error) {
	if bytes < 0 {
		return Block{}, ErrBadSize
	}
	if bytes > maxRequest {
		return l.Allocator.Alloc(bytes, s, tag)
	}
	size := blockSize(bytes)
	if used := l.used.Add(size); used > l.most {
		l.used.Add(-size)
		st := l.Stats()
		e := &OutOfMemoryError{
			Bytes: bytes, Stream: s, Tag: tag, Allocated: st.Allocated, Reserved: st.Reserved,
			Limit: l.most, Err: errLimit,
		}
		e.advise(0)
		return Block{}, e
	}
	b, err := l.Allocator.Alloc(bytes, s, tag)
	if err != nil {
		l.used.Add(-size)
	}
	return b, err
}

// Free implements [Allocator].
func (l *Limit) Free(b Block, s Stream) error {
	err := l.Allocator.Free(b, s)
	if err == nil {
		l.used.Add(-blockSize(b.Size))
	}
	return err
}
