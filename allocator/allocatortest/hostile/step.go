package hostile

import (
	"errors"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A stepper runs steps of a Plan: scripts that repeat, sometimes with a change.
type stepper struct {
	scripts []script // nil: the allocator is no Plan, or another worker runs the steps

	open   bool // a step is in progress
	stream allocator.Stream
	todo   []call // the rest of its calls
	scope  []*held
	breaks int // one step in breaks is changed
}

// A script is the calls of a step.
type script struct {
	name   string
	stream allocator.Stream
	calls  []call
}

// A call is an Alloc, or an action on a block of the step.
type call struct {
	kind  callKind
	bytes int64
	block int // in the order of the step's Allocs
}

type callKind uint8

const (
	callAlloc callKind = iota
	callFree
	callUse
	callKeep // the block outlives the step
)

// prepare writes scripts.
func (st *stepper) prepare(w *worker) {
	r := w.random
	st.breaks = 2 + r.IntN(12)
	for k := range 1 + r.IntN(3) {
		s := script{name: []string{"train", "validate", "infer"}[k], stream: w.anyStream()}
		var live []int
		blocks := 0
		for range 3 + r.IntN(40) {
			if len(live) == 0 || r.IntN(5) < 3 {
				s.calls = append(s.calls, call{kind: callAlloc, bytes: w.size()})
				live = append(live, blocks)
				blocks++
				continue
			}
			i := r.IntN(len(live))
			if r.IntN(4) == 0 {
				s.calls = append(s.calls, call{kind: callUse, block: live[i]})
				continue
			}
			s.calls = append(s.calls, call{kind: callFree, block: live[i]})
			live = slices.Delete(live, i, i+1)
		}
		for _, b := range live {
			kind := callFree
			if r.IntN(8) == 0 {
				kind = callKeep
			}
			s.calls = append(s.calls, call{kind: kind, block: b})
		}
		st.scripts = append(st.scripts, s)
	}
}

// next continues the step in progress, or sometimes begins one, and reports whether it
// did anything.
func (st *stepper) next(w *worker) bool {
	switch {
	case !st.open && w.random.IntN(4) == 0:
		st.begin(w)
	case !st.open:
		return false
	case len(st.todo) == 0:
		st.end(w)
	default:
		c := st.todo[0]
		st.todo = st.todo[1:]
		st.do(w, c)
	}
	return true
}

func (st *stepper) begin(w *worker) {
	r := w.random
	s := &st.scripts[r.IntN(len(st.scripts))]
	if r.IntN(16) == 0 || !slices.Contains(w.streams, s.stream) {
		s.stream = w.anyStream()
	}
	if r.IntN(20) == 0 {
		if err := w.plan.End(); err == nil {
			w.fail("End without a step succeeds")
		}
	}
	w.note("begin a step on %#x", s.stream)
	if !w.usual("Begin", w.plan.Begin(s.name, s.stream)) {
		return
	}
	st.open, st.stream, st.scope = true, s.stream, st.scope[:0]
	st.todo = s.calls
	if r.IntN(st.breaks) == 0 {
		st.todo = change(w, s.calls)
	}
	if r.IntN(20) == 0 {
		if err := w.plan.Begin("within", s.stream); err == nil || errors.Is(err, allocatortest.ErrInjected) {
			w.fail("Begin within a step: %v", err)
		}
	}
}

// change returns a copy of calls with one call changed.
func change(w *worker, calls []call) []call {
	calls = slices.Clone(calls)
	i := w.random.IntN(len(calls))
	switch c := &calls[i]; {
	case c.kind == callAlloc && w.random.IntN(2) == 0:
		c.bytes = w.size()
	case c.kind == callAlloc:
		last := 0
		for _, c := range calls {
			if c.kind == callAlloc {
				last++
			}
		}
		calls = append(calls, call{kind: callAlloc, bytes: w.size()}, call{kind: callFree, block: last})
	case c.kind == callFree && w.random.IntN(2) == 0:
		c.kind = callKeep
	default:
		calls = calls[:i+1] // the rest is freed at the end
	}
	return calls
}

// do makes one call of a step. The scope has nil for an Alloc that failed.
func (st *stepper) do(w *worker, c call) {
	if c.kind == callAlloc {
		h := w.alloc(c.bytes, st.stream)
		if h != nil {
			h.scoped = true
		}
		st.scope = append(st.scope, h)
		return
	}
	if c.block >= len(st.scope) {
		return
	}
	h := st.scope[c.block]
	if h == nil || h.free || !h.scoped {
		return
	}
	switch c.kind {
	case callFree:
		h.scoped = !w.free(h, st.stream)
	case callUse:
		w.use(h, st.stream)
	case callKeep:
		h.scoped = false
	}
}

// end usually frees the rest of the blocks, and ends the step.
func (st *stepper) end(w *worker) {
	for _, h := range st.scope {
		if h == nil || h.free || !h.scoped {
			continue
		}
		h.scoped = false
		if w.random.IntN(4) > 0 {
			w.free(h, st.stream)
		}
	}
	w.note("end")
	// A step also ends if End fails.
	st.open = false
	w.usual("End", w.plan.End())
	for _, p := range w.plan.Plans() {
		if p.Arena < p.LowerBound || p.Replays < 0 || p.Mismatches < 0 {
			w.fail("plan with %+v", p)
		}
	}
}
