package cudadriver_test

import (
	"errors"
	"testing"

	"mlpool/allocator/cudadriver"
	"mlpool/kernels/kerneltest"
)

func TestMemPool(t *testing.T) {
	kerneltest.RequireGPU(t)
	s := newStream(t)
	pool, err := cudadriver.NewMemPool()
	try(t, err)
	reserved := func() (current, peak int64) {
		current, peak, err := pool.PoolReserved()
		try(t, err)
		return current, peak
	}
	if current, _ := reserved(); current != 0 {
		t.Errorf("a new pool holds %d bytes", current)
	}
	before := cudadriver.Counters()
	for range 3 {
		p, err := pool.MallocAsync(1<<20, s.Handle())
		try(t, err)
		try(t, s.Fill(p, 1, 1<<20))
		try(t, pool.FreeAsync(p, s.Handle()))
	}
	try(t, s.Synchronize())
	current, peak := reserved()
	if current < 1<<20 || peak < current {
		t.Errorf("after the frees the pool holds %d bytes, %d at its peak: not kept", current, peak)
	}
	if c := cudadriver.Counters(); c.MallocAsync != before.MallocAsync+3 || c.FreeAsync != before.FreeAsync+3 || c.Malloc != before.Malloc {
		t.Errorf("counters went from %+v to %+v", before, c)
	}
	try(t, pool.TrimPool(0))
	try(t, pool.ResetPoolPeak())
	if current, peak := reserved(); current != 0 || peak != 0 {
		t.Errorf("after a trim the pool holds %d bytes, %d at its peak", current, peak)
	}
	try(t, pool.ClosePool())
}

func TestMemPoolOptions(t *testing.T) {
	requireDevice(t)
	var d cudadriver.Driver
	_, err := cudadriver.NewMemPoolWith(cudadriver.MemPoolOptions{ReleaseThreshold: -1})
	want(t, "a release threshold of -1", err, 1)
	s, err := d.NewStream()
	try(t, err)
	for _, o := range []cudadriver.MemPoolOptions{{}, cudadriver.DefaultMemPoolOptions(), {ReleaseThreshold: 1 << 30, Opportunistic: true}} {
		p, err := cudadriver.NewMemPoolWith(o)
		try(t, err)
		addr, err := p.MallocAsync(64<<20, s)
		try(t, errors.Join(err, p.FreeAsync(addr, s), d.SyncStream(s)))
		reserved, _, err := p.PoolReserved()
		try(t, err)
		if kept := reserved >= 64<<20; kept != (o.ReleaseThreshold > 0) {
			t.Errorf("%+v: %d bytes reserved after a synchronisation", o, reserved)
		}
		try(t, p.ClosePool())
	}
	try(t, d.FreeStream(s))
}
