package allocator

import "math/bits"

// waitingBlocks are the freed blocks of a heap that work on other streams may still
// use. They are listed twice: by size class, the one freed first at the front, and
// by the streams that they wait for, whose work ends in the order of the frees.
type waitingBlocks struct {
	classes uint64 // with a block
	queues  [sizeClasses]waitQueue

	streams []*streamQueue // that are waited for, in no order
	byName  map[Stream]*streamQueue
	at      int // in streams: the next to be asked about

	// blocks is how many there are, due how many there may be before a free looks
	// for some whose work is done, so that they do not pile up beside free memory.
	blocks, due int64

	spares *pending // unused records, by other
}

// pending is work on a stream that a freed block waits for.
type pending struct {
	node   *node
	stream Stream
	event  uintptr
	other  *pending // of the same block

	queue      *streamQueue
	number     int64    // in the queue: what is linked later has a larger one
	prev, next *pending // in the queue
}

// streamQueue is what a stream is waited for, the work queued first at the front.
type streamQueue struct {
	stream      Stream
	first, last *pending
	linked      int64 // so far
	index       int   // in waitingBlocks.streams
}

// waitQueue is the waiting blocks of a size class.
type waitQueue struct {
	first, last *node // by up and down
	blocks      int64

	// row is how many blocks were freed one after the other with no request of the
	// class between them, allocs the requests at the last of them. The most of late
	// is how many blocks of the class one round of the program's work has.
	row, allocs    int64
	recent, before int64 // most in this window, and in the one before
	seen           int64 // frees in this window
}

// rounds is how many rounds of freed blocks a heap lets lie while other streams
// use them, before its own stream waits for the first of them. With one, a stream
// that copies a batch would wait for the computation on the batch before, and
// never run beside it; with more than a few, a host that runs far ahead of the
// device holds memory for nothing.
const rounds = 4

// roundWindow is how many frees of a class are looked at together to learn how many
// blocks a round has.
const roundWindow = 64

// round returns how many blocks of the class one round of work has.
func (q *waitQueue) round() int64 { return max(q.recent, q.before, 1) }

// observe learns from the free of n, when its class had so many requests.
func (w *waitingBlocks) observe(n *node, allocs int64) {
	q := &w.queues[sizeClass(n.size)]
	if allocs != q.allocs {
		q.allocs, q.row = allocs, 0
	}
	q.row++
	q.recent = max(q.recent, q.row)
	if q.seen++; q.seen >= roundWindow {
		q.before, q.recent, q.seen = q.recent, 0, 0
	}
}

// expect makes n, which is freed next, wait for an event on s.
func (w *waitingBlocks) expect(n *node, s Stream, event uintptr) {
	p := w.spares
	if p == nil {
		p = new(pending)
	} else {
		w.spares = p.other
	}
	*p = pending{node: n, stream: s, event: event, other: recordOf(n).waits}
	recordOf(n).waits = p
}

// push adds n, with all that it waits for.
func (w *waitingBlocks) push(n *node) {
	w.list(n)
	for p := recordOf(n).waits; p != nil; p = p.other {
		w.link(p)
	}
}

// takeOver adds all that waits in o, in its order. Streams that both wait for have two queues
// then, since the work of one is not queued after that of the other.
func (w *waitingBlocks) takeOver(o *waitingBlocks) {
	for class := range o.queues {
		for n := o.queues[class].first; n != nil; {
			after := n.down
			w.list(n)
			n = after
		}
	}
	for _, q := range o.streams {
		w.addQueue(q)
	}
}

// addQueue adds a queue that other waiting blocks had, or a new one. What is waited for from
// now on goes to the end of the one that was added first.
func (w *waitingBlocks) addQueue(q *streamQueue) {
	if w.byName == nil {
		w.byName = map[Stream]*streamQueue{}
	}
	if w.byName[q.stream] == nil {
		w.byName[q.stream] = q
	}
	q.index = len(w.streams)
	w.streams = append(w.streams, q)
}

// list adds n to the queue of its size.
func (w *waitingBlocks) list(n *node) {
	class := sizeClass(n.size)
	q := &w.queues[class]
	n.State = waiting
	n.up, n.down = q.last, nil
	if q.last != nil {
		q.last.down = n
	} else {
		q.first = n
	}
	q.last = n
	q.blocks++
	w.blocks++
	w.classes |= 1 << class
}

// first returns a block of a size class, or of a larger one, that fits: of its class the one
// that was freed first. It returns nil if there is none.
func (w *waitingBlocks) first(class int, fits func(*node) bool) *node {
	for classes := w.classes >> class << class; classes != 0; classes &= classes - 1 {
		for n := w.queues[bits.TrailingZeros64(classes)].first; n != nil; n = n.down {
			if fits(n) {
				return n
			}
		}
	}
	return nil
}

// remove takes n, which waits for nothing any more, out.
func (w *waitingBlocks) remove(n *node) {
	class := sizeClass(n.size)
	q := &w.queues[class]
	if n.up != nil {
		n.up.down = n.down
	} else {
		q.first = n.down
	}
	if n.down != nil {
		n.down.up = n.up
	} else {
		q.last = n.up
	}
	n.up, n.down = nil, nil
	w.blocks--
	if q.blocks--; q.blocks == 0 {
		w.classes &^= 1 << class
	}
}

// link puts p at the end of its stream's queue.
func (w *waitingBlocks) link(p *pending) {
	q := w.byName[p.stream]
	if q == nil {
		q = &streamQueue{stream: p.stream}
		w.addQueue(q)
	}
	q.linked++
	p.queue, p.number, p.prev, p.next = q, q.linked, q.last, nil
	if q.last != nil {
		q.last.next = p
	} else {
		q.first = p
	}
	q.last = p
}

// unlink takes p out of its stream's queue and from its block.
func (w *waitingBlocks) unlink(p *pending) {
	q := p.queue
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		q.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		q.last = p.prev
	}
	at := &recordOf(p.node).waits
	for *at != p {
		at = &(*at).other
	}
	*at = p.other
	*p = pending{other: w.spares}
	w.spares = p
	if q.first != nil {
		return
	}
	if w.byName[q.stream] == q {
		delete(w.byName, q.stream)
	}
	end := len(w.streams) - 1
	w.streams[q.index], w.streams[end].index = w.streams[end], q.index
	w.streams[end] = nil
	w.streams = w.streams[:end]
}

// ahead returns what is the nth in the queue, or the last, and how many are up to it.
func (q *streamQueue) ahead(n int) (*pending, int) {
	p := q.first
	for i := 1; ; i++ {
		if i == n || p.next == nil {
			return p, i
		}
		p = p.next
	}
}

// visitLargest calls f for the blocks of the largest size class.
func (w *waitingBlocks) visitLargest(f func(n *node)) {
	if w.classes == 0 {
		return
	}
	for n := w.queues[bits.Len64(w.classes)-1].first; n != nil; n = n.down {
		f(n)
	}
}

// next returns the streams in turn.
func (w *waitingBlocks) next() *streamQueue {
	w.at++
	if w.at >= len(w.streams) {
		w.at = 0
	}
	return w.streams[w.at]
}
