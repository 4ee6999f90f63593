package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/report"
	"mlpool/internal/text"
	"mlpool/kernels/device"
	"mlpool/model"
)

// A recording looks at a run from close by, which takes time. So it is of steps that are
// done once training has ended and the weights are saved: they move the weights on, and
// are counted nowhere. Only memory over time is of the first epoch, where a report is
// asked for: that epoch pays for what is done once, and is left out of the statistics.

// trainEpoch trains for one epoch. The first is watched, if that is asked for, but not one
// of graphs: what is captured has an allocator of its own, whose driver is not to be asked
// for anything meanwhile.
func (r *runner) trainEpoch(ctx context.Context) (e model.Epoch, err error) {
	if !r.watch || len(r.records) > 0 || r.captured() {
		return r.trainer.Epoch(ctx)
	}
	memory := newMoments()
	err = r.traced(1, memory.add, func(*allocator.Trace) error {
		e, err = r.trainer.Epoch(ctx)
		return err
	})
	r.recording.Memory, r.recording.Over = memory.list(), "the first epoch"
	return e, err
}

// traced does f with a trace around the device's allocator, and passes its events to each.
func (r *runner) traced(events int, each func(allocator.TraceEvent), f func(*allocator.Trace) error) error {
	t := allocator.NewTrace(r.allocs[0], events)
	t.Each(each)
	return r.device.Through(t, func() error { return f(t) })
}

// recordingPath is where the runner's recording goes; empty: nowhere.
func (r *runner) recordingPath() string {
	if r.folder == nil {
		return ""
	}
	return filepath.Join(r.folder.Dir, rundir.RecordingFile)
}

// record records a step of each runner, unless ctx is done. path says in which file it
// goes, "" in none. A recording that fails is a warning: the training has its result.
func (s *session) record(ctx context.Context, path func(*runner) string) {
	for _, r := range s.runners {
		file := path(r)
		if ctx.Err() != nil || file == "" && !r.watch {
			continue
		}
		err := r.record()
		if file != "" {
			err = errors.Join(err, writeRecording(file, r.recording))
		}
		if err != nil {
			fmt.Fprintf(s.stderr, "train: %s: the recording of a step lacks something: %s\n", r.String(), text.OneLine(err.Error()))
		}
	}
}

// record records a step. What fails is left out.
func (r *runner) record() error {
	events, peak := 0, 0 // of a step; the number of the Alloc that most is live after
	var most int64
	allocs, memory := 0, newMoments()
	err := r.traced(1, func(e allocator.TraceEvent) {
		events++
		memory.add(e)
		if e.Action != allocator.Allocated {
			return
		}
		if allocs++; e.Live > most {
			most, peak = e.Live, allocs
		}
	}, func(*allocator.Trace) error { return r.trainer.Repeat() })
	if err != nil {
		return err
	}
	if r.recording.Memory == nil {
		r.recording.Memory, r.recording.Over = memory.list(), "a training step"
	}
	m := &mapper{Allocator: r.allocs[0], left: peak}
	if err := r.device.Through(m, r.trainer.Repeat); err != nil {
		return err
	}
	r.recording.Peak = m.taken
	steps, err := r.recordSteps(events)
	if err != nil {
		return err
	}
	step := medianStep(steps)
	if r.captured() {
		step.Note = "Its kernels were launched one by one. In the epochs they are part of a graph, which takes no memory anew."
	}
	r.recording.Step = step
	return nil
}

// A step by itself may have met with anything that goes on beside it. So some are
// recorded, but no longer than a second, and that of median length is kept.
const (
	recordedSteps = 9
	recordedFor   = time.Second
)

// recordSteps records steps of so many events each, one at least.
func (r *runner) recordSteps(events int) (steps []*report.Timeline, err error) {
	for began := time.Now(); len(steps) == 0 || len(steps) < recordedSteps && time.Since(began) < recordedFor; {
		err := r.traced(events, nil, func(t *allocator.Trace) error {
			l, err := r.device.Timeline(r.trainer.Repeat)
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

// medianStep is the step of median length.
func medianStep(steps []*report.Timeline) *report.Timeline {
	slices.SortFunc(steps, func(a, b *report.Timeline) int { return cmp.Compare(a.Length, b.Length) })
	median := steps[len(steps)/2]
	median.Steps = len(steps)
	return median
}

// captured says whether the steps of the epochs are graphs.
func (r *runner) captured() bool { return len(r.allocs) > 1 }

// A mapper is an allocator that takes the map of another one right after a call of Alloc.
type mapper struct {
	allocator.Allocator
	left  int // calls of Alloc until then
	taken *allocator.Map
}

// Alloc implements [allocator.Allocator].
func (m *mapper) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	b, err := m.Allocator.Alloc(bytes, s, tag)
	if m.left--; m.left == 0 {
		taken := allocator.MapOf(m.Allocator)
		m.taken = &taken
	}
	return b, err
}

// timelineOf puts together what the device and the host did in a step. The events are of
// a trace that began at the given time.
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
			continue // of the steps before
		}
		call := report.Span{Name: "free " + e.Tag, Detail: fmt.Sprintf("%d bytes", e.Bytes), Start: microseconds(at), Length: microseconds(e.Took)}
		switch e.Action {
		case allocator.Allocated:
			call.Name, call.Start = "alloc "+e.Tag, microseconds(at-e.Took)
			lives[e.Addr] = life{len(t.Blocks), at}
			t.Blocks = append(t.Blocks, report.Span{Name: e.Tag, Detail: call.Detail, Start: microseconds(at), Length: microseconds(l.Length - at)})
		case allocator.Freed:
			if b, known := lives[e.Addr]; known {
				t.Blocks[b.block].Length = microseconds(at - b.from)
				delete(lives, e.Addr)
			}
		}
		t.Calls = append(t.Calls, call)
	}
	return t
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// writeRecording writes a recording, for -report to read back.
func writeRecording(path string, rec report.Recording) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return rundir.WriteFile(path, append(text, '\n'))
}
