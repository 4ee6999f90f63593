// Package recording records a training in detail, for a report: memory over time, the map of memory
// at its peak, and what the device and the host do in a step.
//
// Recording takes time, so it uses extra steps after the training, once the weights are saved. These
// steps change the weights, but no result. Only [Recorder.Epoch] records an epoch of the training:
// the first one, which statistics leave out.
package recording

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/gap"
	"mlpool/internal/output"
	"mlpool/internal/report"
	"mlpool/kernels/device"
)

// A Recorder records the training on a device.
type Recorder struct {
	Device    *device.Device
	Allocator allocator.Allocator // the device's
	Repeat    func() error        // does an extra step
	Graphs    bool                // the steps of the epochs are graphs

	Recording report.Recording
}

// peaksOf converts peaks for a report.
func peaksOf(p *observe.Peaks) (all []report.Peak) {
	for _, o := range p.All() {
		all = append(all, report.Peak{MS: float64(o.Time) / float64(time.Millisecond), Live: o.Live, Reserved: o.Reserved})
	}
	return all
}

// Epoch calls f, which trains for an epoch, and records its memory over time.
func (r *Recorder) Epoch(f func() error) error {
	memory := observe.NewPeaks(report.MostPeaks)
	err := r.traced(1, memory.Add, func(*allocator.Trace) error { return f() })
	r.Recording.Memory, r.Recording.Over = peaksOf(memory), "the first epoch"
	return err
}

// traced calls f with a trace around the allocator, and passes the trace's events to each.
func (r *Recorder) traced(events int, each func(allocator.TraceEvent), f func(*allocator.Trace) error) error {
	t := allocator.NewTrace(r.Allocator, events)
	t.Each(each)
	return r.Device.Through(t, func() error { return f(t) })
}

// Step records a step. After an error the recording is incomplete.
func (r *Recorder) Step() error {
	events, peak := 0, 0 // of a step; the Alloc after which most is live
	var most int64
	memory := observe.NewPeaks(report.MostPeaks)
	err := r.traced(1, func(e allocator.TraceEvent) {
		memory.Add(e)
		if e.Action == allocator.ActionAlloc && e.Live > most {
			most, peak = e.Live, events
		}
		events++
	}, func(*allocator.Trace) error { return r.Repeat() })
	if err != nil {
		return err
	}
	if r.Recording.Memory == nil {
		r.Recording.Memory, r.Recording.Over = peaksOf(memory), "a training step"
	}
	if err := r.gaps(events, peak); err != nil {
		return err
	}
	steps, err := r.steps(events)
	if err != nil {
		return err
	}
	step := medianStep(steps)
	if r.Graphs {
		step.Note = "Its kernels were launched one by one. In the epochs they are part of a graph, which takes no memory anew."
	}
	r.Recording.Step = step
	return nil
}

// Other work of the machine may disturb a single step. So up to mostSteps are recorded, for at most
// stepsTime, and the one of median length is kept.
const (
	mostSteps = 9
	stepsTime = time.Second
)

// steps records steps, at least one. Each has the given number of events.
func (r *Recorder) steps(events int) (steps []*report.Timeline, err error) {
	for began := time.Now(); len(steps) == 0 || len(steps) < mostSteps && time.Since(began) < stepsTime; {
		err := r.traced(events, nil, func(t *allocator.Trace) error {
			l, err := r.Device.Timeline(r.Repeat)
			if err != nil {
				return err
			}
			events, _ := t.Events()
			steps = append(steps, timelineOf(l, t.Begin(), events))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// medianStep returns the step of median length.
func medianStep(steps []*report.Timeline) *report.Timeline {
	slices.SortFunc(steps, func(a, b *report.Timeline) int { return cmp.Compare(a.Length, b.Length) })
	median := steps[len(steps)/2]
	median.Steps = len(steps)
	return median
}

// mostGaps is how many moments of a step are recorded.
const mostGaps = 200

// gaps records moments of a step of so many events, and the map at event peak.
func (r *Recorder) gaps(events, peak int) error {
	var watch gap.Watch
	every := events/mostGaps + 1
	return r.traced(1, func(e allocator.TraceEvent) {
		at := watch.Calls
		watch.Add(e)
		if at != peak && at%every != 0 {
			return
		}
		m := allocator.MapOf(r.Allocator)
		moment := report.Moment{MS: float64(e.Time) / float64(time.Millisecond), Gap: watch.Split(r.Allocator, m)}
		if at == peak {
			r.Recording.Peak = &m
		}
		r.Recording.Moments = append(r.Recording.Moments, moment)
	}, func(*allocator.Trace) error { return r.Repeat() })
}

// timelineOf joins what the device and the host did in a step. events are from a trace that began
// at began.
func timelineOf(l device.Timeline, began time.Time, events []allocator.TraceEvent) *report.Timeline {
	t := &report.Timeline{Length: microseconds(l.Length)}
	for _, o := range l.Ops {
		t.Kernels = append(t.Kernels, report.Span{Name: o.Name, Detail: o.Shape, Start: microseconds(o.Start), Length: microseconds(o.Length)})
	}
	type life struct {
		block int // in t.Blocks
		from  time.Duration
	}
	lives := map[uintptr]life{} // by address
	for _, e := range events {
		at := began.Add(e.Time).Sub(l.Begin)
		if at < 0 {
			continue // before the step
		}
		call := report.Span{Name: "free " + e.Tag, Detail: fmt.Sprintf("%d bytes", e.Bytes), Start: microseconds(at), Length: microseconds(e.Took)}
		switch e.Action {
		case allocator.ActionAlloc:
			call.Name, call.Start = "alloc "+e.Tag, microseconds(at-e.Took)
			lives[e.Addr] = life{len(t.Blocks), at}
			t.Blocks = append(t.Blocks, report.Span{Name: e.Tag, Detail: call.Detail, Start: microseconds(at), Length: microseconds(l.Length - at)})
		case allocator.ActionFree:
			if b, known := lives[e.Addr]; known {
				t.Blocks[b.block].Length = microseconds(at - b.from)
				delete(lives, e.Addr)
			}
		}
		t.Calls = append(t.Calls, call)
	}
	return t
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Write writes the recording to a file, for -report to read.
func (r *Recorder) Write(path string) error {
	text, err := json.Marshal(r.Recording)
	if err != nil {
		return err
	}
	return output.WriteFile(path, append(text, '\n'))
}
