// Package report draws runs and traces as one HTML page that needs no network.
package report

import "mlpool/allocator"

// A Page is what a report shows: some runs, side by side.
type Page struct {
	Title string `json:"title"`
	// Replay says that the runs are replays of a trace: they have CallNS and no Epochs,
	// and their Memory is over requests.
	Replay bool  `json:"replay,omitempty"`
	Runs   []Run `json:"runs"` // the first is what differences are from
	// Differences are those of the runs after the first, where there are any.
	Differences []Difference `json:"differences,omitempty"`
}

// A Run is a training, or the replay of a trace, on one allocator. Parts that were not
// recorded are empty, and the page says so.
type Run struct {
	Name   string  `json:"name"`             // of the allocator: custom, cuda, custom:bestfit
	Facts  []Fact  `json:"facts"`            // what was run, and where
	Epochs []Epoch `json:"epochs,omitempty"` // whole ones
	// CallNS has, of each replay of a trace, the mean time of a call in nanoseconds.
	CallNS []float64 `json:"call_ns,omitempty"`
	// Losses has the mean loss of each training step, in nats.
	Losses []float32 `json:"-"`
	Recording
}

// A Fact is a line of a table of names and values.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// An Epoch is a pass over the training set, and the validation after it. Times are in
// milliseconds, memory in bytes.
type Epoch struct {
	Number int `json:"number"`
	// Warmup epochs are the first of a process: they pay for what is done once, and are
	// left out of medians and pictures of time.
	Warmup        bool    `json:"warmup,omitempty"`
	Steps         int     `json:"steps"` // that were timed
	TrainMS       float64 `json:"train_ms"`
	ValMS         float64 `json:"val_ms"`
	AllocatorMS   float64 `json:"allocator_ms"`
	Allocs        int64   `json:"allocs"`
	DriverCalls   int64   `json:"driver_calls"`
	ValLoss       float64 `json:"val_loss"`
	ValAcc        float64 `json:"val_acc"` // 0 to 1
	PeakAllocated int64   `json:"peak_allocated"`
	PeakReserved  int64   `json:"peak_reserved"`
}

// A Difference is how much longer, or shorter, a run's epochs took than those of the
// first run that were trained beside them.
type Difference struct {
	Name              string  `json:"name"` // of the run
	Epochs            int     `json:"epochs"`
	Percent, Low, Top float64 // the mean difference, and its 95 % interval
}

// A Recording is a run seen from close by.
type Recording struct {
	// Memory is what was live and reserved over time, thinned out to what a picture
	// can show.
	Memory []Moment `json:"memory,omitempty"`
	// Step is one training step: what the host and the device did.
	Step *Timeline `json:"step,omitempty"`
	// Peak is the memory of the pool when most of it was live.
	Peak *allocator.Map `json:"peak,omitempty"`
}

// A Moment is a time, in milliseconds from the recording's start, with the bytes that
// were live and reserved. In a replay MS is the number of the request instead.
type Moment struct {
	MS       float64 `json:"ms"`
	Live     int64   `json:"live"`
	Reserved int64   `json:"reserved"`
}

// A Timeline is what happened in a step, in microseconds from its start.
type Timeline struct {
	Length float64 `json:"length"`
	// Steps is how many were recorded; this is the one of median length.
	Steps int `json:"steps"`
	// Kernels ran on the device, one after the other unless they overlapped.
	Kernels []Span `json:"kernels"`
	// Calls are those of the host to the allocator.
	Calls []Span `json:"calls"`
	// Blocks are the lives of blocks, from Alloc to Free on the host.
	Blocks []Span `json:"blocks"`
	// Note says how the step differs from those that were timed; empty: it does not.
	Note string `json:"note,omitempty"`
}

// A Span is something with a start and a length, in microseconds.
type Span struct {
	Name   string  `json:"name"`
	Detail string  `json:"detail,omitempty"` // a shape, or bytes
	Start  float64 `json:"start"`
	Length float64 `json:"length"`
}
