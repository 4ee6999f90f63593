package model

import (
	"errors"
	"time"
)

// A watch detects a loss that is not finite during an epoch, without waiting for the last queued
// steps: while they run, it checks the losses of earlier ones. All ranks check the losses of all,
// after the same steps, so they end together.
type watch struct {
	every      int // steps between two checks, unless a chunk has more
	seen, sent int // steps whose losses were finite; and steps whose losses were sent to the host
}

// The losses between two checks are read once the same number of later steps is queued. So at most
// twice that number run after one that is not finite. If steps are short, more of them are between two
// checks. An epoch shorter than watchTime is not checked while it runs.
const (
	watchSteps = 100
	watchTime  = 50 * time.Millisecond
)

// watchEvery returns the steps between two checks: watchSteps, or more if they take less than
// watchTime.
func (t *Trainer[T]) watchEvery() int {
	if t.opt.Ranks > 1 || t.stepTime <= 0 { // ranks do not agree on a time
		return watchSteps
	}
	return max(watchSteps, int(watchTime/t.stepTime))
}

// diverged is called when steps are queued, before those up to next, and reports whether a loss that
// was sent is not finite.
func (t *Trainer[T]) diverged(w *watch, steps, next int) (bool, error) {
	if steps == w.sent || next-w.sent <= w.every {
		return false, nil
	}
	if w.seen < w.sent {
		results, err := t.ops.RowsAfter(lossesReduced, t.batchResults, w.seen, w.sent-w.seen)
		if err != nil {
			return false, err
		}
		for i := 0; i < len(results); i += 2 {
			if !finite(float64(results[i])) {
				return true, nil
			}
		}
	}
	w.seen, w.sent = w.sent, steps
	return false, errors.Join(t.reduceLoss(w.seen, w.sent), t.ops.AllReduce(t.batchResults, w.seen, w.sent-w.seen), t.ops.Mark(lossesReduced))
}
