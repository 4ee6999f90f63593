package allocator

import (
	"slices"
	"sync"
)

// A ledger accounts for the blocks of an allocator that leaves the memory to
// its driver: it makes Blocks, tells stale ones, and counts.
//
// A call that may call the driver is within calls, so that closing waits for it:
// a block is either freed by its Free or found by close, and never both.
type ledger struct {
	calls gate
	// marking is held for reading while a block is being freed, whose streams
	// must exist until then, and for writing to drop a stream's marks.
	marking sync.RWMutex

	mu     sync.Mutex // guards what follows
	closed bool
	blocks list  // handed out
	spares *node // unused records, by down

	allocs, frees   int64
	allocated, peak int64 // bytes
}

// open returns the Block of newly allocated memory. It is called within calls.
func (l *ledger) open(addr uintptr, bytes int64, s Stream, tag string) Block {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.spares
	if n == nil {
		n = &node{ledger: l}
	} else {
		l.spares = n.down
	}
	n.addr, n.size, n.alone = addr, blockSize(bytes), false
	l.blocks.insertAfter(nil, n)
	l.allocs++
	l.allocated += n.size
	l.peak = max(l.peak, l.allocated)
	return n.handOut(bytes, s, tag)
}

// check says whether b is handed out by this ledger.
func (l *ledger) check(b Block) error {
	if b.node == nil || b.node.ledger != l {
		return ErrUnknownBlock
	}
	if err := b.node.check(b); err != nil {
		if l.closed {
			return ErrClosed
		}
		return err
	}
	return nil
}

// mark notes that the memory of b is also used on s.
func (l *ledger) mark(b Block, s Stream) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.check(b); err != nil {
		return err
	}
	if n := b.node; !slices.Contains(n.uses, s) {
		n.uses = append(n.uses, s)
	}
	return nil
}

// unmark drops all marks of s. It waits for the calls of settle that see them.
func (l *ledger) unmark(s Stream) {
	l.marking.Lock()
	defer l.marking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := l.blocks.first; n != nil; n = n.down {
		n.uses = slices.DeleteFunc(n.uses, func(u Stream) bool { return u == s })
		n.alone = n.alone || n.stream == s
	}
}

// orderUsers passes the stream of b and those that it was marked with, but s, to
// order.
func (l *ledger) orderUsers(b Block, s Stream, order func(from, to Stream) error) error {
	if err := l.calls.enter(); err != nil {
		return err
	}
	defer l.calls.leave()
	l.marking.RLock()
	defer l.marking.RUnlock()
	l.mu.Lock()
	err := l.check(b)
	var uses []Stream
	if err == nil {
		uses = slices.Clone(b.node.uses)
		if !b.node.alone {
			uses = append(uses, b.node.stream)
		}
	}
	l.mu.Unlock()
	for _, u := range uses {
		if u != s && err == nil {
			err = order(u, s)
		}
	}
	return err
}

// settle takes b back by means of free, during which b counts as freed, and
// returns the bytes that were asked for with it. free is passed the streams that
// b was marked with. If it fails b is handed out as before.
func (l *ledger) settle(b Block, free func(uses []Stream) error) (bytes int64, err error) {
	if err := l.calls.enter(); err != nil {
		return 0, err
	}
	defer l.calls.leave()
	l.marking.RLock()
	defer l.marking.RUnlock()

	l.mu.Lock()
	if err := l.check(b); err != nil {
		l.mu.Unlock()
		return 0, err
	}
	n := b.node
	n.state = waiting
	l.blocks.remove(n)
	l.mu.Unlock()

	err = free(n.uses)

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		n.state = live
		l.blocks.insertAfter(nil, n)
		return 0, err
	}
	n.gen++
	n.state = unused
	n.uses = n.uses[:0]
	n.down = l.spares
	l.spares = n
	l.frees++
	l.allocated -= n.size
	return n.asked, nil
}

// close ends the ledger once no call is in progress and returns what was still
// handed out.
func (l *ledger) close() ([]LiveBlock, error) {
	if !l.calls.close() {
		return nil, ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	leaked := l.list()
	for n := l.blocks.first; n != nil; n = n.down {
		n.gen++
		n.state = unused
	}
	l.blocks.first = nil
	l.allocated = 0
	return leaked, nil
}

func (l *ledger) live() []LiveBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list()
}

func (l *ledger) list() []LiveBlock {
	var all []LiveBlock
	for n := l.blocks.first; n != nil; n = n.down {
		all = append(all, n.describe())
	}
	sortByAddress(all)
	return all
}

func (l *ledger) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Stats{Allocs: l.allocs, Frees: l.frees, Allocated: l.allocated, PeakAllocated: l.peak}
}

func (l *ledger) resetPeak() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peak = l.allocated
}

func sortByAddress(blocks []LiveBlock) {
	slices.SortFunc(blocks, func(a, b LiveBlock) int {
		switch {
		case a.Addr < b.Addr:
			return -1
		case a.Addr > b.Addr:
			return 1
		}
		return 0
	})
}
