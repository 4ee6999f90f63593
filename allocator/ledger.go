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
	n.addr, n.size = addr, blockSize(bytes)
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

// settle takes b back by means of free, during which b counts as freed. If free
// fails b is handed out as before.
func (l *ledger) settle(b Block, free func() error) error {
	if b.node == nil || b.node.ledger != l {
		return ErrUnknownBlock
	}
	if err := l.calls.enter(); err != nil {
		return err
	}
	defer l.calls.leave()

	l.mu.Lock()
	if err := l.check(b); err != nil {
		l.mu.Unlock()
		return err
	}
	n := b.node
	n.state = waiting
	l.blocks.remove(n)
	l.mu.Unlock()

	err := free()

	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		n.state = live
		l.blocks.insertAfter(nil, n)
		return err
	}
	n.gen++
	n.state = unused
	n.down = l.spares
	l.spares = n
	l.frees++
	l.allocated -= n.size
	return nil
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
