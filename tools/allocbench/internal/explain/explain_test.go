package explain

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/internal/gap"
	"mlpool/internal/must"
	"mlpool/internal/report"
	"mlpool/tools/allocbench/internal/bench"
	"mlpool/tools/allocbench/internal/replay"
)

const header = "Thread,Time,Action,Pointer,Size,Stream\n"

// addresses is a machine without a GPU.
var addresses = bench.Machine{Addresses: true, Open: func() (bench.Device, error) { return bench.NewNull(), nil }}

// TestAdviceHolds compares what a replay predicts of a change with what the job reserved on a GPU with that change.
func TestAdviceHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	r := csv.NewReader(bytes.NewReader(must.Read(t, "../../../../assets/advice_h200.csv")))
	r.Comment = '#'
	lines, err := r.ReadAll()
	must.OK(t, err)
	compared, without := 0, map[string]int64{} // bytes without a setting, by job
	for _, line := range lines[1:] {
		job, setting := line[0], line[1]
		if job == "moe" {
			continue // what it reserves depends on when its streams are done
		}
		measured, err := strconv.ParseInt(line[2], 10, 64)
		must.OK(t, err)
		if setting == "" {
			without[job] = measured
		}
		requests, _, err := replay.Read(filepath.Join("..", "..", "..", "traces", "testdata", job+".csv.gz"), observe.MostEvents)
		must.OK(t, err)
		for _, c := range append(settingChanges(without[job]), change{open: named(t, "torch")[0].Open}) {
			if c.name != setting && !(setting == "mlpool" && strings.Contains(c.command, "mlpool")) {
				continue
			}
			predicted, _, err := replay.Peak(t.Context(), requests, requests.Events, c.open, bench.NullBytes)
			must.OK(t, err)
			if off := math.Abs(float64(predicted)/float64(measured) - 1); off > 0.02 {
				t.Errorf("%s with %q: %d bytes predicted, %d measured", job, cmp.Or(setting, "no setting"), predicted, measured)
			}
			compared++
		}
	}
	if compared < 20 {
		t.Errorf("only %d rows compared", compared)
	}
}

// named returns contenders.
func named(t *testing.T, names string) []bench.Contender {
	t.Helper()
	found, err := bench.Named(names)
	must.OK(t, err)
	return found
}

// TestChanges edits a program: a block is freed before the request that made the memory grow, unless the request is
// for a block like it, and a second stream goes.
func TestChanges(t *testing.T) {
	const first, second, freed, last = "0,0,allocate,0x1,52428800,0\n", "0,0,allocate,0x2,%d,%d\n", "0,0,free,0x1,52428800,0\n", "0,0,free,0x2,%d,%d\n"
	for _, c := range []struct {
		text          string
		bytes, stream int64 // of the second block
		name          string
		from, to      int64 // MiB; 0: no such change
	}{
		{first + second + freed + last, 30 * bench.MiB, 0, "free blocks of 50.0 MiB (50.0 MiB) before blocks of 30.0 MiB (30.0 MiB)", 80, 50},
		{first + second + freed + last, 50 * bench.MiB, 0, "free blocks of 50.0 MiB (50.0 MiB) before blocks of 50.0 MiB (50.0 MiB)", 0, 0},
		{first + freed + second + last, 50 * bench.MiB, 7, "one stream instead of 2", 100, 50},
	} {
		r, err := observe.Read(strings.NewReader(header+fmt.Sprintf(c.text, c.bytes, c.stream, c.bytes, c.stream)), observe.MostEvents)
		must.OK(t, err)
		found, err := changes(t.Context(), r)
		must.OK(t, err)
		var got report.Change
		if i := slices.IndexFunc(found, func(f report.Change) bool { return f.Name == c.name }); i >= 0 {
			got = found[i]
		}
		if got.From != c.from*bench.MiB || got.To != c.to*bench.MiB {
			t.Errorf("%s: %+v, want from %d to %d MiB, in %+v", c.name, got, c.from, c.to, found)
		}
	}
}

