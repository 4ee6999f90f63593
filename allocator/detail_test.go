package allocator_test

import (
	"testing"

	"mlpool/allocator"
)

func TestDetail(t *testing.T) {
	r := newRig(t, allocator.PoolOptions{})
	a, b := r.alloc(1<<20, 1), r.alloc(1<<20, 1)
	c := r.alloc(256, 2)
	d := r.pool.Detail()
	if len(d.ByStream) != 2 || d.ByStream[0].Stream != 1 || d.ByStream[1].Stream != 2 {
		t.Fatalf("streams %+v, want 1 and 2", d.ByStream)
	}
	if s := d.ByStream[0]; s.Allocs != 2 || s.Allocated != 2<<20 || s.PeakAllocated != 2<<20 || s.Reserved < 2<<20 || s.Segments < 1 {
		t.Errorf("stream 1: %+v", s)
	}
	want := []allocator.ClassStats{{Size: 256, Allocs: 1, Live: 1, Bytes: 256}, {Size: 1 << 20, Allocs: 2, Live: 2, Bytes: 2 << 20}}
	if len(d.ByClass) != 2 || d.ByClass[0] != want[0] || d.ByClass[1] != want[1] {
		t.Errorf("classes %+v, want %+v", d.ByClass, want)
	}
	r.fake.Order(1, 3)
	r.must(r.Free(a, 3))
	r.must(r.Free(b, 1))
	d = r.pool.Detail()
	if s := d.ByStream[0]; s.Frees != 2 || s.Allocated != 0 || s.Waiting != 1<<20 || s.LargestFree < 1<<20 {
		t.Errorf("stream 1 after its frees: %+v", s)
	}
	st := r.Stats()
	if d.Free != st.Reserved-st.Allocated || d.LargestFree > d.Free {
		t.Errorf("%d bytes free, largest %d; statistics %+v", d.Free, d.LargestFree, st)
	}
	if want := 100 * (1 - float64(d.LargestFree)/float64(d.Free)); d.Fragmentation < want-0.1 || d.Fragmentation > want+0.1 {
		t.Errorf("fragmentation %v %%, want %.1f %%", d.Fragmentation, want)
	}
	r.must(r.Free(c, 2))
	r.close()
}
