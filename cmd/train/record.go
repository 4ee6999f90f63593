package main

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/model"
)

// record is an epoch as the logs keep it: a line of metrics.jsonl. Times are in
// milliseconds, memory in bytes.
type record struct {
	Allocator   string  `json:"allocator"`
	Epoch       int     `json:"epoch"`
	Steps       int     `json:"steps"`
	Interrupted bool    `json:"interrupted,omitempty"`
	Loss        nats    `json:"loss"`
	ValLoss     nats    `json:"val_loss"`
	ValAcc      float64 `json:"val_acc"` // 0 to 1

	TrainMS float64 `json:"train_ms"`
	ValMS   float64 `json:"val_ms"`

	Allocs        int64   `json:"allocs"`
	DriverCalls   int64   `json:"driver_calls"`
	DriverMallocs int64   `json:"driver_mallocs"`
	AllocatorMS   float64 `json:"allocator_ms"` // an estimate: see allocator.Timed
	PeakAllocated int64   `json:"peak_allocated"`
	PeakReserved  int64   `json:"peak_reserved"`

	diverged int // the step; 0: it did not
}

// nats is a loss. JSON has no NaN and no infinity: they are null there.
type nats float64

func (n nats) MarshalJSON() ([]byte, error) {
	if v := float64(n); !math.IsNaN(v) && !math.IsInf(v, 0) {
		return json.Marshal(v)
	}
	return []byte("null"), nil
}

// newRecord makes the record of an epoch from what the allocators'
// counters said before and after it, and the time spent in the allocator.
func newRecord(kind string, e model.Epoch, before, after allocator.Stats, spent time.Duration) record {
	return record{
		Allocator: kind, Epoch: e.Number, Steps: len(e.Losses), Interrupted: e.Interrupted,
		Loss: nats(e.Loss()), ValLoss: nats(e.ValLoss), ValAcc: e.ValAcc, diverged: e.Diverged(),
		TrainMS: milliseconds(e.Train), ValMS: milliseconds(e.Validation),
		Allocs:        after.Allocs - before.Allocs,
		DriverCalls:   after.DriverCalls - before.DriverCalls,
		DriverMallocs: after.DriverMallocs - before.DriverMallocs,
		AllocatorMS:   milliseconds(spent),
		PeakAllocated: after.PeakAllocated,
		PeakReserved:  after.PeakReserved,
	}
}

func (r record) totalMS() float64 { return r.TrainMS + r.ValMS }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// steady are the whole epochs after the first, which pays for what is done
// once; with no other, the first.
func steady(records []record) []record {
	whole := slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Interrupted })
	if len(whole) > 1 {
		return whole[1:]
	}
	return whole
}

// quantile returns the value of f that a share q of the records do not exceed.
func quantile[V cmp.Ordered](records []record, q float64, f func(record) V) (v V) {
	if len(records) == 0 {
		return v
	}
	values := make([]V, len(records))
	for i, r := range records {
		values[i] = f(r)
	}
	slices.Sort(values)
	return values[int(q*float64(len(values)-1)+0.5)]
}

func median[V cmp.Ordered](records []record, f func(record) V) V { return quantile(records, 0.5, f) }
