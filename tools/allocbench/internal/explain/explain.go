package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mlpool/allocator/observe"
	"mlpool/internal/report"
	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/replay"
)

// Allocators are the allocators of a report unless -allocator names others.
const Allocators = "tlsf,slack 1/64,torch,torch-expandable," + bench.OnGPU

// noStacks says how a trace gets tags.
const noStacks = `The trace has no stacks, so blocks are named by their sizes: record it with torch.cuda.memory._record_memory_history(stacks="python").`

// noEvents says what a snapshot of segments alone does not tell.
const noEvents = "The snapshot has no events. Memory over time, ages of blocks, what would help and the smallest device need them: " + replay.Record + "."

// A Job is a trace to be explained.
type Job struct {
	Name     string // of the trace's file
	Requests *observe.Requests
	Machine  bench.Machine
	Among    []bench.Contender
	Warm     map[string][]float64 // ns a call of each replay, by contender
	Step     func()               // is called steps times
	Note     string               // of the page
	Growth   *report.Growth       // of the page
}

// Steps returns how often page calls step.
func (j *Job) Steps() int { return 2*len(j.Among) + 1 }

// Page replays the trace on each contender. If ctx is done the page is not complete.
func (j *Job) Page(ctx context.Context) (p report.Page, err error) {
	p = report.Page{Title: j.Name + ", " + time.Now().Format("2 January 2006"), Replay: true, Turns: true, Note: j.Note, Growth: j.Growth}
	facts := j.facts()
	for _, c := range j.Among {
		rec, err := recordHistory(ctx, j.Machine, c, j.Requests)
		if ctx.Err() != nil {
			return p, nil
		}
		own := facts[:len(facts):len(facts)]
		if err != nil {
			own = append(own, report.Fact{Name: "failed", Value: err.Error()})
		}
		p.Runs = append(p.Runs, report.Run{
			Name: c.Name, CallNS: j.Warm[c.Name], Recording: rec,
			Facts: append(own, report.Fact{Name: "what it is", Value: c.Doc}),
		})
		j.Step()
	}
	return p, j.explain(ctx, &p)
}

// explain adds to p what does not depend on one run: what would help, the smallest cards, the blocks and what the
// trace itself recorded.
func (j *Job) explain(ctx context.Context, p *report.Page) (err error) {
	t := j.Requests
	yours, note := recordedBy(t)
	p.Note = strings.TrimSpace(p.Note + " " + note)
	if i := slices.IndexFunc(p.Runs, func(r report.Run) bool { return r.Name == yours.Name }); i >= 0 {
		r := p.Runs[i]
		p.Runs = slices.Insert(slices.Delete(p.Runs, i, i+1), 0, r)
	}
	all, peak := lifetimes(t)
	if len(p.Runs) > 0 && len(p.Runs[0].Moments) > 0 { // the peak of the page is that of the job's allocator
		peak = int(p.Runs[0].Moments[report.Fullest(p.Runs[0].Moments)].MS)
	}
	if !slices.ContainsFunc(t.Tags, func(tag string) bool { return tag != "" }) {
		p.Note = strings.TrimSpace(p.Note + " " + noStacks)
	}
	p.Blocks, p.Sizes = blocksByTag(all, peak), sizeCells(all)
	if r, ok := recorded(t); ok {
		p.Runs = append(p.Runs, r)
	}
	if t.NoEvents {
		p.Note = strings.TrimSpace(p.Note + " " + noEvents)
		return nil
	}
	if p.Changes, err = changes(ctx, t); err != nil || ctx.Err() != nil {
		return err
	}
	j.Step()
	for _, c := range j.Among {
		bytes, err := smallest(ctx, t, c)
		if err != nil || ctx.Err() != nil {
			return err
		}
		if bytes > 0 {
			p.Cards = append(p.Cards, report.Card{Name: c.Name, Bytes: bytes, Live: t.Peak})
		}
		j.Step()
	}
	slices.SortStableFunc(p.Cards, func(a, b report.Card) int { return cmp.Compare(a.Bytes, b.Bytes) })
	return nil
}

// facts describes the trace and the machine.
func (j *Job) facts() []report.Fact {
	t := j.Requests
	facts := []report.Fact{
		{Name: "trace", Value: j.Name},
		{Name: "allocations", Value: fmt.Sprint(t.Allocs)},
		{Name: "frees", Value: fmt.Sprint(t.Frees)},
		{Name: "streams", Value: fmt.Sprint(t.Streams)},
		{Name: "most live", Value: fmt.Sprintf("%s in at most %d blocks", text.Bytes(t.Peak), t.Slots)},
	}
	if notes := t.Notes(); notes != nil {
		facts = append(facts, report.Fact{Name: "requests", Value: strings.Join(notes, "; ")})
	}
	facts = append(facts, report.Fact{Name: "machine", Value: j.Machine.Name})
	if j.Machine.Note != "" {
		facts = append(facts, report.Fact{Name: "times", Value: j.Machine.Note})
	}
	return facts
}
