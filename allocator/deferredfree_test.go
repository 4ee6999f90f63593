package allocator_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func newDeferredFreePool(t *testing.T, d allocator.Driver, o allocator.PoolOptions) *allocator.DeferredFreePool {
	t.Helper()
	p, err := allocator.NewDeferredFreePool(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDeferredFreePoolConformance(t *testing.T) {
	allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
		f := allocatortest.NewFake(deviceBytes)
		const limit = deviceBytes * 3 / 8 // the device has to hold what the pool gave up as well
		env := allocatortest.NewEnv(t, f, newDeferredFreePool(t, f, allocator.PoolOptions{MaxBytes: limit}))
		env.Caches, env.Returns, env.Limit = true, true, limit
		return env
	})
}

// refusesFree counts calls of Free, and fails them on demand.
type refusesFree struct {
	*allocatortest.Fake
	err   error
	calls int
}

func (d *refusesFree) Free(addr uintptr) error {
	d.calls++
	if d.err != nil {
		return d.err
	}
	return d.Fake.Free(addr)
}

func TestNewDeferredFreePoolErrors(t *testing.T) {
	if _, err := allocator.NewDeferredFreePool(nil, allocator.PoolOptions{}); err == nil {
		t.Error("no driver: no error")
	}
	f := allocatortest.NewFake(deviceBytes)
	if _, err := allocator.NewDeferredFreePool(f, allocator.PoolOptions{PreallocateBytes: 2 * deviceBytes}); err == nil {
		t.Error("more memory than the device has: no error")
	}
	ok(t, f.Leftover())
}

func TestDeferredFreePoolFreesInClose(t *testing.T) {
	d := &refusesFree{Fake: allocatortest.NewFake(deviceBytes)}
	p := newDeferredFreePool(t, d, allocator.PoolOptions{SegmentBytes: 1 << 20})
	for range 3 {
		b, err := p.Alloc(3<<20, 0, "captured")
		if err := errors.Join(err, p.Free(b, 0), p.Trim(0)); err != nil {
			t.Fatal(err)
		}
	}
	if st := p.Stats(); st.Reserved != 0 || d.calls != 0 {
		t.Errorf("after Trim %d bytes are reserved, %d were freed", st.Reserved, d.calls)
	}
	d.err = errors.New("device lost")
	if err := p.Close(); !errors.Is(err, d.err) {
		t.Errorf("Close returned %v", err)
	}
	d.err, d.calls = nil, 0
	if err := p.Close(); !errors.Is(err, allocator.ErrClosed) || d.calls != 3 {
		t.Errorf("the second Close returned %v after %d calls of Free", err, d.calls)
	}
	free, total, err := d.MemInfo()
	if err != nil || free != total {
		t.Errorf("%d of %d bytes are free, %v", free, total, err)
	}
}
