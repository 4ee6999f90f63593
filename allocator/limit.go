package allocator

import (
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"

	"mlpool/allocator/internal/block"
)

// A Limit is an Allocator that bounds the bytes another one has handed out at a time, whatever that one
// reserves: of all blocks and, with SetTag, of those with a tag. Each block counts rounded up to Alignment,
// until it is freed through the Limit: one that is freed through what Unwrap or [As] returns counts forever.
type Limit struct {
	decorator
	all     budget
	refused atomic.Int64
	closed  atomic.Bool

	setting sync.Mutex                         // held by SetTag
	tags    atomic.Pointer[map[string]*budget] // by tag, not changed once it is stored; nil: none has a limit
	tagged  handedOut                          // live blocks that count for their tag
}

// NewLimit returns a with a limit of most bytes; one of 0 or less refuses every request, and
// math.MaxInt64 none, so that only tags have limits. Blocks of a itself must not be freed through it.
func NewLimit(a Allocator, most int64) *Limit {
	l := &Limit{tagged: newHandedOut()}
	l.decorator = decorator{sized(a), l}
	l.all.most.Store(most)
	return l
}

// SetTag limits the bytes of blocks with a tag, in addition to those of all: most are handed out at a time.
// A limit of 0 or less refuses every request with the tag, and math.MaxInt64 none. A block counts if it was
// requested after the first SetTag of its tag had returned. A later SetTag changes the limit: if it is below
// what is handed out, requests fail until enough is freed.
func (l *Limit) SetTag(tag string, most int64) {
	l.setting.Lock()
	defer l.setting.Unlock()
	t := l.budgetOf(tag)
	if t == nil {
		t = new(budget)
		tags := map[string]*budget{tag: t}
		if old := l.tags.Load(); old != nil {
			maps.Copy(tags, *old)
		}
		defer l.tags.Store(&tags)
	}
	t.most.Store(max(most, 0))
}

// budgetOf returns the budget of a tag, or nil if it has no limit.
func (l *Limit) budgetOf(tag string) *budget {
	if tags := l.tags.Load(); tags != nil {
		return (*tags)[tag]
	}
	return nil
}

// A budget is a limit and the bytes that count for it.
type budget struct{ most, used atomic.Int64 }

// take adds size to the bytes used if they stay within the limit. A request that does not
// fit leaves the count alone, so it makes no other fail. used is the count before.
func (b *budget) take(size int64) (used int64, ok bool) {
	for {
		used := b.used.Load()
		if size > b.most.Load()-used {
			return used, false
		}
		if b.used.CompareAndSwap(used, used+size) {
			return used, true
		}
	}
}

// give takes size off the bytes used. A nil budget has none.
func (b *budget) give(size int64) {
	if b != nil {
		b.used.Add(-size)
	}
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
	of := l.budgetOf(tag)
	if of != nil {
		if used, ok := of.take(size); !ok {
			e := l.refuse(bytes, s, tag, noMemory{fmt.Sprintf("the limit of tag %q is reached", tag), true})
			if of.most.Load() > 0 {
				e.Advice = fmt.Sprintf("the limit of tag %q must be at least %d; %s", tag, used+size, smaller)
			}
			return Block{}, e
		}
	}
	if used, ok := l.all.take(size); !ok {
		of.give(size)
		e := l.refuse(bytes, s, tag, errLimit)
		if e.Limit > 0 {
			e.Advice = limitAtLeast(used + size)
		}
		return Block{}, e
	}
	b, err := l.decorator.allocAt(bytes, at, s, tag)
	switch {
	case err != nil:
		l.all.give(size)
		of.give(size)
	case of != nil:
		l.tagged.add(b, handed{bytes: bytes, tag: tag})
	}
	return b, err
}

// refuse returns the error of a request that a limit refused.
func (l *Limit) refuse(bytes int64, s Stream, tag string, why noMemory) *OutOfMemoryError {
	l.refused.Add(1)
	st := l.Stats()
	e := &OutOfMemoryError{
		Bytes: bytes, Stream: s, Tag: tag, Allocated: st.Allocated, Reserved: st.Reserved,
		LargestFree: -1, Limit: l.all.most.Load(), Err: why, Advice: smaller,
	}
	if e.Limit == math.MaxInt64 {
		e.Limit = 0
	}
	return e
}

func (l *Limit) freeSized(b Block, s Stream) (bytes int64, err error) {
	var h *handed
	if l.tags.Load() != nil {
		if h, err = l.tagged.take(b); err != nil {
			return 0, err
		}
	}
	bytes, err = freeSized(l.Allocator, b, s)
	gone := freed(err)
	if gone {
		l.all.give(blockSize(bytes))
	}
	if h != nil {
		if gone {
			l.budgetOf(h.tag).give(blockSize(h.bytes))
		}
		l.tagged.done(b, h, gone)
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
