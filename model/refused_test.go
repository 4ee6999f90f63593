package model_test

import (
	"slices"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/data"
	"mlpool/model"
)

// TestRefused wants errors of trainings that are not possible.
func TestRefused(t *testing.T) {
	train, test := blobs(30, 12, 1), blobs(10, 12, 2)
	one := model.Weights(12, 8, 1, data.Classes, 0)
	ranks := func(rank, of int) func(*model.Options) {
		return func(o *model.Options) { o.Rank, o.Ranks = rank, of }
	}
	onEveryBackend(t, func(t *testing.T, l lab) {
		for name, c := range map[string]struct {
			weights []*tensor.Dense
			change  func(o *model.Options)
		}{
			"no hidden layer":         {model.Weights(12, 8, 0, data.Classes, 0), func(*model.Options) {}},
			"no layer":                {nil, func(*model.Options) {}},
			"images of other pixels":  {model.Weights(11, 8, 1, data.Classes, 0), func(*model.Options) {}},
			"layers that do not fit":  {slices.Concat(one, one), func(*model.Options) {}},
			"batches of none":         {one, func(o *model.Options) { o.BatchSize = 0 }},
			"validation of none":      {one, func(o *model.Options) { o.EvalBatchSize = 0 }},
			"reports at no intervals": {one, func(o *model.Options) { o.Verbose = func(int, float32) {} }},
			"after -1 epochs":         {one, func(o *model.Options) { o.Start.Epoch = -1 }},
			"after 3 steps of 3":      {one, func(o *model.Options) { o.Start.Losses = make([]float32, 3) }},
			"rank -1":                 {one, ranks(-1, 0)},
			"rank 1 of none":          {one, ranks(1, 0)},
			"rank 1 of 1":             {one, ranks(1, 1)},
			"rank 2 of 2":             {one, ranks(2, 2)},
			"rank -1 of 2":            {one, ranks(-1, 2)},
		} {
			opt := options(30, 10)
			c.change(&opt)
			if _, err := model.NewTrainer(l.device(plain), train, test, c.weights, opt); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
