package main

import (
	"encoding/json"
	"fmt"
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
	Segments    string  `json:"segments,omitempty"` // see runner.segments
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

// whole are the epochs that were not interrupted.
func whole(records []record) []record {
	return slices.DeleteFunc(slices.Clone(records), func(r record) bool { return r.Interrupted })
}

// steady are the epochs after the first, which pays for what is done once; with no
// other, the first.
func steady(records []record) []record {
	if len(records) > 1 {
		return records[1:]
	}
	return records
}

// quantile returns the value of f that a share q of the records, at least one, do
// not exceed; between two of them it is in proportion.
func quantile(records []record, q float64, f func(record) float64) float64 {
	values := make([]float64, len(records))
	for i, r := range records {
		values[i] = f(r)
	}
	slices.Sort(values)
	below, part := math.Modf(q * float64(len(values)-1))
	v := values[int(below)]
	if part > 0 {
		v += part * (values[int(below)+1] - v)
	}
	return v
}

// median is the middle value of f, or the mean of the two in the middle.
func median(records []record, f func(record) float64) float64 { return quantile(records, 0.5, f) }

// agreement says whether the losses of as many steps are the same, bit for bit.
func agreement(a, b []float32) string {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Sprintf("differ from step %d on", i+1)
		}
	}
	return "identical"
}
