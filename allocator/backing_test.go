package allocator_test

import (
	"bytes"
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// checkBacking maps the parts of b side by side, as another process would, and compares the bytes there
// with those of b.
func checkBacking(r *rig, b allocator.Block) (parts int, offset int64) {
	r.t.Helper()
	all, offset, err := r.pool.Backing(b)
	r.must(err)
	var size int64
	for _, p := range all {
		size += p.Bytes
	}
	last := all[len(all)-1].Bytes
	if end := offset + b.Size; offset < 0 || offset >= all[0].Bytes || end > size || b.Size > 0 && end <= size-last {
		r.t.Fatalf("block of %d bytes at %d of parts %v", b.Size, offset, all)
	}
	want := make([]byte, b.Size)
	for i := range want {
		want[i] = byte(i / 251)
	}
	r.must(r.fake.Write(b.Addr, want))
	base, err := r.fake.ReserveRange(size)
	r.must(err)
	at := base
	for _, p := range all {
		r.must(r.fake.MapPages(at, p.Pages, p.Bytes))
		at += uintptr(p.Bytes)
	}
	got, err := r.fake.Read(base+uintptr(offset), b.Size)
	r.must(err)
	if !bytes.Equal(got, want) {
		r.t.Fatalf("the parts of the block of %d bytes at %#x have other bytes", b.Size, b.Addr)
	}
	at = base
	for _, p := range all {
		r.must(r.fake.UnmapPages(at, p.Bytes))
		at += uintptr(p.Bytes)
	}
	r.must(r.fake.ReleaseRange(base, size))
	return len(all), offset
}

func TestBackingErrors(t *testing.T) {
	malloc := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{Segments: allocator.SegmentsMalloc})
	virtual := newPool(t, allocatortest.NewFake(deviceBytes), allocator.PoolOptions{Segments: allocator.SegmentsVirtual})
	b := allocFrom(t, malloc, 1, 1, "malloc")
	for _, c := range []struct {
		name string
		pool *allocator.Pool
		b    allocator.Block
		want error
	}{
		{"a malloc segment", malloc, b, errors.ErrUnsupported},
		{"another pool's block", virtual, b, allocator.ErrUnknownBlock},
		{"no block", virtual, allocator.Block{}, allocator.ErrUnknownBlock},
	} {
		if parts, _, err := c.pool.Backing(c.b); !errors.Is(err, c.want) || parts != nil {
			t.Errorf("of %s: %v, %v, want %v", c.name, parts, err, c.want)
		}
	}
	must.OK(t, malloc.Free(b, 1), malloc.Close(), virtual.Close())
	if _, _, err := virtual.Backing(b); err != allocator.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
}
