package order

import (
	"math"
	"math/bits"
)

// keptRounds is how many rounds of freed memory lie while other streams use them, before the
// stream that freed them waits for the first of them. With one, a stream that copies a batch
// would wait for the computation on the batch before, and never overlap it; with more
// than a few, a host that runs far ahead of the device holds memory for nothing.
const keptRounds = 4

// roundWindow is how many frees of a class are looked at together to learn how many items a
// round has.
const roundWindow = 64

// rounds learns how many items of a class one round of the program's work has.
type rounds struct {
	// row is how many items were freed one after the other with no request of the class
	// between them, allocs the requests at the last of them.
	row, allocs    int64
	recent, before int64 // most in this window, and in the one before
	seen           int64 // frees in this window
}

// size returns how many items one round has.
func (r *rounds) size() int64 { return max(r.recent, r.before, 1) }

// Observe learns from a free of a class that had allocs requests.
func (q *Queue[T]) Observe(class int, allocs int64) {
	r := &q.byClass[class].rounds
	if allocs != r.allocs {
		r.allocs, r.row = allocs, 0
	}
	r.row++
	r.recent = max(r.recent, r.row)
	if r.seen++; r.seen >= roundWindow {
		r.before, r.recent, r.seen = r.recent, 0, 0
	}
}

// oldLooks bounds how many items of a class a request looks at to find one that fits.
const oldLooks = 4096

// WaitForOldest makes stream s wait for items that were freed rounds ago, of every class, up
// to the first that fits. For others it makes a number of calls at most, which it takes from
// calls.
func (q *Queue[T]) WaitForOldest(s Stream, fits func(T) bool, calls *int) error {
	for classes := q.classes; classes != 0; classes &= classes - 1 {
		c := &q.byClass[bits.TrailingZeros64(classes)]
		for c.first != nil && c.count >= keptRounds*c.rounds.size() {
			it := c.first
			found := fits(it.Of)
			for left := min(c.count-keptRounds*c.rounds.size(), oldLooks); left > 0 && !found; left-- {
				it = it.down
				found = fits(it.Of)
			}
			for w := it.waits; w != nil && !found; w = w.other {
				*calls--
			}
			if *calls < 0 && !found {
				break
			}
			if err := q.wait(it, s); err != nil || found {
				return err
			}
		}
	}
	return nil
}

// wait makes s wait for all that an item waits for.
func (q *Queue[T]) wait(it *Item[T], s Stream) error {
	for it.waits != nil {
		if err := q.waitUpTo(it.waits, s, DeviceWaits); err != nil {
			return err
		}
	}
	return nil
}

// waitUpTo waits for w, and so for all that is in its line before.
func (q *Queue[T]) waitUpTo(w *wait[T], s Stream, how Mode) error {
	if _, err := q.events.Pass(w.event, s, how); err != nil {
		return err
	}
	for l := w.line; l.first != w; {
		q.passed(l.first)
	}
	q.passed(w)
	return nil
}

// Drain makes everything ready that waits, for the work of stream s or the host, which waits
// for it.
func (q *Queue[T]) Drain(s Stream, how Mode) error {
	for len(q.lines) > 0 {
		if err := q.waitUpTo(q.lines[0].last, s, how); err != nil {
			return err
		}
	}
	return nil
}

// Claim makes stream s wait for all that items wait for, and takes them out of the queue: they
// are not passed to ready. It returns marks events that mark the work of s from there on.
func (q *Queue[T]) Claim(items []*Item[T], s Stream, marks int) (events []uintptr, err error) {
	last := map[*line[T]]*wait[T]{} // after which all before it is done, too
	for _, it := range items {
		for w := it.waits; w != nil; w = w.other {
			if l := last[w.line]; w.stream != s && (l == nil || w.number > l.number) {
				last[w.line] = w
			}
		}
	}
	for _, l := range q.lines {
		if w := last[l]; w != nil && err == nil {
			_, err = q.events.Pass(w.event, s, DeviceWaits)
		}
	}
	for err == nil && len(events) < marks {
		var event uintptr
		if event, err = q.events.Record(s); err == nil {
			events = append(events, event)
		}
	}
	if err != nil {
		for _, event := range events {
			q.events.Release(event)
		}
		return nil, err
	}
	for _, it := range items {
		for it.waits != nil {
			q.unlink(it.waits)
		}
		q.remove(it)
	}
	return events, nil
}

const (
	// reapDue is how many items may wait before a free looks at them.
	reapDue = 32
	// reapQueries is how many times it asks the driver, and then again as long as every
	// second question makes an item ready.
	reapQueries = 16
)

// ReapIfDue makes most items ready whose work is done, where many wait, so that they do not
// pile up while memory is free.
func (q *Queue[T]) ReapIfDue() error {
	if q.count < q.due {
		return nil
	}
	for {
		before, queries := q.count, reapQueries
		if err := q.Reap(&queries); err != nil {
			return err
		}
		if before-q.count < reapQueries/2 {
			break
		}
	}
	q.due = 2*q.count + reapDue
	return nil
}

// Reap makes items ready whose work is found done. It asks the driver queries times at most,
// and takes from that number; at the next call other streams come first.
func (q *Queue[T]) Reap(queries *int) error {
	for range len(q.lines) {
		if *queries <= 0 || len(q.lines) == 0 {
			return nil
		}
		if q.at++; q.at >= len(q.lines) {
			q.at = 0
		}
		if err := q.reapLine(q.lines[q.at], queries); err != nil {
			return err
		}
	}
	return nil
}

// reapLine does so for what waits for one stream, whose work ends in its order: what comes
// before work that is done is done too. So however much waits, it takes few questions.
func (q *Queue[T]) reapLine(l *line[T], queries *int) error {
	most := math.MaxInt // of the waits at the front may be over
	over := 0
	for step := 1; l.first != nil && most > 0 && *queries > 0; {
		w, n := l.ahead(min(step, most))
		*queries--
		done, err := q.events.Pass(w.event, 0, DontWait)
		switch {
		case err != nil:
			return err
		case !done:
			most = n - 1
			step = (most + 1) / 2
		default:
			for range n {
				q.passed(l.first)
			}
			most -= n
			over += n
			step = over // as many again
		}
	}
	return nil
}

// ahead returns the nth wait of the line, or the last, and how many are up to it.
func (l *line[T]) ahead(n int) (*wait[T], int) {
	w := l.first
	for i := 1; ; i++ {
		if i == n || w.next == nil {
			return w, i
		}
		w = w.next
	}
}
