package kernels_test

import (
	"testing"

	"mlpool/allocator/cudadriver"
	"mlpool/internal/must"
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
	must.OK(t, s.Upload(x, bytesOf(one)), s.Upload(y, bytesOf(sum)))
	pool, err := cudadriver.NewGraphPool(0)
	must.OK(t, err)

	must.OK(t, s.BeginCapture(), s.Step(y, x, -1, 1))
	p, err := pool.MallocAsync(4, s.Handle())
	must.OK(t, err, s.Activate(kernels.FP32, p, x, 1), s.Step(y, p, -1, 1), pool.FreeAsync(p, s.Handle()))
	segment, err := cudadriver.Driver{}.Malloc(1 << 20)
	must.OK(t, err)
	g, err := s.EndCapture()
	must.OK(t, err, cudadriver.Driver{}.Free(segment), s.Download(bytesOf(sum), y))

	if sum[0] != 0 {
		t.Errorf("the capture ran: %v", sum[0])
	}
	for range 3 {
		must.OK(t, g.Launch(s))
	}
	must.OK(t, s.Download(bytesOf(sum), y))
	if sum[0] != 6 {
		t.Errorf("after three launches: %v, want 6", sum[0])
	}
	if current, peak, err := pool.PoolReserved(); err != nil || current == 0 || peak < current {
		t.Errorf("graphs hold %d bytes, %d at their peak, error %v", current, peak, err)
	}
	must.OK(t, g.Close(), pool.TrimPool(0), pool.ResetPoolPeak())
	if current, peak, err := pool.PoolReserved(); err != nil || current != 0 || peak != 0 {
		t.Errorf("after their end graphs hold %d bytes, %d at their peak, error %v", current, peak, err)
	}
	must.OK(t, pool.ClosePool())
}

// TestSpoiltCapture waits for a stream that captures: there is no graph then,
// and the stream works on.
func TestSpoiltCapture(t *testing.T) {
	kerneltest.RequireGPU(t)
	s := newStream(t)
	p := malloc(t, 64)
	for range 2 {
		must.OK(t, s.BeginCapture(), s.Activate(kernels.FP32, p, p, 16))
		if err := s.Synchronize(); err == nil {
			t.Error("a capturing stream was waited for")
		}
		if g, err := s.EndCapture(); err == nil || g != 0 {
			t.Errorf("graph %#x, error %v of a spoilt capture", g, err)
		}
		must.OK(t, s.Activate(kernels.FP32, p, p, 16), s.Synchronize())
	}
	if _, err := s.EndCapture(); err == nil {
		t.Error("the end of no capture: no error")
	}
	must.OK(t, s.Synchronize())
}
