package observe_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/allocator/observe"
	"mlpool/internal/must"
)

// dicts returns the members of a list of dicts.
func dicts(v any) (all []map[string]any) {
	for _, d := range *v.(*[]any) {
		all = append(all, d.(map[string]any))
	}
	return all
}

func snapshotOf(t *testing.T, tr *allocator.Trace) map[string]any {
	t.Helper()
	var out bytes.Buffer
	must.OK(t, observe.WriteSnapshot(&out, tr, allocator.MapOf(tr)))
	return unpickle(t, out.Bytes()).(map[string]any)
}

// entriesOf returns the entries of the trace of a snapshot.
func entriesOf(s map[string]any) []map[string]any {
	return dicts((*s["device_traces"].(*[]any))[0])
}

// count returns the number of entries that have one of actions.
func count(s map[string]any, actions ...string) (n int) {
	for _, e := range entriesOf(s) {
		if slices.Contains(actions, e["action"].(string)) {
			n++
		}
	}
	return n
}

// checkWalk walks a snapshot from its end to its beginning, as memory_viz does to show the
// memory at an event: each block lies in a segment, and no two segments have one address.
func checkWalk(t *testing.T, s map[string]any) {
	t.Helper()
	segments, blocks := map[int64]int64{}, map[int64]bool{}
	for _, g := range dicts(s["segments"]) {
		segments[g["address"].(int64)] = g["total_size"].(int64)
		for _, b := range dicts(g["blocks"]) {
			if b["state"] == "active_allocated" {
				blocks[b["address"].(int64)] = true
			}
		}
	}
	for i, e := range slices.Backward(entriesOf(s)) {
		addr, _ := e["addr"].(int64)
		switch e["action"] {
		case "free_completed":
			blocks[addr] = true
		case "alloc":
			delete(blocks, addr)
		case "segment_free":
			if _, there := segments[addr]; there {
				t.Fatalf("entry %d: a segment ends at %#x, where another one is", i, addr)
			}
			segments[addr] = e["size"].(int64)
		case "segment_alloc":
			if segments[addr] != e["size"] {
				t.Fatalf("entry %d: a segment of %v bytes begins at %#x, where one of %d was", i, e["size"], addr, segments[addr])
			}
			delete(segments, addr)
		}
		for at := range blocks {
			in := false
			for from, size := range segments {
				in = in || from <= at && at < from+size
			}
			if !in {
				t.Fatalf("before entry %d, %v %#x, the block at %#x is in no segment", i, e["action"], addr, at)
			}
		}
	}
}

func frame(d map[string]any) string {
	frames := dicts(d["frames"])
	if len(frames) == 0 {
		return ""
	}
	return frames[0]["name"].(string)
}

func TestSnapshot(t *testing.T) {
	f := allocatortest.NewFake(1 << 30).WithoutPages()
	p := newPool(t, f, allocator.PoolOptions{SegmentBytes: 1 << 20, MaxBytes: 1 << 22})
	old := alloc(t, p, 70_000, 0, "weights")
	tr := allocator.NewTrace(p, 100)
	a, b := alloc(t, tr, 300, 0, "gemm"), alloc(t, tr, 5, 0x7f0000001000, "gemm")
	must.OK(t, tr.Free(a, 0))
	for _, bytes := range []int64{1 << 40, -1} {
		if _, err := tr.Alloc(bytes, 0, "too \xffmuch"); err == nil {
			t.Fatalf("Alloc(%d): no error", bytes)
		}
	}
	s := snapshotOf(t, tr)
	var entries []string
	for _, e := range entriesOf(s) {
		addr, has := e["addr"]
		if !has {
			addr = e["device_free"]
		}
		entries = append(entries, fmt.Sprintf("%v %v %v %v %s", e["action"], addr, e["size"], e["stream"], frame(e)))
		if at := e["time_us"].(int64); at < tr.Begin().UnixMicro() || at > tr.Begin().UnixMicro()+3600e6 {
			t.Errorf("an entry at %d µs of a trace that begins at %d", at, tr.Begin().UnixMicro())
		}
	}
	want := []string{
		fmt.Sprintf("alloc %d 300 0 gemm", a.Addr), fmt.Sprintf("alloc %d 5 %d gemm", b.Addr, 0x7f0000001000),
		fmt.Sprintf("free_requested %d 300 0 gemm", a.Addr), fmt.Sprintf("free_completed %d 300 0 gemm", a.Addr),
		"oom -1 1099511627776 0 too \ufffdmuch",
	}
	if !slices.Equal(entries, want) {
		t.Errorf("entries %q, want %q", entries, want)
	}
	var live []string
	for _, g := range dicts(s["segments"]) {
		if g["is_expandable"] != false || g["device"] != int64(0) || g["segment_type"] != "all" {
			t.Errorf("segment %v", g)
		}
		for _, b := range dicts(g["blocks"]) {
			if b["state"] == "active_allocated" {
				live = append(live, fmt.Sprintf("%v %v %v %s", b["address"], b["size"], b["requested_size"], frame(b)))
			}
		}
	}
	slices.Sort(live)
	want = []string{fmt.Sprintf("%d 70144 70000 weights", old.Addr), fmt.Sprintf("%d 256 5 gemm", b.Addr)}
	if !slices.Equal(live, want) {
		t.Errorf("live blocks %q, want %q", live, want)
	}
	must.OK(t, tr.Free(old, 0), tr.Free(b, 0x7f0000001000))
	closeOn(t, f, tr)
}

