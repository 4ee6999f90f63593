// Package report draws runs and traces as one HTML page that needs no network.
package report

import "mlpool/allocator"

// A Page is what a report shows: some runs, side by side.
type Page struct {
	Title string
	// Replay says that the runs are replays of a trace: they have CallNS and no Epochs,
	// and their Memory is over requests.
	Replay bool
	Runs   []Run // the first is what differences are from
	// Turns says that the runs took turns: what they took at one time is a pair. Runs that
	// did not are shown, and not ranked.
	Turns bool
	// Unlike are settings for which the runs do not do the same work, each with its values.
	// Runs that differ in one are not comparable.
	Unlike []Fact
}

// A Run is a training, or the replay of a trace, on one allocator. Parts that were not
// recorded are empty, and the page says so.
type Run struct {
	Name     string  // of the allocator: custom, cuda, custom:bestfit
	Facts    []Fact  // what was run, and where
	Epochs   []Epoch // whole ones
	Diverged int     // the epoch in which the loss became NaN or infinite; 0: none
	// CallNS has, of each replay of a trace, the mean time of a call in nanoseconds.
	CallNS []float64
	// Losses has the mean loss of each training step, in nats.
	Losses []float32
	Recording
}

// A Fact is a line of a table of names and values.
type Fact struct{ Name, Value string }

// An Epoch is a pass over the training set, and the validation after it. Times are in
// milliseconds, memory in bytes.
type Epoch struct {
	Number int
	// Warmup epochs are the first of a process: they pay for what is done once, and are
	// left out of medians and pictures of time.
	Warmup        bool
	Steps         int // that were timed
	TrainMS       float64
	ValMS         float64
	AllocatorMS   float64
	Allocs        int64
	DriverCalls   int64
	ValLoss       float64
	ValAcc        float64 // 0 to 1
	PeakAllocated int64
	PeakReserved  int64
}

// A Recording is a run seen from close by.
type Recording struct {
	// Memory is what was live and reserved over time, thinned out to what a picture
	// can show.
	Memory []Moment `json:"memory,omitempty"`
	// Over is what Memory is over, such as "the first epoch"; empty: not known.
	Over string `json:"over,omitempty"`
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
