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
	onEveryBackend(t, func(t *testing.T, l lab) {
		for name, c := range map[string]struct {
			weights []*tensor.Dense
			change  func(o *model.Options)
		}{
			"no hidden layer":         {model.Weights(12, 8, 0, data.Classes, 0), func(*model.Options) {}},
			"no layer":                {nil, func(*model.Options) {}},
			"layers that do not fit":  {slices.Concat(model.Weights(12, 8, 1, data.Classes, 0), model.Weights(12, 8, 1, data.Classes, 0)), func(*model.Options) {}},
			"batches of none":         {model.Weights(12, 8, 1, data.Classes, 0), func(o *model.Options) { o.BatchSize = 0 }},
			"validation of none":      {model.Weights(12, 8, 1, data.Classes, 0), func(o *model.Options) { o.EvalBatchSize = 0 }},
			"reports at no intervals": {model.Weights(12, 8, 1, data.Classes, 0), func(o *model.Options) { o.Verbose = func(int, float32) {} }},
		} {
			opt := options(30, 10)
			c.change(&opt)
			if _, err := model.NewTrainer(l.device(plain), train, test, c.weights, opt); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