// TestSnapshotAddsUp takes snapshots of random calls, with stitches: sums are those of the
// pool, and blocks cover their segments. Every tenth also has calls, with too many names for one byte.
func TestSnapshotAddsUp(t *testing.T) {
	const device, page = 2 << 20, 16 << 10
	f := allocatortest.NewFake(device).WithPages(page)
	p := newPool(t, f, allocator.PoolOptions{})
	tr, noCalls := allocator.NewTrace(p, 3000), allocator.NewTrace(p, 1)
	for i := range 300 {
		must.OK(t, tr.Free(alloc(t, tr, 256, 1, strings.Repeat("n", i)), 1))
	}
	random := rand.New(rand.NewPCG(1, 21))
	var blocks []allocator.Block
	stitched := false
	for call := range 300 {
		on := allocator.Stream(1 + random.IntN(4))
		b, err := p.Alloc(1+random.Int64N(device>>random.IntN(12)), on, "random")
		if err == nil {
			blocks = append(blocks, b)
		}
		for err != nil && len(blocks) > 0 || len(blocks) > 20 {
			i := random.IntN(len(blocks))
			must.OK(t, p.Free(blocks[i], on))
			blocks = slices.Delete(blocks, i, i+1)
			err = nil
		}
		m := p.Map()
		stitched = stitched || slices.ContainsFunc(m.Segments, func(g allocator.MapSegment) bool {
			return g.Kind == allocator.MapStitch && slices.ContainsFunc(g.Blocks, func(b allocator.MapBlock) bool { return b.State == allocator.MapLive })
		})
		if checkSums(t, snapshotOf(t, noCalls), 0, p.Stats()); call%10 == 0 {
			checkSums(t, snapshotOf(t, tr), 900, p.Stats())
		}
	}
	if !stitched {
		t.Error("no block was in a stitch")
	}
	for _, b := range blocks {
		must.OK(t, p.Free(b, 1))
	}
	closeOn(t, f, p)
}

// checkSums compares the segments of a snapshot with st, and the number of its entries.
func checkSums(t *testing.T, s map[string]any, entries int, st allocator.Stats) {
	t.Helper()
	if got := count(s, "alloc", "free_requested", "free_completed"); got != entries {
		t.Fatalf("%d entries, want %d", got, entries)
	}
	var reserved, allocated int64
	for _, g := range dicts(s["segments"]) {
		at := g["address"].(int64)
		for _, b := range dicts(g["blocks"]) {
			if b["address"] != at {
				t.Fatalf("a block at %v, want it at %v", b["address"], at)
			}
			at += b["size"].(int64)
		}
		if at != g["address"].(int64)+g["total_size"].(int64) || g["active_size"].(int64) < g["allocated_size"].(int64) || g["is_expandable"] != true {
			t.Fatalf("segment %v ends at %v", g, at)
		}
		reserved += g["total_size"].(int64)
		allocated += g["allocated_size"].(int64)
	}
	if reserved != st.Reserved || allocated != st.Allocated {
		t.Fatalf("%d bytes of %d in the snapshot, %d of %d in the statistics", allocated, reserved, st.Allocated, st.Reserved)
	}
}

// TestSnapshotOfPoison: the blocks of the snapshot have the addresses of the trace.
func TestSnapshotOfPoison(t *testing.T) {
	f := allocatortest.NewFake(1 << 30)
	tr := allocator.NewTrace(allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f), 10)
	b := alloc(t, tr, 300, 1, "gemm")
	segments := dicts(snapshotOf(t, tr)["segments"])
	if len(segments) != 1 || segments[0]["address"] != int64(b.Addr) || segments[0]["requested_size"] != int64(300) {
		t.Errorf("segments %v, want one at %d", segments, b.Addr)
	}
	must.OK(t, tr.Free(b, 1))
	closeOn(t, f, tr)
}

// TestSnapshotOfReturnedSegments frees blocks whose segments then return to the driver, or
// are unknown.
func TestSnapshotOfReturnedSegments(t *testing.T) {
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			f := allocatortest.NewFake(1 << 30)
			a := open(t, f)
			old := alloc(t, a, 5000, 1, "batch")
			tr := allocator.NewTrace(a, 100)
			var kept []allocator.Block
			for i := range 9 {
				kept = append(kept, alloc(t, tr, int64(i)<<20, 1, "gemm"))
			}
			for _, b := range kept[3:] {
				must.OK(t, tr.Free(b, 1))
			}
			f.Synchronize()
			must.OK(t, tr.Free(old, 1), tr.Trim(0))
			s := snapshotOf(t, tr)
			checkWalk(t, s)
			if n := count(s, "segment_alloc"); n == 0 || n != count(s, "segment_free") && n+1 != count(s, "segment_free") {
				t.Errorf("%d segments begin and %d end", n, count(s, "segment_free"))
			}
			for _, b := range kept[:3] {
				must.OK(t, tr.Free(b, 1))
			}
			checkWalk(t, snapshotOf(t, tr))
			closeOn(t, f, tr)
		})
	}
}
