package allocator

import (
	"math/rand/v2"
	"testing"
)

func TestPack(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		blocks := make([]interval, r.IntN(60))
		for i := range blocks {
			start := r.IntN(100)
			blocks[i] = interval{size: (1 + r.Int64N(100)) * Alignment, start: start, end: start + 1 + r.IntN(40)}
		}
		bytes, bound := pack(blocks), peakLive(blocks)
		for i, a := range blocks {
			if a.offset < 0 || a.offset%Alignment != 0 || a.offset+a.size > bytes {
				t.Fatalf("seed %d: block of %d bytes at %d, slab of %d", seed, a.size, a.offset, bytes)
			}
			for _, b := range blocks[:i] {
				if a.start < b.end && b.start < a.end && a.offset < b.offset+b.size && b.offset < a.offset+a.size {
					t.Fatalf("seed %d: %+v and %+v overlap", seed, a, b)
				}
			}
		}
		if bytes < bound || float64(bytes) > 1.25*float64(bound) {
			t.Errorf("seed %d: slab of %d bytes, lower bound %d", seed, bytes, bound)
		}
	}
}
