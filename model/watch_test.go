package model_test

import (
	"context"
	"fmt"
	"testing"

	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/model"
)

// TestDivergedEpochEnds trains on a row whose label is not a class, so that the loss of one step is NaN.
// The epoch ends at most 200 steps after it, or with its last step.
func TestDivergedEpochEnds(t *testing.T) {
	const steps, features, most = 700, 6, 200
	identity := func(int) []int32 { // of two ranks there are twice as many rows
		order := make([]int32, 2*steps)
		for i := range order {
			order[i] = int32(i)
		}
		return order
	}
	for _, bad := range []int{1, 399, 699} {
		opt := options(steps, 1)
		opt.ChunkSteps = 40
		check := func(t *testing.T, e model.Epoch) {
			t.Helper()
			done := len(e.Losses)
			if e.Diverged() != bad || e.Interrupted != (done < steps) || done > bad+most {
				t.Errorf("step %d has a loss of NaN: diverged at %d, ended after %d, interrupted %t", bad, e.Diverged(), done, e.Interrupted)
			}
		}
		onEveryBackend(t, func(t *testing.T, l lab) {
			train, test := blobs(steps, features, 1), blobs(3, features, 2)
			train.Labels.Uint8s()[bad-1] = 99
			opt := opt
			opt.Order = func(int) []int32 { return identity(0)[:steps] }
			trainer := newTrainer(t, l.device(plain), train, test, model.Weights(features, 4, 1, data.Classes, 0), opt)
			e, err := trainer.Epoch(context.Background())
			must.OK(t, err, trainer.Close())
			check(t, e)
		})
		// Only one rank has the row. All end at the same step, even if that rank knows how fast its
		// last epoch was.
		for _, name := range hostBackends() {
			t.Run(fmt.Sprint(name, " 2 ranks"), func(t *testing.T) {
				train, test := blobs(2*steps, features, 1), blobs(3, features, 2)
				train.Labels.Uint8s()[2*bad-1] = 99
				opt := opt
				opt.Order = identity
				for _, e := range trainRanks(t, name, 2, asIs, train, test, narrow(features), 2, opt).epochs {
					check(t, e)
				}
			})
		}
	}
}
