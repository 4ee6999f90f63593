package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/report"
	"mlpool/internal/text"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/replay"
	"mlpool/tools/allocbench/peers"
)

// A change is something that a user of PyTorch can change, and the replay that shows what it does.
type change struct {
	name, command string
	open          func(bench.Device) (allocator.Allocator, error)
	events        []observe.Event // nil: those of the trace
}

// settingChanges returns the settings to try for a job whose allocator reserves so many bytes. If several save the same,
// the report recommends the first.
func settingChanges(reserved int64) []change {
	set := func(setting string, open func(allocator.PageDriver) peers.Peer) change {
		return change{name: setting, command: "PYTORCH_CUDA_ALLOC_CONF=" + setting, open: bench.Simulated("", "", open).Open}
	}
	torch := func(setting string, o peers.Settings) change {
		return set(setting, func(d allocator.PageDriver) peers.Peer { return peers.Torch(d, o) })
	}
	all := []change{
		set("expandable_segments:True", func(d allocator.PageDriver) peers.Peer { return peers.TorchExpandable(d, peers.Settings{}) }),
		{name: "the defaults of PyTorch", command: "unset PYTORCH_CUDA_ALLOC_CONF", open: torch("", peers.Settings{}).open},
	}
	for _, mb := range []int64{32, 64, 128, 256, 512} {
		all = append(all, torch(fmt.Sprintf("max_split_size_mb:%d", mb), peers.Settings{MaxSplitBytes: mb * bench.MiB}))
	}
	for _, n := range []int64{4, 16} {
		all = append(all, torch(fmt.Sprintf("roundup_power2_divisions:%d", n), peers.Settings{RoundUpDivisions: n}))
	}
	for _, percent := range []int64{60, 80} {
		c := torch(fmt.Sprintf("garbage_collection_threshold:0.%d", percent/10), peers.Settings{GarbageThreshold: reserved / 100 * percent})
		c.command += fmt.Sprintf("\ntorch.cuda.set_per_process_memory_fraction(%d / torch.cuda.mem_get_info()[1])", reserved)
		all = append(all, c)
	}
	return append(all, change{
		name: "this pool (tlsf)", command: "PYTHONPATH=build, after make lib\n# before the first CUDA call:\nimport mlpool; mlpool.install()",
		open: bench.Contenders()[0].Open,
	})
}

// mostEarlier is how many tags are tried as blocks to free earlier.
const mostEarlier = 5

// earlierFrees returns edits of the program: the blocks of one tag that are live at event peak and freed later
// are freed just before it.
func earlierFrees(t *observe.Requests, peak int, open func(bench.Device) (allocator.Allocator, error)) []change {
	type group struct {
		name  string
		bytes int64
		slots map[int32]bool
	}
	groups := map[string]*group{}
	live := make([]*observe.Event, t.Slots)
	for i := range t.Events[:peak] {
		e := &t.Events[i]
		if live[e.Slot] = e; e.Free {
			live[e.Slot] = nil
		}
	}
	for i := range t.Events[peak:] {
		e := &t.Events[peak+i]
		if born := live[e.Slot]; e.Free && born != nil {
			live[e.Slot] = nil
			name := blockName(t, born)
			if name == blockName(t, &t.Events[peak]) {
				continue // the advice would be to free blocks before themselves
			}
			if groups[name] == nil {
				groups[name] = &group{name: name, slots: map[int32]bool{}}
			}
			groups[name].bytes += born.Bytes
			groups[name].slots[e.Slot] = true
		}
	}
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), strings.Compare(a.name, b.name))
	})
	var all []change
	for _, g := range sorted[:min(len(sorted), mostEarlier)] {
		all = append(all, change{
			name:    fmt.Sprintf("free %s (%s) before %s (%s)", g.name, text.Bytes(g.bytes), blockName(t, &t.Events[peak]), text.Bytes(t.Events[peak].Bytes)),
			command: "del the tensors, if they are not used after that", open: open, events: freeBefore(t.Events, peak, g.slots),
		})
	}
	return all
}

// oneStream returns the edit that puts all work on one stream, if there are several. It shows what streams cost.
func oneStream(t *observe.Requests, open func(bench.Device) (allocator.Allocator, error)) []change {
	if t.Streams < 2 {
		return nil
	}
	events := slices.Clone(t.Events)
	for i := range events {
		events[i].Stream = 0
	}
	return []change{{
		name: fmt.Sprintf("one stream instead of %d", t.Streams), command: "leave out torch.cuda.stream(...), or use fewer streams: work then runs in turn",
		open: open, events: events,
	}}
}

// freeBefore returns events with the first Free of each slot after event peak moved before it. It empties slots.
func freeBefore(events []observe.Event, peak int, slots map[int32]bool) []observe.Event {
	var early, late []observe.Event
	for _, e := range events[peak:] {
		if e.Free && slots[e.Slot] {
			delete(slots, e.Slot)
			early = append(early, e)
			continue
		}
		late = append(late, e)
	}
	return slices.Concat(events[:peak], early, late)
}

// blockName names the block of an Alloc by its tag, or by its size.
func blockName(t *observe.Requests, e *observe.Event) string {
	return cmp.Or(t.Tags[e.Tag], "blocks of "+text.Bytes(e.Bytes))
}

// changes replays the trace with each change to PyTorch's allocator, and returns those that reserve less than
// it does without, the one that reserves least first.
func changes(ctx context.Context, t *observe.Requests) ([]report.Change, error) {
	yours, _ := recordedBy(t)
	from, full, err := replay.Peak(ctx, t, t.Events, yours.Open, bench.NullBytes)
	if bench.OutOfMemory(err) {
		return nil, nil // no change has a size to compare with
	}
	if err != nil {
		return nil, err
	}
	var found []report.Change
	for _, c := range slices.Concat(settingChanges(from), earlierFrees(t, full, yours.Open), oneStream(t, yours.Open)) {
		if yours.Name == "torch-expandable" && strings.Contains(c.command, "ALLOC_CONF") {
			continue // those are of the allocator without expandable segments
		}
		events := t.Events
		if c.events != nil {
			events = c.events
		}
		to, _, err := replay.Peak(ctx, t, events, c.open, bench.NullBytes)
		if err != nil && !bench.OutOfMemory(err) {
			return nil, err
		}
		if err == nil && to < from {
			found = append(found, report.Change{Name: c.name, Command: c.command, From: from, To: to})
		}
	}
	slices.SortStableFunc(found, func(a, b report.Change) int { return cmp.Compare(a.To, b.To) })
	return found, nil
}
