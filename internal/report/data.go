// Package report draws runs and traces as one HTML page that needs no network. Write takes a
// Page: what ran, in plain numbers; everything else here turns it into tables and charts.
package report

import (
	"mlpool/allocator"
	"mlpool/internal/gap"
)

// A Page is a report of one or more runs.
type Page struct {
	Title string
	// Replay reports whether the runs are replays of a trace: they have CallNS and no
	// Epochs, and their Memory is by request.
	Replay bool
	Runs   []Run // differences are from the first
	// Turns reports whether the runs took turns, so that times of one turn form a pair.
	// Other runs are shown but not ranked.
	Turns bool
	// Unlike holds settings in which the runs differ that change the work, with their
	// values. If there are any, the runs are not comparable.
	Unlike []Fact
	// Note is said in the header, such as that times mean nothing.
	Note string
	// Changes are what would change the reserved bytes of the trace, the most useful first.
	Changes []Change
	// Growth compares the trace with another one, unless it is nil.
	Growth *Growth
	// Cards are the smallest memory that each allocator can finish the trace with.
	Cards []Card
	// Blocks are the blocks of the trace by tag, those with most bytes AtPeak first.
	Blocks []TagBlocks
	// Sizes are the blocks of the trace by size and lifetime.
	Sizes []SizeCell
}

// A Change is a setting or an edit of the program, and what a replay with it reserved.
type Change struct {
	Name     string // what is changed
	Command  string // to copy: an environment variable, or code
	From, To int64  // bytes reserved at the peak, before and after
}

// A Card is the smallest memory of a device in which an allocator finishes the trace.
type Card struct {
	Name  string // of the allocator
	Bytes int64
	Live  int64 // most bytes live: no allocator needs less
}

// A TagBlocks is the blocks of one tag. Ages are in requests.
type TagBlocks struct {
	Tag       string
	Blocks    int    // in the whole trace
	Category  string // such as parameters, or "" if it is not known
	AtPeak    int64  // bytes live when the first run reserves most
	Largest   int64  // bytes of the largest block
	MedianAge int64  // from Alloc to Free; −1 if none was freed
	Unfreed   int    // blocks that are live at the end
}

// A SizeCell is the blocks of at least 2^Size and less than 2^(Size+1) bytes that lived for at least 2^Age and
// less than 2^(Age+1) requests. Age is −1 for blocks that were never freed.
type SizeCell struct {
	Size, Age int
	Blocks    int
	Bytes     int64
}

// A Run is a training or the replay of a trace on one allocator. The page names the parts
// that were not recorded.
type Run struct {
	Name     string  // of the allocator: custom, cuda, custom:bestfit
	Facts    []Fact  // what ran, and where
	Epochs   []Epoch // whole epochs
	Diverged int     // the epoch in which the loss became NaN or infinite; 0: none
	// CallNS is the mean time of a call in each replay, in nanoseconds.
	CallNS []float64
	// Losses is the mean loss of each training step, in nats.
	Losses []float32
	Recording
}

// When names the time of the fullest of Moments.
func (r Run) When() string {
	if r.AtEnd {
		return "at the end of " + r.Over
	}
	return "when " + r.Name + " reserves most"
}

// A Fact is a name and a value.
type Fact struct{ Name, Value string }

// An Epoch is a pass over the training set and the validation after it. Times are in
// milliseconds, memory in bytes.
type Epoch struct {
	Number int
	// Warmup marks the first epoch of a process, which includes one-time work. Medians and
	// charts of time omit it.
	Warmup        bool
	Steps         int // timed
	TrainMS       float64
	ValMS         float64
	AllocatorMS   float64
	DriverCalls   int64
	ValLoss       float64
	ValAcc        float64 // 0 to 1
	PeakAllocated int64
	PeakReserved  int64
}

// MostPeaks is how many peaks of Memory a chart can show. A recording needs no more.
const MostPeaks = 1000

// A Recording is a detailed view of a run.
type Recording struct {
	// Memory is the live and reserved bytes over time, at most MostPeaks of them.
	Memory []Peak `json:"memory,omitempty"`
	// Over names the span of Memory, such as "the first epoch", if known.
	Over string `json:"over,omitempty"`
	// Step is one training step on the host and the device.
	Step *Timeline `json:"step,omitempty"`
	// Peak is the map of the pool at its peak of live memory, for a run without Moments.
	Peak *allocator.Map `json:"peak,omitempty"`
	// Moments are the memory at some times, in their order. One of them is the first time at which the
	// reserved bytes were at their highest, unless AtEnd: then only the end is known.
	Moments []Moment `json:"moments,omitempty"`
	AtEnd   bool     `json:"at_end,omitempty"`
}

// A Moment is the memory of an allocator at one time.
type Moment struct {
	MS  float64        `json:"ms"`            // as in Peak
	Gap gap.Split      `json:"gap"`           // of Map
	Map *allocator.Map `json:"map,omitempty"` // nil: only the gap is known
}

// A Peak is the live and reserved bytes at a time, in milliseconds from the start of the
// recording. In a replay MS is the number of the request.
type Peak struct {
	MS       float64 `json:"ms"`
	Live     int64   `json:"live"`
	Reserved int64   `json:"reserved"`
}

// A Timeline is what happened in a step. Times are in microseconds from its start.
type Timeline struct {
	Length float64 `json:"length"`
	// Steps is the number of recorded steps, of which this has the median length.
	Steps int `json:"steps"`
	// Kernels ran on the device and may overlap.
	Kernels []Span `json:"kernels"`
	// Calls are the host's calls to the allocator.
	Calls []Span `json:"calls"`
	// Blocks are the lifetimes of blocks, from Alloc to Free on the host.
	Blocks []Span `json:"blocks"`
	// Note says how the step differs from the timed steps, if it does.
	Note string `json:"note,omitempty"`
}

// A Span has a start and a length, in microseconds.
type Span struct {
	Name   string  `json:"name"`
	Detail string  `json:"detail,omitempty"` // a shape, or bytes
	Start  float64 `json:"start"`
	Length float64 `json:"length"`
}

// totals returns the live and the reserved bytes of a map, and those of its largest free
// block. Memory that a stitch maps a second time counts once.
func totals(m *allocator.Map) (live, reserved, largest int64) {
	for _, s := range m.Segments {
		for _, b := range s.Blocks {
			if s.Kind != allocator.MapStitch && b.State != allocator.MapUnmapped {
				reserved += b.Bytes
			}
			switch b.State {
			case allocator.MapLive:
				live += b.Bytes
			case allocator.MapFree:
				largest = max(largest, b.Bytes)
			}
		}
	}
	return live, reserved, largest
}
