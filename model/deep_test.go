package model_test

import (
	"fmt"
	"math"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/data"
	"mlpool/kernels"
	"mlpool/kernels/collective"
	"mlpool/model"
)

// narrow returns the weights of a model of one bucket.
func narrow(features int) []*tensor.Dense { return model.Weights(features, 37, 3, data.Classes, 5) }

// deep returns the weights of a model of two buckets, since it has more layers than one bucket. They are
// scaled so that gradients reach its lowest layers.
func deep(features int) []*tensor.Dense {
	weights := model.Weights(features, 37, kernels.MaxGroup, data.Classes, 5)
	for _, w := range weights {
		values := w.Float32s()
		for i := range values {
			values[i] *= float32(math.Sqrt(6))
		}
	}
	return weights
}

// deepRate is a learning rate so low that rounding to bfloat16 changes the losses of a deep model less than
// a step does.
const deepRate = 0.001

// TestDeepRanks trains a model of two buckets on several ranks, whose results must be those of one rank
// with all their rows, within rounding. The last batch has fewer rows than there are ranks. Weights and
// updates in memory of the allocator give the same bits.
func TestDeepRanks(t *testing.T) {
	const features, batch, steps = 23, 2, 3
	for i, name := range hostBackends() {
		for _, ranks := range []int{3, 4, 5, 8} {
			t.Run(fmt.Sprint(name, " ", ranks), func(t *testing.T) {
				rows := batch*ranks*(steps-1) + 1
				train, test := blobs(rows, features, 1), blobs(5, features, 2)
				opt := options(rows, batch)
				opt.EvalBatchSize, opt.ChunkSteps, opt.Rate = 16, 2, deepRate
				exchanges := 0
				got := trainRanks(t, name, ranks, func(l *collective.Local) collective.Collective {
					if l.Rank() > 0 {
						return l
					}
					return counting{l, &exchanges}
				}, train, test, deep(features), 2, opt)
				if exchanges < 2*2*steps {
					t.Errorf("%d exchanges in %d steps of two buckets", exchanges, 2*steps)
				}
				again := trainRanks(t, name, ranks, withoutSymmetric, train, test, deep(features), 2, opt)
				if fmt.Sprint(got) != fmt.Sprint(again) {
					t.Error("the same training without symmetric memory comes to something else")
				}
				opt.BatchSize *= ranks
				want := trainRanks(t, name, 1, asIs, train, test, deep(features), 2, opt)
				for j, e := range got.epochs {
					for step, loss := range e.Losses {
						if one := want.epochs[j].Losses[step]; math.Abs(float64(loss-one)) > backends[i].tolerance(1e-4) {
							t.Errorf("epoch %d, step %d: loss %v, of one rank %v", j+1, step+1, loss, one)
						}
					}
				}
			})
		}
	}
}

// counting is a rank that counts its exchanges.
type counting struct {
	collective.Collective
	exchanges *int
}

func (c counting) Exchange(u collective.Updates, stream uintptr) error {
	*c.exchanges++
	return c.Collective.Exchange(u, stream)
}
