package order

import "math/bits"

// Classes is the number of size classes of a [Queue].
const Classes = 40

// A Queue has items that were freed while other streams may still use them. They are listed twice:
// by size class, oldest first, and by the streams that they wait for, whose work ends in the order of
// the frees.
type Queue[T any] struct {
	users  *Users
	events *Events
	owner  Owner[T]

	classes uint64 // with an item
	byClass [Classes]class[T]

	lines  []*line[T] // of the streams that items wait for, in no order
	byName map[Stream]*line[T]
	at     int // in lines: the next one to query

	// count is the number of items, due the number from which on a free searches for items whose
	// work is done.
	count, due int64

	// asked is the number of calls of Poll since an item was added, poll that at which it makes a query.
	asked, poll int64

	spareItems *Item[T] // by down
	spareWaits *wait[T] // by other
}

// An Owner has a Queue.
type Owner[T any] interface {
	// Ready takes an item that no longer waits.
	Ready(of T)
}

// An Item is a waiting element of a Queue.
type Item[T any] struct {
	Of       T
	class    int
	waits    *wait[T]
	up, down *Item[T] // in the list of the class
}

// wait is work on a stream that an item waits for.
type wait[T any] struct {
	item   *Item[T]
	stream Stream
	event  uintptr
	other  *wait[T] // of the same item

	line       *line[T]
	number     int64    // in the line, rising
	prev, next *wait[T] // in the line
}

// A line has the waits for one stream, the work queued first at the front.
type line[T any] struct {
	stream      Stream
	first, last *wait[T]
	linked      int64 // so far
	index       int   // in Queue.lines
}

// class has the items of a size class.
type class[T any] struct {
	first, last *Item[T]
	count       int64
	rounds      rounds
}

// Init makes q an empty queue.
func (q *Queue[T]) Init(users *Users, events *Events, owner Owner[T]) {
	q.users, q.events, q.owner = users, events, owner
}

// After returns an item, for Push, that waits for the work queued so far on the streams of uses; nil:
// all of those were released. If the driver refuses an event, nothing changes.
func (q *Queue[T]) After(uses Uses, of T, class int) (*Item[T], error) {
	it := q.item(of, class)
	for _, u := range uses {
		if q.users.isGone(u) {
			continue
		}
		event, err := q.events.Record(u.stream)
		if err != nil {
			for w := it.waits; w != nil; w = w.other {
				q.events.Release(w.event)
			}
			return nil, err
		}
		q.expect(it, u.stream, event)
	}
	if it.waits == nil {
		q.discard(it)
		return nil, nil
	}
	return it, nil
}

// AfterEvent returns an item, for Push, that waits for an event on s.
func (q *Queue[T]) AfterEvent(s Stream, event uintptr, of T, class int) *Item[T] {
	it := q.item(of, class)
	q.expect(it, s, event)
	return it
}

func (q *Queue[T]) item(of T, class int) *Item[T] {
	it := q.spareItems
	if it == nil {
		it = new(Item[T])
	} else {
		q.spareItems = it.down
	}
	*it = Item[T]{Of: of, class: class}
	return it
}

func (q *Queue[T]) discard(it *Item[T]) {
	*it = Item[T]{down: q.spareItems}
	q.spareItems = it
}

// expect makes an item wait for an event on s.
func (q *Queue[T]) expect(it *Item[T], s Stream, event uintptr) {
	w := q.spareWaits
	if w == nil {
		w = new(wait[T])
	} else {
		q.spareWaits = w.other
	}
	*w = wait[T]{item: it, stream: s, event: event, other: it.waits}
	it.waits = w
}

// Push adds an item with its waits.
func (q *Queue[T]) Push(it *Item[T]) {
	q.list(it)
	q.asked, q.poll = 0, firstPoll
	for w := it.waits; w != nil; w = w.other {
		q.link(w)
	}
}

// Events calls visit with the events that an item, which may be nil, waits for.
func (it *Item[T]) Events(visit func(event uintptr)) {
	if it == nil {
		return
	}
	for w := it.waits; w != nil; w = w.other {
		visit(w.event)
	}
}

// Len returns the number of waiting items.
func (q *Queue[T]) Len() int64 { return q.count }

// TakeOver adds all items of o, in their order. Streams that both queues wait for then have two lines,
// since the work of one is not queued after that of the other.
func (q *Queue[T]) TakeOver(o *Queue[T]) {
	for i := range o.byClass {
		for it := o.byClass[i].first; it != nil; {
			after := it.down
			q.list(it)
			it = after
		}
	}
	for _, l := range o.lines {
		q.addLine(l)
	}
	*o = Queue[T]{}
}

// addLine adds a line of another queue, or a new one. Later waits for a stream go to the end of its first
// line.
func (q *Queue[T]) addLine(l *line[T]) {
	if q.byName == nil {
		q.byName = map[Stream]*line[T]{}
	}
	if q.byName[l.stream] == nil {
		q.byName[l.stream] = l
	}
	l.index = len(q.lines)
	q.lines = append(q.lines, l)
}

// list adds an item to its class.
func (q *Queue[T]) list(it *Item[T]) {
	c := &q.byClass[it.class]
	it.up, it.down = c.last, nil
	end := &c.first
	if c.last != nil {
		end = &c.last.down
	}
	*end, c.last = it, it
	c.count++
	q.count++
	q.classes |= 1 << it.class
}

// Largest calls yield for the items of each size class, the largest class first.
func (q *Queue[T]) Largest(yield func(class int, of T) bool) {
	for classes := q.classes; classes != 0; {
		class := bits.Len64(classes) - 1
		classes &^= 1 << class
		for it := q.byClass[class].first; it != nil; it = it.down {
			if !yield(class, it.Of) {
				return
			}
		}
	}
}

// remove removes an item that no longer waits.
func (q *Queue[T]) remove(it *Item[T]) {
	c := &q.byClass[it.class]
	if it.up != nil {
		it.up.down = it.down
	} else {
		c.first = it.down
	}
	if it.down != nil {
		it.down.up = it.up
	} else {
		c.last = it.up
	}
	q.count--
	if c.count--; c.count == 0 {
		q.classes &^= 1 << it.class
	}
	q.discard(it)
}

// link puts w at the end of its stream's line.
func (q *Queue[T]) link(w *wait[T]) {
	l := q.byName[w.stream]
	if l == nil {
		l = &line[T]{stream: w.stream}
		q.addLine(l)
	}
	l.linked++
	w.line, w.number, w.prev, w.next = l, l.linked, l.last, nil
	end := &l.first
	if l.last != nil {
		end = &l.last.next
	}
	*end, l.last = w, w
}

// unlink removes w from its stream's line and from its item, and releases its event.
func (q *Queue[T]) unlink(w *wait[T]) {
	q.events.Release(w.event)
	l := w.line
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	at := &w.item.waits
	for *at != w {
		at = &(*at).other
	}
	*at = w.other
	*w = wait[T]{other: q.spareWaits}
	q.spareWaits = w
	if l.first != nil {
		return
	}
	if q.byName[l.stream] == l {
		delete(q.byName, l.stream)
	}
	end := len(q.lines) - 1
	q.lines[l.index], q.lines[end].index = q.lines[end], l.index
	q.lines[end] = nil
	q.lines = q.lines[:end]
}

// passed ends one wait of an item, which is ready if it was the last.
func (q *Queue[T]) passed(w *wait[T]) {
	it := w.item
	q.unlink(w)
	if it.waits == nil {
		of := it.Of
		q.remove(it)
		q.owner.Ready(of)
	}
}
