package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/text"
)

const replayName = "replay"

// readTrace reads the trace in a file, and describes it.
func readTrace(path string, device int) (t *observe.Requests, doc string, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, "", fmt.Errorf("%s is a folder: name a file in it, or take -traces for all of them", path)
	}
	if t, err = observe.ReadFile(path, device); err != nil {
		return nil, "", err
	}
	doc = fmt.Sprintf("%s: %d allocations and %d frees on %s, at most %d blocks of %s live", filepath.Base(path),
		t.Allocs, t.Frees, text.Count(t.Streams, "stream"), t.Slots, text.Bytes(t.Peak))
	return t, strings.Join(append([]string{doc}, t.Notes()...), "; "), nil
}

// traceName returns the name of a trace's file without its extensions.
func traceName(path string) string {
	path = strings.TrimSuffix(path, ".gz")
	return strings.TrimSuffix(path, filepath.Ext(path))
}

// replays returns the scenario that replays the trace, or the traces, of the options.
func (o *options) replays() (scenario, error) {
	if o.traces != "" {
		return replaysBelow(o.traces)
	}
	t, doc, err := readTrace(o.trace, o.traceDevice)
	if err != nil {
		return scenario{}, err
	}
	c := replayCase(traceName(filepath.Base(o.trace)), t)
	return scenario{replayName, doc, false, func(bool) []testCase { return []testCase{c} }}, nil
}

func replayCase(name string, t *observe.Requests) testCase {
	return testCase{name, func(b *bench) error { return b.replay(name, t) }}
}

// tracesBelow returns the paths of the CSVs in a folder and its folders, in the order of their names.
func tracesBelow(dir string) (paths []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(strings.TrimSuffix(path, ".gz"), ".csv") {
			paths = append(paths, path)
		}
		return err
	})
	slices.SortFunc(paths, func(a, b string) int { return strings.Compare(traceName(a), traceName(b)) })
	return paths, err
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

// export writes the trace as RMM's CSV, and describes it.
func (o *options) export(stdout io.Writer) error {
	t, doc, err := readTrace(o.trace, o.traceDevice)
	if err != nil {
		return err
	}
	if err := writeFile(o.exportRMM, t.WriteRMM); err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, doc)
	return err
}

// sameFile reports whether two paths lead to one existing file.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// A replayer makes the calls of a trace. Kernels are not part of a trace: a block that is freed on
// another stream is assumed to be no longer in use.
type replayer struct {
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
func (r *replayer) calls(events []observe.Event) (int64, error) {
	var ops int64
	for i := range events {
		if r.over.Load() {
			break
		}
		e := &events[i]
		s, stream := &r.slots[e.Slot], r.streams[e.Stream]
		ops++
		if !e.Free {
			if e.Pool != r.pool {
				r.pool = e.Pool
				poolUser(r.a)(e.Pool)
			}
			block, err := r.a.Alloc(e.Bytes, stream, r.tags[e.Tag])
			if err == nil {
				*s = slot{true, block, stream}
			} else if !outOfMemory(err) {
				return ops, err
			} else {
				r.failed++
			}
		} else if s.taken {
			s.taken = false
			if err := r.a.Free(s.block, stream); err != nil {
				return ops, err
			}
		}
	}
	return ops, nil
}

// end frees the remaining blocks.
func (r *replayer) end() error {
	for i := range r.slots {
		if s := &r.slots[i]; s.taken {
			s.taken = false
			if err := r.a.Free(s.block, s.stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// once returns a function that makes all calls of a trace, and then frees the remaining blocks. It makes no
// garbage.
func (r *replayer) once(t *observe.Requests) func() (int64, error) {
	return func() (int64, error) {
		ops, err := r.calls(t.Events)
		if err != nil {
			return ops, err
		}
		return ops, r.end()
	}
}

// replay replays a trace once on an empty allocator, and then repeatedly. The reserved bytes of warm are
// those after the second replay, for any number of timed ones, so they depend on the requests alone.
func (b *bench) replay(name string, t *observe.Requests) error {
	streams, err := b.streams(t.Streams)
	if err != nil {
		return err
	}
	once := (&replayer{bench: b, streams: streams, slots: make([]slot, t.Slots), tags: t.Tags}).once(t)
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
