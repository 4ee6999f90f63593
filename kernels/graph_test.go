package kernels_test

import (
	"testing"
	"unsafe"

	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// TestGraph captures y += x twice, with a block of memory of its own between,
// and launches it three times.
func TestGraph(t *testing.T) {
	kerneltest.RequireGPU(t)
	s := newStream(t)
	x, y := malloc(t, 4), malloc(t, 4)
	one, sum := []float32{1}, []float32{0}
	raw := func(f []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4) }
	try(t, s.Upload(x, raw(one)))
	try(t, s.Upload(y, raw(sum)))
	pool, err := cudadriver.NewGraphPool()
	try(t, err)

	try(t, s.BeginCapture())
	try(t, s.Step(y, x, -1, 1))
	p, err := pool.MallocAsync(4, s.Handle())
	try(t, err)
	try(t, s.Activate(kernels.FP32, p, x, 1))
	try(t, s.Step(y, p, -1, 1))
	try(t, pool.FreeAsync(p, s.Handle()))
	segment, err := cudadriver.Driver{}.Malloc(1 << 20)
	try(t, err)
	g, err := s.EndCapture()
	try(t, err)
	try(t, cudadriver.Driver{}.Free(segment))

	try(t, s.Download(raw(sum), y))
	if sum[0] != 0 {
		t.Errorf("the capture ran: %v", sum[0])
	}
	for range 3 {
		try(t, g.Launch(s))
	}
	try(t, s.Download(raw(sum), y))
	if sum[0] != 6 {
		t.Errorf("after three launches: %v, want 6", sum[0])
	}
	if current, peak, err := pool.PoolReserved(); err != nil || current == 0 || peak < current {
		t.Errorf("graphs hold %d bytes, %d at their peak, error %v", current, peak, err)
	}
	try(t, g.Close())
	try(t, pool.TrimPool(0))
	try(t, pool.ResetPoolPeak())
	if current, peak, err := pool.PoolReserved(); err != nil || current != 0 || peak != 0 {
		t.Errorf("after their end graphs hold %d bytes, %d at their peak, error %v", current, peak, err)
	}
	try(t, pool.ClosePool())
}

// TestSpoiltCapture waits for a stream that captures: there is no graph then,
// and the stream works on.
func TestSpoiltCapture(t *testing.T) {
	kerneltest.RequireGPU(t)
	s := newStream(t)
	p := malloc(t, 64)
	for range 2 {
		try(t, s.BeginCapture())
		try(t, s.Activate(kernels.FP32, p, p, 16))
		if err := s.Synchronize(); err == nil {
			t.Error("a capturing stream was waited for")
		}
		if g, err := s.EndCapture(); err == nil || g != 0 {
			t.Errorf("graph %#x, error %v of a spoilt capture", g, err)
		}
		try(t, s.Activate(kernels.FP32, p, p, 16))
		try(t, s.Synchronize())
	}
	if _, err := s.EndCapture(); err == nil {
		t.Error("the end of no capture: no error")
	}
	try(t, s.Synchronize())
}
