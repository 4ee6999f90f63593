//go:build linux && cgo

package main

import (
	"strings"
	"testing"

	"mlpool/allocator"
)

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		list  string
		env   []string
		check func(o options) bool
		err   string // part of the error
	}{
		{list: "", check: func(o options) bool {
			return o.pool.Strategy == allocator.DefaultStrategy && o.traceEvents == 0 && o.driver.Device == 3
		}},
		{list: " slack = 0.25 ,, max_bytes=1000000,", check: func(o options) bool { return o.pool.Slack == 0.25 && o.pool.MaxBytes == 1e6 }},
		{list: "reuse=same-stream,segments=malloc,strategy=bestfit", check: func(o options) bool {
			return o.pool.Reuse == allocator.ReuseSameStream && o.pool.Segments == allocator.SegmentsMalloc && o.pool.Strategy == "bestfit"
		}},
		{list: "trace_events=7,shareable=1,keep_mapped=t,peers=2:0:5", check: func(o options) bool {
			return o.traceEvents == 7 && o.driver.Shareable && o.pool.KeepMapped && len(o.driver.Peers) == 3 && o.driver.Peers[2] == 5
		}},
		{list: "peers=all", check: func(o options) bool { return o.allPeers && len(o.driver.Peers) == 0 }},
		{list: "slack=0.5", env: []string{"MLPOOL_SLACK=0.75", "MLPOOL_MAX_FRACTION=0.5", "MLPOOL_LIBRARY=/x", "MLPOOL_COMPUTE_CAPABILITY=8.6", ""},
			check: func(o options) bool { return o.pool.Slack == 0.5 && o.pool.MaxFraction == 0.5 }},
		{env: []string{"MLPOOL_SLAK=1"}, err: "variable \"MLPOOL_SLAK\": there is no option \"slak\": did you mean slack?"},
		{list: "nonsense=1", err: "there are busy_slack, gc_threshold,"},
		{list: "slack", err: "want key=value"},
		{list: "slack=much", err: "slack"},
		{list: "shareable=2", err: "want true or false"},
		{list: "peers=0:x", err: "want a number"},
		{list: "trace_events=-1", err: "want a number"},
		{list: "trace=file.csv", err: "no option"},
	} {
		o, err := parseOptions(3, c.list, c.env)
		if c.err == "" && (err != nil || !c.check(o)) {
			t.Errorf("%q, %q: %+v, %v", c.list, c.env, o, err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%q, %q: %v, want %q in one line", c.list, c.env, err, c.err)
		}
	}
}

func FuzzOptions(f *testing.F) {
	for _, list := range []string{"slack=0.5,peers=1:2", "shareable=true", "max_bytes=1e9", "=", ",", "a=b=c", "strategy=\"tlsf\"", "slack=[", "x\x00=1", "a\nb=1"} {
		f.Add(list)
	}
	long := strings.Repeat("\x00", 1<<16)
	for _, list := range []string{long + "=1", long, "strategy=" + long, "slack=1" + long, "shareable=" + long, "slack=" + strings.Repeat("9", 1<<16)} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		_, err := parseOptions(0, list, nil)
		_, err2 := parseOptions(0, "", []string{"MLPOOL_" + list})
		for _, err := range []error{err, err2} {
			if err != nil && (len(err.Error()) > 4000 || strings.Contains(err.Error(), "\n")) {
				t.Errorf("%.200q: want an error of one short line, got %d bytes: %.200q", list, len(err.Error()), err)
			}
		}
	})
}

func TestTable(t *testing.T) {
	const blocks = 10_000
	var table table
	var e entry
	index := map[uintptr]uint32{}
	add := func(i uintptr) {
		index[i] = table.add(&entry{block: allocator.Block{Addr: 256 * i, Size: int64(i)}}).index
	}
	for i := uintptr(1); i <= blocks; i++ {
		add(i)
	}
	for i := uintptr(1); i <= blocks; i++ {
		addr := 256 * i
		if e, ok := table.get(index[i], addr, true); !ok || !e.shared || e.block.Size != int64(i) {
			t.Fatalf("block %d: %+v, %v", i, e, ok)
		}
		if table.take(index[i], addr+256, &e) {
			t.Fatalf("index %d is also of another address", index[i])
		}
		if !table.take(index[i], addr, &e) || !e.shared {
			t.Fatalf("block %d: %+v", i, e)
		}
		if table.take(index[i], addr, &e) {
			t.Fatalf("block %d is there twice", i)
		}
		if i%2 == 0 {
			continue
		}
		add(i + blocks) // it may get the index of a block that was taken
		if _, ok := table.get(index[i], addr, false); ok {
			t.Fatalf("block %d is still there", i)
		}
		if e, ok := table.get(index[i+blocks], addr+256*blocks, false); !ok || e.shared {
			t.Fatalf("block %d: %+v, %v", i+blocks, e, ok)
		}
	}
	if _, ok := table.get(1<<32-1, 256, false); ok { // NO_BLOCK
		t.Error("there is a block that no index names")
	}
}
