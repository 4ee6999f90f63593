package model

import (
	"errors"
	"time"
)

// A watch finds out within an epoch that a loss is not finite, without a wait for the steps
// queued last: while those run, it looks at the losses of those before. Ranks look at the
// losses of all, after the same steps, so they end together.
type watch struct {
	every      int // steps between two looks, at most, unless a chunk has more
	seen, sent int // steps whose losses were finite; those up to sent are on their way to the host
}

// The losses between two looks are read once as many steps have been queued behind them, so at
// most twice as many follow on one that is not finite. Where steps are short, more of them lie
// between two looks, and an epoch of less than watchTime pays for none.
const (
	watchSteps = 100
	watchTime  = 50 * time.Millisecond
)

// watchEvery is how many steps lie between two looks: watchSteps, or more that take watchTime.
func (t *Trainer[T]) watchEvery() int {
	if t.opt.Ranks > 1 || t.stepTime <= 0 { // ranks do not agree on a time
		return watchSteps
	}
	return max(watchSteps, int(watchTime/t.stepTime))
}

// diverged is called when steps are queued, before more up to next are, and says whether a loss
// that was sent is not finite.
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
