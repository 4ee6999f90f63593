package allocator_test

import (
	"testing"

	"mlpool/allocator"
)

// TestOneStuckStream has one stream whose work is never done, and one whose work is always done.
func TestOneStuckStream(t *testing.T) {
	d := newClocked()
	p := newPool(t, d, allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic})
	pair := func(user allocator.Stream) {
		t.Helper()
		b, err := p.Alloc(1<<20, 1, "pair")
		ok(t, err, p.RecordStream(b, user), p.Free(b, 1))
	}
	d.work(9, 1<<40)
	for range 12 {
		pair(9)
	}
	for range 3000 {
		pair(2)
	}
	if got := p.Stats().PeakReserved; got > 32<<20 {
		t.Errorf("%d MiB reserved, want at most 32", got>>20)
	}
	d.host = 1 << 41
	ok(t, p.Close())
}
