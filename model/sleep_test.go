package model_test

import (
	"reflect"
	"testing"

	"mlpool/allocator"
	"mlpool/data"
	"mlpool/model"
)

// A sleeper is an allocator that can release its memory and keep its addresses.
type sleeper interface {
	allocator.Allocator
	Segments() string
	Sleep(keep bool) error
	Wake() error
}

// TestTrainingSleeps trains with allocators that sleep between epochs, eagerly and from graphs that were
// captured before. Every number must be that of a training without sleep.
func TestTrainingSleeps(t *testing.T) {
	const rows, features, batch, epochs = 300, 23, 32, 3
	train, test := blobs(rows, features, 1), blobs(101, features, 2)
	weights := model.Weights(features, 37, 3, data.Classes, 5)
	onEveryBackend(t, func(t *testing.T, l lab) {
		var pools []sleeper
		for _, a := range []allocator.Allocator{l.alloc, l.captured} {
			if p, ok := a.(sleeper); ok {
				if p.Segments() != allocator.SegmentsVirtual {
					t.Skip("the device maps no pages")
				}
				pools = append(pools, p)
			}
		}
		if len(pools) == 0 {
			t.Skip("the allocator cannot sleep")
		}
		run := func(sleeps bool) (losses [][]float32, final [][]float32) {
			trainer := newTrainer(t, l.device(plain), train, test, weights, options(rows, batch))
			for range epochs {
				losses = append(losses, trainEpoch(t, trainer).Losses)
				for _, p := range pools {
					if !sleeps {
						break
					}
					if err := p.Sleep(true); err != nil {
						t.Fatal(err)
					}
					if st := p.Stats(); st.Reserved != 0 || st.PeakReserved == 0 {
						t.Errorf("asleep: %+v", st)
					}
				}
				for _, p := range pools {
					if err := p.Wake(); err != nil {
						t.Fatal(err)
					}
				}
			}
			host, err := trainer.Weights()
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range host {
				final = append(final, w.Float32s())
			}
			if err := trainer.Close(); err != nil {
				t.Error(err)
			}
			return losses, final
		}
		losses, final := run(false)
		asleep, finalAsleep := run(true)
		if !reflect.DeepEqual(losses, asleep) {
			t.Errorf("losses %v, with sleep %v", losses, asleep)
		}
		if !reflect.DeepEqual(final, finalAsleep) {
			t.Error("the weights differ")
		}
	})
}