// TestAllocConf replays a job with its settings, and warns of those that do harm together.
func TestAllocConf(t *testing.T) {
	var csv strings.Builder
	csv.WriteString(header)
	for i := range 20 { // two activations, freed, and a block that stays
		fmt.Fprintf(&csv, "0,0,allocate,0x1,%d,0\n0,0,allocate,0x2,%d,0\n0,0,allocate,%#x,%d,0\n0,0,free,0x1,0,0\n0,0,free,0x2,0,0\n", 91*bench.MiB, 45*bench.MiB, i+3, 2*bench.MiB)
	}
	r, err := observe.Read(strings.NewReader(csv.String()), observe.MostEvents)
	must.OK(t, err)
	for _, c := range []struct {
		conf, name, note string
		least, most      int64 // MiB reserved
	}{
		{"", "torch", "", 176, 220},
		{"expandable_segments:True", "torch-expandable", "", 176, 200},
		{"max_split_size_mb:128", "torch, as recorded", "", 176, 220},
		{"max_split_size_mb:128, expandable_segments:True", "torch, as recorded", "makes memory grow", 2000, 4000},
		{"roundup_power2_divisions:[256:1,>:2],backend:native", "torch", "not simulated: roundup_power2_divisions:[256:1,>:2], backend:native", 176, 220},
		{"garbage_collection_threshold:0.8", "torch", "not simulated: garbage_collection_threshold:0.8 (a share of set_per_process_memory_fraction)", 176, 220},
		{"max_split_size_mb:few", "torch", `"max_split_size_mb:few" is no option`, 176, 220},
	} {
		r.AllocConf = c.conf
		yours, note := recordedBy(r)
		most, _, err := replay.Peak(t.Context(), r, r.Events, yours.Open, bench.NullBytes)
		if must.OK(t, err); yours.Name != c.name || note != c.note && (c.note == "" || !strings.Contains(note, c.note)) || most < c.least*bench.MiB || most > c.most*bench.MiB {
			t.Errorf("%q: %s, %q, %d MiB; want %+v", c.conf, yours.Name, note, most/bench.MiB, c)
		}
		if among := WithRecorded(nil, r); len(among) != strings.Count(c.name, "as recorded") {
			t.Errorf("%q: %d allocators are added", c.conf, len(among))
		}
	}
}

// A counted allocator counts what takes longer with each stream.
type counted struct {
	allocator.Allocator
	stats, maps *int
}

func (c counted) Stats() allocator.Stats      { *c.stats++; return c.Allocator.Stats() }
func (c counted) Unwrap() allocator.Allocator { return c.Allocator }
func (c counted) Map() allocator.Map          { *c.maps++; return allocator.MapOf(c.Allocator) }

// TestManyStreams replays a block on each of many streams. What looks at all streams is done a bounded number of times.
func TestManyStreams(t *testing.T) {
	const streams = 400
	var csv strings.Builder
	csv.WriteString(header)
	for i := range streams {
		fmt.Fprintf(&csv, "0,0,allocate,%#x,%d,%#x\n", i+1, bench.MiB, i)
	}
	r, err := observe.Read(strings.NewReader(csv.String()), observe.MostEvents)
	must.OK(t, err)
	c := bench.Contenders()[0]
	var stats, maps int
	open := c.Open
	c.Open = func(d bench.Device) (allocator.Allocator, error) {
		a, err := open(d)
		return counted{a, &stats, &maps}, err
	}
	_, _, err = replay.Peak(t.Context(), r, r.Events, c.Open, bench.NullBytes)
	must.OK(t, err)
	_, err = recordHistory(t.Context(), addresses, c, r)
	if must.OK(t, err); stats > 2*mostMoments || maps > mostMoments || maps == 0 {
		t.Errorf("%s: asked for statistics %d times, and for a map %d times", c.Name, stats, maps)
	}
}

// TestPrivatePools replays a request of a captured graph after one of the default pool. PyTorch's rules need
// memory for each; the pool serves both with the same.
func TestPrivatePools(t *testing.T) {
	events := []observe.Event{{Bytes: 4 * bench.MiB}, {Bytes: 4 * bench.MiB, Free: true}, {Bytes: 4 * bench.MiB, Pool: 1}, {Bytes: 4 * bench.MiB, Pool: 1, Free: true}}
	r := &observe.Requests{Events: events, Streams: 1, Slots: 1, Tags: []string{""}, Categories: make([]observe.Category, 1), Allocs: 2, Frees: 2, Peak: 4 * bench.MiB}
	for name, want := range map[string]int64{"torch": 40 * bench.MiB, "torch-expandable": 40 * bench.MiB, "tlsf": 4 * bench.MiB} {
		c := named(t, name)[0]
		if most, _, err := replay.Peak(t.Context(), r, events, c.Open, bench.NullBytes); err != nil || most != want {
			t.Errorf("%s: %d bytes reserved, error %v; want %d", name, most, err, want)
		}
		rec, err := recordHistory(t.Context(), addresses, c, r)
		must.OK(t, err)
		if last := rec.Memory[len(rec.Memory)-1]; last.Reserved != want {
			t.Errorf("%s: %d bytes reserved in a replay, want %d", name, last.Reserved, want)
		}
	}
}

