package order

import (
	"math"
	"math/bits"
)

// keptRounds is the number of rounds of freed memory that may wait for other streams before the stream
// that freed them waits for the first round. With one, a stream that copies a batch would wait for the
// computation on the last batch, and never overlap it; with many, a host that is far ahead of the device
// would hold memory without need.
const keptRounds = 4

// roundWindow is the number of frees of a class from which the size of a round is learned.
const roundWindow = 64

// rounds learns the number of items of a class in a round of the program's work.
type rounds struct {
	// row counts items freed in a row, without a request of the class between them; allocs was the
	// request count at the last free.
	row, allocs    int64
	recent, before int64 // largest row in this window, and in the last one
	seen           int64 // frees in this window
}

// size returns the number of items of a round.
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

// oldLooks bounds the items of a class that a request examines to find one that fits.
const oldLooks = 4096

// WaitForOldest makes stream s wait for items that were freed rounds ago, of every class, up to the first
// that fits. For others it makes at most calls driver calls, which it subtracts.
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

// wait makes s wait for all waits of an item.
func (q *Queue[T]) wait(it *Item[T], s Stream) error {
	for it.waits != nil {
		if err := q.waitUpTo(it.waits, s, DeviceWaits); err != nil {
			return err
		}
	}
	return nil
}

// waitUpTo waits for w, and so for all waits before it in its line.
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

// Drain makes all items ready, after stream s or the host waited for them.
func (q *Queue[T]) Drain(s Stream, how Mode) error {
	for len(q.lines) > 0 {
		if err := q.waitUpTo(q.lines[0].last, s, how); err != nil {
			return err
		}
	}
	return nil
}

// Claim makes stream s wait for all waits of items, and removes them from the queue without calling
// Ready. It returns marks events that mark the work of s after that.
func (q *Queue[T]) Claim(items []*Item[T], s Stream, marks int) (events []uintptr, err error) {
	last := map[*line[T]]*wait[T]{} // once it is done, so are those before it
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
	// reapDue is the number of items that may wait before a free queries them.
	reapDue = 32
	// A reap makes this many driver calls, and repeats while at least half of them make an item ready.
	reapQueries = 16
	// Poll makes its first query in this many calls, and then in twice as many as before each time.
	firstPoll = 2
)

// ReapIfDue makes most items ready whose work is done, if many wait, so that they do not pile up while
// memory is free.
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

// Poll makes items ready whose work is done, for requests that need none of them. The more of these there are
// since an item was added, the fewer of them make a query.
func (q *Queue[T]) Poll() error {
	if q.count == 0 {
		return nil
	}
	if q.asked++; q.asked < q.poll {
		return nil
	}
	q.poll *= 2
	queries := 1
	return q.Reap(&queries)
}

// Reap makes items ready whose work is found done. It makes at most queries driver calls, which it
// subtracts; the next call begins with other streams.
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

// reapLine is Reap for the waits for one stream. Its work ends in order, so all work before finished work
// is finished too, and few queries are enough for any number of waits.
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

// ahead returns the nth wait of the line, or the last, and its number.
func (l *line[T]) ahead(n int) (*wait[T], int) {
	w := l.first
	for i := 1; ; i++ {
		if i == n || w.next == nil {
			return w, i
		}
		w = w.next
	}
}
