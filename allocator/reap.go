package allocator

import "math"

const (
	// reapDue is how many blocks may wait before a free looks at them.
	reapDue = 32
	// reapQueries is how many times it asks the driver, and then again as long as every
	// second question makes a block available.
	reapQueries = 16
)

// reapMost makes most blocks available whose work is done.
func (h *heap) reapMost() error {
	for {
		before, queries := h.waiting.blocks, reapQueries
		if err := h.reap(&queries); err != nil {
			return err
		}
		if before-h.waiting.blocks < reapQueries/2 {
			return nil
		}
	}
}

// reap makes blocks available whose work is found done. It asks the driver queries times at
// most, and takes from that number; at the next call other streams come first.
func (h *heap) reap(queries *int) error {
	for range len(h.waiting.streams) {
		if *queries <= 0 || len(h.waiting.streams) == 0 {
			return nil
		}
		if err := h.reapStream(h.waiting.next(), queries); err != nil {
			return err
		}
	}
	return nil
}

// reapStream does so for the blocks that wait for one stream, whose work ends in its order:
// what comes before work that is done is done too. So however many blocks wait, it takes few
// questions.
func (h *heap) reapStream(q *streamQueue, queries *int) error {
	most := math.MaxInt // of the waits at the front may be over
	over := 0
	for step := 1; q.first != nil && most > 0 && *queries > 0; {
		w, n := q.ahead(min(step, most))
		*queries--
		done, err := h.pool.driver.QueryEvent(w.event)
		switch {
		case err != nil:
			return err
		case !done:
			most = n - 1
			step = (most + 1) / 2
		default:
			for range n {
				h.passed(q.first)
			}
			most -= n
			over += n
			step = over // as many again
		}
	}
	return nil
}