// TestExplained replays the traces of the tree, and checks at every moment that the causes add up to the gap, and
// that the allocator reserves what the gap says.
func TestExplained(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	paths, err := replay.Below("../../../traces/testdata")
	must.OK(t, err)
	var before [][]observe.Event
	for _, path := range paths {
		requests, _, err := replay.Read(path, observe.MostEvents)
		must.OK(t, err)
		if slices.ContainsFunc(before, func(b []observe.Event) bool { return slices.Equal(b, requests.Events) }) {
			continue // a job that PyTorch served in two ways
		}
		before = append(before, requests.Events)
		t.Run(replay.TraceName(filepath.Base(path)), func(t *testing.T) {
			t.Parallel()
			for _, c := range named(t, Allocators) {
				if c.Driver {
					continue
				}
				recording, err := recordHistory(t.Context(), addresses, c, requests)
				must.OK(t, err)
				checkMoments(t, c.Name, recording)
				most, _, err := replay.Peak(t.Context(), requests, requests.Events, c.Open, bench.NullBytes)
				must.OK(t, err)
				top := recording.Moments[report.Fullest(recording.Moments)]
				if top.Gap.Reserved != most {
					t.Errorf("%s: %d bytes at the peak of the moments, %d by a replay", c.Name, top.Gap.Reserved, most)
				}
			}
		})
	}
}

// TestExplainedRandom checks the same of random traces, with blocks that are freed on other streams.
func TestExplainedRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 2))
		var csv strings.Builder
		csv.WriteString(header)
		live := map[int]int64{}
		for i := range 300 {
			stream := r.IntN(int(seed%4) + 1)
			if at := r.IntN(i + 1); live[at] > 0 {
				fmt.Fprintf(&csv, "0,0,free,%#x,%d,%d\n", at+1, live[at], stream)
				delete(live, at)
				continue
			}
			live[i] = 1 + r.Int64N(1<<(1+r.IntN(27)))
			fmt.Fprintf(&csv, "0,0,allocate,%#x,%d,%d\n", i+1, live[i], stream)
		}
		requests, err := observe.Read(strings.NewReader(csv.String()), observe.MostEvents)
		must.OK(t, err)
		for _, c := range named(t, "tlsf,buddy,malloc segments,slack 1/64,malloc,torch,torch-expandable") {
			recording, err := recordHistory(t.Context(), addresses, c, requests)
			must.OK(t, err)
			checkMoments(t, c.Name, recording)
		}
	}
}

func checkMoments(t *testing.T, name string, r report.Recording) {
	t.Helper()
	if len(r.Moments) == 0 || len(r.Moments) > mostMoments || len(r.Memory) == 0 {
		t.Fatalf("%s: %d moments, %d peaks of memory", name, len(r.Moments), len(r.Memory))
	}
	for _, m := range r.Moments {
		sum := int64(0)
		for c, bytes := range m.Gap.Bytes {
			if sum += bytes; bytes < 0 {
				t.Errorf("%s, request %v: %v is %d bytes", name, m.MS, gap.Cause(c), bytes)
			}
		}
		if sum != m.Gap.Reserved-m.Gap.Live {
			t.Fatalf("%s, request %v: the causes add up to %d bytes, not to %d − %d", name, m.MS, sum, m.Gap.Reserved, m.Gap.Live)
		}
	}
}

// TestRecorded explains free memory by the request that the memory last grew for, or if none is known by the longest
// live block: what was there before is no growth.
func TestRecorded(t *testing.T) {
	in := func(addr uintptr, mib int64, state string, s allocator.Stream) allocator.MapSegment {
		b := allocator.MapBlock{Addr: addr, Bytes: mib * bench.MiB, State: state, Stream: s}
		if state == allocator.MapLive {
			b.Asked = b.Bytes
		}
		return allocator.MapSegment{Addr: addr, Bytes: b.Bytes, Stream: s, Pool: "large", Blocks: []allocator.MapBlock{b}}
	}
	before, grown := observe.ReservedAt{Bytes: 45 * bench.MiB}, observe.ReservedAt{Event: 2, Bytes: 75 * bench.MiB}
	for _, c := range []struct {
		reserved []observe.ReservedAt
		want     [gap.Causes]int64
	}{
		{[]observe.ReservedAt{before, grown}, [gap.Causes]int64{gap.OtherStream: 20 * bench.MiB, gap.Cached: 30 * bench.MiB}},
		{[]observe.ReservedAt{before}, [gap.Causes]int64{gap.Fragments: 20 * bench.MiB, gap.OtherStream: 30 * bench.MiB}},
	} {
		r, _ := recorded(&observe.Requests{
			Events:   []observe.Event{{Bytes: 4 * bench.MiB}, {Bytes: 4 * bench.MiB, Free: true}, {Bytes: 4 * bench.MiB, Stream: 1}, {Bytes: 4 * bench.MiB, Stream: 1, Free: true}},
			End:      &allocator.Map{Segments: []allocator.MapSegment{in(1<<30, 20, allocator.MapFree, 1), in(2<<30, 30, allocator.MapFree, 2), in(3<<30, 25, allocator.MapLive, 1)}},
			Reserved: c.reserved,
		})
		if got := r.Moments[0].Gap.Bytes; got != c.want {
			t.Errorf("%v: %v, want %v", c.reserved, got, c.want)
		}
	}
}
