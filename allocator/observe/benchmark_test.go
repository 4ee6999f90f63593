package observe

import (
	"bufio"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchmarkSnapshot writes a snapshot as Python does: entries pairs of an alloc and its
// free, each with a list of depth frames that were pickled before, and returns its size.
func benchmarkSnapshot(b *testing.B, path string, pairs, depth int) int64 {
	const stacks = 20
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	p := &stackPickler{pickler: newPickler(f), stacks: stacks, depth: depth}
	p.dict(func() {
		p.word("allocator_settings", strings.Repeat(" ", firstOther))
		p.text("segments")
		p.list(1, func(int) { p.largeSegment() })
		p.text("device_traces")
		p.list(1, func(int) {
			p.list(3*pairs, func(i int) {
				pair := i / 3
				p.stackEntry([]string{"alloc", "free_requested", "free_completed"}[i%3], 1<<46+int64(pair%1000)<<9, pair%stacks)
			})
		})
	})
	if err := p.finish(); err != nil {
		b.Fatal(err)
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}

// A stackPickler has a memo for each dict, list and tuple too, as Python does.
type stackPickler struct {
	*pickler
	stacks, depth int
	others        int // memos of no name
}

// firstOther is more than there are names. A memo may not have a number that exceeds the
// bytes before it.
const firstOther = 1000

// memoize stores the value on top of the stack under a number that no name has.
func (p *stackPickler) memoize() {
	p.op(opPut4, uint64(firstOther+p.others), 4)
	p.others++
}

func (p *stackPickler) stackEntry(action string, addr int64, number int) {
	p.out.WriteByte(opEmptyDict)
	p.memoize()
	p.out.WriteByte(opMark)
	p.word("action", action)
	p.number("addr", addr)
	p.number("size", 512)
	p.number("stream", 0)
	p.number("time_us", 1_700_000_000_000_000)
	p.text("pool_id")
	p.pair(0, 0)
	p.memoize()
	p.text("frames")
	p.out.WriteByte(opEmptyList)
	p.memoize()
	p.out.WriteByte(opMark)
	for i := range p.depth {
		file := "/usr/lib/python3/site-packages/torch/nn/modules/module.py"
		if i == p.depth/2 {
			file = "/home/user/model.py"
		}
		name := string(binary.LittleEndian.AppendUint16([]byte("frame "), uint16(number*p.depth+i)))
		p.once(name, func() {
			p.dict(func() {
				p.word("name", "forward")
				p.word("filename", file)
				p.number("line", int64(number*p.depth+i))
			})
		})
	}
	p.out.Write([]byte{opAppends, opSetItems})
}

func (p *stackPickler) largeSegment() {
	p.dict(func() {
		for key, n := range map[string]int64{"device": 0, "address": 1 << 46, "total_size": 1 << 30, "stream": 0} {
			p.number(key, n)
		}
		p.text("blocks")
		p.list(0, nil)
	})
}

// BenchmarkReadSnapshot reads 300 MB: a million and a half entries with stacks of 30 frames.
func BenchmarkReadSnapshot(b *testing.B) {
	path := filepath.Join(b.TempDir(), "snapshot.pickle")
	const pairs = 500_000
	b.SetBytes(benchmarkSnapshot(b, path, pairs, 30))
	b.ReportAllocs()
	for b.Loop() {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		r, err := Read(bufio.NewReader(f), 0)
		if err != nil {
			b.Fatal(err)
		}
		if r.Allocs != pairs || len(r.Tags) != 21 {
			b.Fatalf("%d allocations, tags %q", r.Allocs, r.Tags)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
