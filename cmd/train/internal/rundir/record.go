package rundir

import (
	"encoding/json"
	"math"
)

// A Record is an epoch: a line of metrics.jsonl. Times are in milliseconds, memory in bytes.
type Record struct {
	Allocator   string `json:"allocator"`          // custom, cuda, custom:bestfit
	Segments    string `json:"segments,omitempty"` // of its pools: virtual, malloc, or both
	Epoch       int    `json:"epoch"`
	Steps       int    `json:"steps"`
	Interrupted bool   `json:"interrupted,omitempty"`
	// Warmup marks the first epoch of a process, which includes costs that occur once.
	Warmup bool `json:"warmup,omitempty"`
	// ResumedAfter is the number of steps of the epoch that an earlier run did. Times and allocations
	// do not include them.
	ResumedAfter int     `json:"resumed_after,omitempty"`
	Diverged     int     `json:"diverged,omitempty"` // the step at which the loss became NaN or infinite; 0: none
	Loss         Nats    `json:"loss"`
	ValLoss      Nats    `json:"val_loss"`
	ValAcc       float64 `json:"val_acc"` // 0 to 1

	TrainMS float64 `json:"train_ms"`
	ValMS   float64 `json:"val_ms"`

	// With several ranks: how long a step's exchanges of updates took, and how long the GPU waited for them,
	// in microseconds.
	AllReduceUS float64 `json:"all_reduce_us,omitempty"`
	ExposedUS   float64 `json:"all_reduce_exposed_us,omitempty"`

	Allocs        int64   `json:"allocs"`
	DriverCalls   int64   `json:"driver_calls"`
	DriverMallocs int64   `json:"driver_mallocs"`
	HostWaits     int64   `json:"host_waits"` // in the allocator, for queued work
	Refused       int64   `json:"refused"`    // requests that found no memory
	Mappings      int64   `json:"mappings"`   // of chunks of virtual segments
	Stitches      int64   `json:"stitches"`
	AllocatorMS   float64 `json:"allocator_ms"` // an estimate: see allocator.Timed
	PeakAllocated int64   `json:"peak_allocated"`
	PeakReserved  int64   `json:"peak_reserved"`
}

// TotalMS returns the time of the whole epoch.
func (r Record) TotalMS() float64 { return r.TrainMS + r.ValMS }

// Nats is a loss. In JSON NaN and infinity are null, which is read as NaN.
type Nats float64

// MarshalJSON writes a number, or null.
func (n Nats) MarshalJSON() ([]byte, error) {
	if v := float64(n); !math.IsNaN(v) && !math.IsInf(v, 0) {
		return json.Marshal(v)
	}
	return []byte("null"), nil
}

// MarshalCSV writes a number, or an empty cell for NaN and infinity.
func (n Nats) MarshalCSV() ([]byte, error) {
	text, err := n.MarshalJSON()
	if string(text) == "null" {
		return nil, err
	}
	return text, err
}

// UnmarshalJSON reads a number, or null.
func (n *Nats) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = Nats(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}
