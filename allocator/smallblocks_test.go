package allocator_test

import (
	"math/rand/v2"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestSmallBlocksApart replaces huge blocks among small ones that live long. In the end the
// small ones are not in the way of the huge ones: the driver is hardly called.
func TestSmallBlocksApart(t *testing.T) {
	const calls, huge, small, most = 400_000, 16, 20_000, 0.01
	sizes := []int64{64 << 20, 100 << 20, 128 << 20, 200 << 20, 256 << 20, 300 << 20, 512 << 20}
	p := newPool(t, allocatortest.NewFake(plentiful), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
	random := rand.New(rand.NewPCG(1, 2))
	blocks := make([]allocator.Block, huge+small)
	var bytes, peak, before int64
	for call := range calls / 2 {
		i, size := random.IntN(huge), sizes[random.IntN(len(sizes))]
		if random.IntN(2) == 0 {
			i, size = huge+random.IntN(small), 256+random.Int64N(64<<10)
		}
		if b := blocks[i]; b.Size > 0 {
			if err := p.Free(b, 1); err != nil {
				t.Fatal(err)
			}
			bytes -= b.Size
		}
		b, err := p.Alloc(size, 1, "replaced")
		if err != nil {
			t.Fatal(err)
		}
		blocks[i] = b
		bytes += size
		peak = max(peak, bytes)
		if call == calls*3/8 {
			before = p.Stats().DriverCalls
		}
	}
	s := p.Stats()
	if got := float64(s.DriverCalls-before) / (calls / 4); got > most {
		t.Errorf("%.4f calls of the driver a call, want at most %v", got, most)
	}
	if got := float64(s.PeakReserved) / float64(peak); got > 1.35 {
		t.Errorf("%.3f bytes reserved for each that was handed out, want at most 1.35", got)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}
