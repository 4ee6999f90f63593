package model

import (
	"errors"

	"gorgonia.org/tensor"
)

// dataset is a Set on the device, with the indices of its rows in the order of the epoch.
type dataset[T any] struct {
	images, labels, indices  T
	rows, batchSize, batches int // batchSize: of all ranks
	rank, ranks              int
}

// batch returns the number of rows of batch i; the last may be short.
func (d dataset[T]) batch(i int) int { return min(d.batchSize, d.rows-i*d.batchSize) }

// shard returns the first row and the number of rows of the rank's part of batch i.
func (d dataset[T]) shard(i int) (start, n int) {
	all := d.batch(i)
	from, to := all*d.rank/d.ranks, all*(d.rank+1)/d.ranks
	return i*d.batchSize + from, to - from
}

func (t *Trainer[T]) newDataset(name string, s Set, batchSize int) (dataset[T], error) {
	rows, ranks := s.len(), max(t.opt.Ranks, 1)
	batchSize *= ranks
	p := dataset[T]{rows: rows, batchSize: batchSize, batches: (rows + batchSize - 1) / batchSize, rank: t.opt.Rank, ranks: ranks}
	identity := make([]int32, rows)
	for i := range identity {
		identity[i] = int32(i)
	}
	images, err := t.mlp.padded(s.Images)
	if err != nil {
		return p, err
	}
	var errs [3]error
	p.images, errs[0] = t.own(name+" images", images)
	p.labels, errs[1] = t.own(name+" labels", s.Labels)
	p.indices, errs[2] = t.own(name+" indices", vector(identity))
	return p, errors.Join(errs[:]...)
}

func vector(v []int32) *tensor.Dense {
	return tensor.New(tensor.WithShape(len(v)), tensor.WithBacking(v))
}

// score combines the results of a data set's batches.
func (d dataset[T]) score(results []float32) (loss, accuracy float64) {
	for i := range d.batches {
		loss += float64(results[2*i]) * float64(d.batch(i))
		accuracy += float64(results[2*i+1])
	}
	return loss / float64(d.rows), accuracy / float64(d.rows)
}
