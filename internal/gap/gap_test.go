package gap

import (
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

const kib = 1 << 10

// at returns blocks side by side from address 1 MiB on.
func at(blocks ...allocator.MapBlock) []allocator.MapBlock {
	addr := uintptr(1 << 20)
	for i := range blocks {
		blocks[i].Addr = addr
		addr += uintptr(blocks[i].Bytes)
	}
	return blocks
}

func segment(pool string, blocks ...allocator.MapBlock) allocator.MapSegment {
	s := allocator.MapSegment{Addr: 1 << 20, Kind: allocator.SegmentsMalloc, Stream: 1, Pool: pool, Blocks: at(blocks...)}
	for _, b := range s.Blocks {
		s.Bytes += b.Bytes
	}
	return s
}

func free(bytes int64, s allocator.Stream) allocator.MapBlock {
	return allocator.MapBlock{Bytes: bytes, State: allocator.MapFree, Stream: s}
}

func live(bytes, asked int64, tag string) allocator.MapBlock {
	return allocator.MapBlock{Bytes: bytes, State: allocator.MapLive, Stream: 1, Asked: asked, Tag: tag}
}

func TestOf(t *testing.T) {
	grown := Growth{Bytes: 64 * kib, Stream: 1}
	tests := []struct {
		name     string
		segment  allocator.MapSegment
		reserved int64
		growth   Growth
		cause    Cause
		bytes    int64
		holder   string // tag of the first
	}{
		{"rounding", segment("", live(1*kib, 700, "a")), 0, grown, Rounding, 324, "a"},
		{"not cut", segment("", live(64*kib, 32*kib, "a")), 0, grown, Uncut, 32 * kib, "a"},
		{"slack", segment("large", live(64*kib, 64*kib, "a"), free(8*kib, 1)), 0, Growth{64 * kib, 1, 1 << 20, 72 * kib}, Slack, 8 * kib, "a"},
		{"waiting", segment("large", allocator.MapBlock{Bytes: 8 * kib, State: allocator.MapWaiting, Stream: 1}), 0, grown, Waiting, 8 * kib, ""},
		{"other pool", segment("small", live(kib, kib, "a"), free(80*kib, 1)), 0, grown, OtherPool, 80 * kib, "a"},
		{"other stream", segment("large", live(kib, kib, "a"), free(80*kib, 2)), 0, grown, OtherStream, 80 * kib, "a"},
		{"default stream", segment("large", free(80*kib, 0)), 0, grown, OtherStream, 80 * kib, ""},
		{"no stream", segment("", free(80*kib, 0)), 0, grown, Cached, 80 * kib, ""},
		{"fragments", segment("large", live(kib, kib, "a"), free(60*kib, 1)), 0, grown, Fragments, 60 * kib, "a"},
		{"cached", segment("large", free(64*kib, 1)), 0, grown, Cached, 64 * kib, ""},
		{"longest live block", segment("large", live(8*kib, 8*kib, "a"), free(6*kib, 1)), 0, Growth{}, Fragments, 6 * kib, "a"},
		{"unknown", segment("", live(kib, kib, "a")), 3 * kib, grown, Unknown, 2 * kib, ""},
	}
	for _, c := range tests {
		grew := segment("large")
		if grew.Addr, grew.Bytes = 1<<40, 1; c.growth == grown {
			c.growth.Addr = grew.Addr
		}
		got := Of(allocator.Map{Segments: []allocator.MapSegment{c.segment, grew}}, c.reserved, c.growth, nil)
		var want [Causes]int64
		want[c.cause] = c.bytes
		if got.Bytes != want {
			t.Errorf("%s: %v, want %v", c.name, got.Bytes, want)
		}
		if h := got.Holders[c.cause]; c.cause != Unknown && (len(h) == 0 || h[0].Tag != c.holder || h[0].Bytes != c.bytes) {
			t.Errorf("%s: holders %+v, want %q with %d bytes", c.name, h, c.holder, c.bytes)
		}
		checkSum(t, c.name, got)
	}
}

func checkSum(t *testing.T, name string, s Split) {
	t.Helper()
	sum := int64(0)
	for c, all := range s.Holders {
		held := int64(0)
		for _, h := range all {
			held += h.Bytes
		}
		if held > s.Bytes[c] {
			t.Errorf("%s: blocks hold %d of the %d bytes of %v", name, held, s.Bytes[c], Cause(c))
		}
	}
	for c, n := range s.Bytes {
		if sum += n; n < 0 {
			t.Errorf("%s: %v is %d bytes", name, Cause(c), n)
		}
	}
	if sum != s.Reserved-s.Live {
		t.Errorf("%s: the causes add up to %d, reserved − live is %d − %d", name, sum, s.Reserved, s.Live)
	}
}

func TestOldest(t *testing.T) {
	m := allocator.Map{Segments: []allocator.MapSegment{segment("", live(kib, kib-1, "a"), live(kib, kib-1, "a"))}}
	born := map[uintptr]int64{1 << 20: 9, 1<<20 + kib: 4}
	h := Of(m, 0, Growth{}, func(addr uintptr) int64 { return born[addr] }).Holders[Rounding]
	if len(h) != 1 || h[0].Blocks != 2 || h[0].Born != 4 {
		t.Errorf("holders %+v, want two blocks, the oldest of request 4", h)
	}
}

// FuzzOf checks, for every kind of pool after any calls, that the causes add up to the gap and that the gap is
// what the pool says.
func FuzzOf(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind uint8) {
		strategies := allocator.Strategies()
		o := allocator.PoolOptions{Strategy: strategies[int(kind)%len(strategies)]}
		if kind&0x80 != 0 {
			o.Segments = allocator.SegmentsMalloc
		}
		p, err := allocator.NewPool(allocatortest.NewFake(1<<36), o)
		must.OK(t, err)
		defer func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}()
		r := rand.New(rand.NewPCG(seed, 1))
		var blocks []allocator.Block
		var growth Growth
		requested := int64(0)
		for range 200 {
			if n := len(blocks); n > 0 && r.IntN(5) < 2 {
				i := r.IntN(n)
				requested -= blocks[i].Size
				must.OK(t, p.Free(blocks[i], allocator.Stream(r.IntN(3))))
				blocks[i] = blocks[n-1]
				blocks = blocks[:n-1]
				continue
			}
			bytes := int64(1) << r.IntN(26)
			bytes += r.Int64N(bytes)
			before, s := p.Stats().Reserved, allocator.Stream(r.IntN(3))
			b, err := p.Alloc(bytes, s, "block")
			must.OK(t, err)
			if grown := p.Stats().Reserved - before; grown > 0 {
				growth = Growth{Bytes: bytes, Stream: s, Addr: b.Addr, Grown: grown}
			}
			b.Size = bytes
			blocks, requested = append(blocks, b), requested+bytes
		}
		split := Of(p.Map(), p.Stats().Reserved, growth, nil)
		checkSum(t, o.Strategy, split)
		if split.Live != requested || split.Reserved != p.Stats().Reserved || split.Bytes[Unknown] != 0 {
			t.Errorf("%s: %d of %d bytes live, %d unknown; requested %d of %d", o.Strategy, split.Live, split.Reserved, split.Bytes[Unknown], requested, p.Stats().Reserved)
		}
		for _, b := range blocks {
			must.OK(t, p.Free(b, 0))
		}
	})
}
