package model_test

import (
	"testing"

	"mlpool/model"
)

// TestRefused gives a trainer what cannot be trained.
func TestRefused(t *testing.T) {
	train, test := blobs(30, 12, 1), blobs(10, 12, 2)
	onEveryBackend(t, func(t *testing.T, l lab) {
		for name, c := range map[string]struct {
			hidden int
			change func(o *model.Options)
		}{
			"no hidden layer":         {0, func(*model.Options) {}},
			"no layer":                {-1, func(*model.Options) {}},
			"batches of none":         {1, func(o *model.Options) { o.BatchSize = 0 }},
			"validation of none":      {1, func(o *model.Options) { o.EvalBatchSize = -1 }},
			"reports at no intervals": {1, func(o *model.Options) { o.Verbose = func(int, float32) {} }},
		} {
			opt := options(30, 10)
			c.change(&opt)
			if _, err := model.NewTrainer(l.device(plain), train, test, model.Weights(12, 8, c.hidden, 0), opt); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
	})
}
