package allocator

import (
	"errors"
	"fmt"
	"sync"
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

// A decorator passes every call to the Allocator that it wraps.
type decorator struct{ Allocator }

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

// freed reports whether a Free that returned err took the block back.
func freed(err error) bool {
	if err == nil { // without a variable on the heap
		return true
	}
	var damage *RedzoneError
	return errors.As(err, &damage)
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
	return &sizes{decorator: decorator{a}, blocks: newHandedOut()}
}

// sizes makes an Allocator a sizedFreer: it remembers the size of each block.
type sizes struct {
	decorator
	blocks handedOut
}

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

// handedOut records the blocks that a decorator has handed out. It ignores Block.Size,
// which a caller may change.
type handedOut struct {
	mu     sync.Mutex
	blocks map[Block]*handed // by key
	spares []*handed         // records for reuse
}

// A handed is the record of one block.
type handed struct {
	bytes   int64 // asked for
	stream  Stream
	tag     string
	shared  bool // RecordStream named another stream
	freeing bool // a Free is in progress
}

func newHandedOut() handedOut { return handedOut{blocks: map[Block]*handed{}} }

// key returns the part of b that identifies it.
func key(b Block) Block {
	b.Size = 0
	return b
}

func (o *handedOut) add(b Block, h handed) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var r *handed
	if last := len(o.spares) - 1; last >= 0 {
		r, o.spares = o.spares[last], o.spares[:last]
	} else {
		r = new(handed)
	}
	*r = h
	o.blocks[key(b)] = r
}

// take begins a Free of b, which done ends. It returns nil for an unknown block, and
// ErrDoubleFree if a Free of b is in progress.
func (o *handedOut) take(b Block) (*handed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.blocks[key(b)]
	if h == nil {
		return nil, nil
	}
	if h.freeing {
		return nil, ErrDoubleFree
	}
	h.freeing = true
	return h, nil
}

// done ends a Free of b that take began, and forgets b if it was freed. The memory may
// have been handed out again by then.
func (o *handedOut) done(b Block, h *handed, freed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.freeing = false
	if !freed {
		return
	}
	if o.blocks[key(b)] == h {
		delete(o.blocks, key(b))
	}
	o.spares = append(o.spares, h)
}

// share records that another stream uses b. It fails if b is free or being freed.
func (o *handedOut) share(b Block) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.blocks[key(b)]
	if h == nil || h.freeing {
		return ErrDoubleFree
	}
	h.shared = true
	return nil
}

func (o *handedOut) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.blocks)
}

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
		if l.most > 0 {
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
