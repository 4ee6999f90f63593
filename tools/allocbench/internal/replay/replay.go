package replay

import (
	"fmt"
	"path/filepath"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/tools/allocbench/internal/bench"
)

// Name is that of the scenario.
const Name = "replay"

// File returns the scenario that replays the trace in a file.
func File(path string, device int) (bench.Scenario, error) {
	t, doc, err := Events(path, device)
	if err != nil {
		return bench.Scenario{}, err
	}
	c := newCase(TraceName(filepath.Base(path)), t)
	return bench.Scenario{Name: Name, Doc: doc, Cases: func(bool) []bench.Case { return []bench.Case{c} }}, nil
}

func newCase(name string, t *observe.Requests) bench.Case {
	return bench.Case{Name: name, Streams: t.Streams, Live: t.Peak, Run: func(b *bench.Bench) error { return replay(b, name, t) }}
}

// Folder returns the scenario that replays the CSVs of Below. Of those with the same
// requests it takes the first.
func Folder(dir string) (bench.Scenario, error) {
	paths, err := Below(dir)
	if err != nil {
		return bench.Scenario{}, err
	}
	var all []*observe.Requests
	var cases []bench.Case
	for _, path := range paths {
		t, _, err := Read(path, observe.MostEvents)
		if err != nil {
			return bench.Scenario{}, err
		}
		if slices.ContainsFunc(all, func(other *observe.Requests) bool { return slices.Equal(t.Events, other.Events) }) {
			continue
		}
		name, err := filepath.Rel(dir, TraceName(path))
		if err != nil {
			return bench.Scenario{}, err
		}
		all, cases = append(all, t), append(cases, newCase(filepath.ToSlash(name), t))
	}
	if len(all) == 0 {
		return bench.Scenario{}, fmt.Errorf("%s: has no CSV of a trace", dir)
	}
	doc := fmt.Sprintf("%d traces of %s", len(all), dir)
	return bench.Scenario{Name: Name, Doc: doc, Cases: func(bool) []bench.Case { return slices.Clone(cases) }}, nil
}

// A player makes the calls of a trace. Kernels are not part of a trace: a block that is freed on
// another stream is assumed to be no longer in use.
type player struct {
	*bench.Bench
	slots []slot
	tags  []string // of Event.Tag
	pool  int32    // of the last request
}

// A slot in use holds a block and its stream.
type slot struct {
	taken  bool
	block  allocator.Block
	stream allocator.Stream
}

// calls makes the calls, until the time is up, and returns their number.
func (p *player) calls(events []observe.Event) (int64, error) {
	var ops int64
	for i := range events {
		if p.Over.Load() {
			break
		}
		e := &events[i]
		s, stream := &p.slots[e.Slot], p.Streams[e.Stream]
		ops++
		if !e.Free {
			if e.Pool != p.pool {
				p.pool = e.Pool
				bench.PoolUser(p.A)(e.Pool)
			}
			block, err := p.A.Alloc(e.Bytes, stream, p.tags[e.Tag])
			if err == nil {
				*s = slot{true, block, stream}
			} else if !bench.OutOfMemory(err) {
				return ops, err
			} else {
				p.Failed++
			}
		} else if s.taken {
			s.taken = false
			if err := p.A.Free(s.block, stream); err != nil {
				return ops, err
			}
		}
	}
	return ops, nil
}

// end frees the remaining blocks.
func (p *player) end() error {
	for i := range p.slots {
		if s := &p.slots[i]; s.taken {
			s.taken = false
			if err := p.A.Free(s.block, s.stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// Once returns a function that makes all calls of a trace, and then frees the remaining blocks. It makes
// no garbage.
func Once(b *bench.Bench, t *observe.Requests) func() (int64, error) {
	p := &player{Bench: b, slots: make([]slot, t.Slots), tags: t.Tags}
	return func() (int64, error) {
		ops, err := p.calls(t.Events)
		if err != nil {
			return ops, err
		}
		return ops, p.end()
	}
}

// replay replays a trace once on an empty allocator, and then repeatedly. The reserved bytes of warm are
// those after the second replay, for any number of timed ones, so they depend on the requests alone.
func replay(b *bench.Bench, name string, t *observe.Requests) error {
	once := Once(b, t)
	b.Holds(t.Peak)
	if err := b.Measure(name+" cold", "call", 1, once); err != nil {
		return err
	}
	_, cut, err := b.Within(once)
	if err != nil {
		return err
	}
	reserved := b.A.Stats().PeakReserved
	if err := b.Measure(name+" warm", "call", 1, b.Repeated(once)); err != nil {
		return err
	}
	warm := &b.Rows[len(b.Rows)-1]
	warm.PeakReserved, warm.Cut = reserved, warm.Cut || cut
	return nil
}
