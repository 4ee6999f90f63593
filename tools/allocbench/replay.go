package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/observe"
)

const replayName = "replay"

// replayOf returns the scenario that replays the trace in a file.
func replayOf(path string, device int) (scenario, error) {
	t, doc, err := readTrace(path, device)
	if err != nil {
		return scenario{}, err
	}
	c := replayCase(traceName(filepath.Base(path)), t)
	return scenario{replayName, doc, false, func(bool) []testCase { return []testCase{c} }}, nil
}

func replayCase(name string, t *observe.Requests) testCase {
	return testCase{name, func(b *bench) error { return replay(b, name, t) }}
}

// replaysBelow returns the scenario that replays the CSVs of tracesBelow. Of those with the same
// requests it takes the first.
func replaysBelow(dir string) (scenario, error) {
	paths, err := tracesBelow(dir)
	if err != nil {
		return scenario{}, err
	}
	var all []*observe.Requests
	var cases []testCase
	for _, path := range paths {
		t, _, err := readTrace(path, observe.MostEvents)
		if err != nil {
			return scenario{}, err
		}
		if slices.ContainsFunc(all, func(other *observe.Requests) bool { return slices.Equal(t.Events, other.Events) }) {
			continue
		}
		name, err := filepath.Rel(dir, traceName(path))
		if err != nil {
			return scenario{}, err
		}
		all, cases = append(all, t), append(cases, replayCase(filepath.ToSlash(name), t))
	}
	if len(all) == 0 {
		return scenario{}, fmt.Errorf("%s: has no CSV of a trace", dir)
	}
	doc := fmt.Sprintf("%d traces of %s", len(all), dir)
	return scenario{replayName, doc, false, func(bool) []testCase { return slices.Clone(cases) }}, nil
}

// A player makes the calls of a trace. Kernels are not part of a trace: a block that is freed on
// another stream is assumed to be no longer in use.
type player struct {
	*bench
	streams []allocator.Stream
	slots   []slot
	tags    []string // of Event.Tag
	pool    int32    // of the last request
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
		if p.over.Load() {
			break
		}
		e := &events[i]
		s, stream := &p.slots[e.Slot], p.streams[e.Stream]
		ops++
		if !e.Free {
			if e.Pool != p.pool {
				p.pool = e.Pool
				poolUser(p.a)(e.Pool)
			}
			block, err := p.a.Alloc(e.Bytes, stream, p.tags[e.Tag])
			if err == nil {
				*s = slot{true, block, stream}
			} else if !outOfMemory(err) {
				return ops, err
			} else {
				p.failed++
			}
		} else if s.taken {
			s.taken = false
			if err := p.a.Free(s.block, stream); err != nil {
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
			if err := p.a.Free(s.block, s.stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// replayer returns a function that makes all calls of a trace, and then frees the remaining blocks. It makes
// no garbage.
func replayer(b *bench, t *observe.Requests, streams []allocator.Stream) func() (int64, error) {
	p := &player{bench: b, streams: streams, slots: make([]slot, t.Slots), tags: t.Tags}
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
func replay(b *bench, name string, t *observe.Requests) error {
	streams, err := b.streams(t.Streams)
	if err != nil {
		return err
	}
	once := replayer(b, t, streams)
	b.holds(t.Peak)
	if err := b.measure(name+" cold", "call", 1, once); err != nil {
		return err
	}
	cut, err := b.within(func() error {
		_, err := once()
		return err
	})
	if err != nil {
		return err
	}
	reserved := b.a.Stats().PeakReserved
	if err := b.measure(name+" warm", "call", 1, b.repeated(once)); err != nil {
		return err
	}
	warm := &b.rows[len(b.rows)-1]
	warm.PeakReserved, warm.Cut = reserved, warm.Cut || cut
	return nil
}
