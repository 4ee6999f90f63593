package cudadriver_test

import (
	"errors"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
)

var (
	_ allocator.PageDriver  = cudadriver.Driver{}
	_ allocator.AsyncDriver = cudadriver.MemPool{}
	_ allocator.AsyncDriver = cudadriver.GraphPool{}
)

func TestError(t *testing.T) {
	for _, c := range []struct {
		err                      cudadriver.Error
		text                     string
		outOfMemory, unsupported bool
	}{
		{cudadriver.Error{Op: "Malloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}, "cudadriver: Malloc: CUDA_ERROR_OUT_OF_MEMORY (CUDA error 2)", true, false},
		{cudadriver.Error{Op: "PageSize", Code: 801, Name: "CUDA_ERROR_NOT_SUPPORTED"}, "cudadriver: PageSize: CUDA_ERROR_NOT_SUPPORTED (CUDA error 801)", false, true},
		{cudadriver.Error{Op: "Free", Code: 1, Name: "CUDA_ERROR_INVALID_VALUE"}, "cudadriver: Free: CUDA_ERROR_INVALID_VALUE (CUDA error 1)", false, false},
	} {
		if got := c.err.Error(); got != c.text {
			t.Errorf("%q, want %q", got, c.text)
		}
		if c.err.OutOfMemory() != c.outOfMemory || errors.Is(&c.err, errors.ErrUnsupported) != c.unsupported || errors.Is(&c.err, cudadriver.ErrNoCUDA) {
			t.Errorf("%v is mistaken for another error", &c.err)
		}
	}
}

// calls has every call, with zero arguments where they need a device.
func calls() map[string]func() error {
	var d cudadriver.Driver
	var p cudadriver.MemPool
	var g cudadriver.GraphPool
	return map[string]func() error{
		"Malloc":                    func() error { _, err := d.Malloc(256); return err },
		"Malloc of 0":               func() error { _, err := d.Malloc(0); return err },
		"Free":                      func() error { return d.Free(0) },
		"MemInfo":                   func() error { _, _, err := d.MemInfo(); return err },
		"NewStream":                 func() error { _, err := d.NewStream(); return err },
		"SyncStream":                func() error { return d.SyncStream(0) },
		"FreeStream":                func() error { return d.FreeStream(0) },
		"NewEvent":                  func() error { _, err := d.NewEvent(); return err },
		"RecordEvent":               func() error { return d.RecordEvent(0, 0) },
		"QueryEvent":                func() error { _, err := d.QueryEvent(0); return err },
		"WaitEvent":                 func() error { return d.WaitEvent(0, 0) },
		"SyncEvent":                 func() error { return d.SyncEvent(0) },
		"FreeEvent":                 func() error { return d.FreeEvent(0) },
		"PageSize":                  func() error { _, err := d.PageSize(); return err },
		"ReserveRange":              func() error { _, err := d.ReserveRange(0); return err },
		"ReleaseRange":              func() error { return d.ReleaseRange(0, 0) },
		"CreatePages":               func() error { _, err := d.CreatePages(0); return err },
		"ReleasePages":              func() error { return d.ReleasePages(0) },
		"MapPages":                  func() error { return d.MapPages(0, 0, 0) },
		"UnmapPages":                func() error { return d.UnmapPages(0, 0) },
		"ExportPages":               func() error { _, err := d.ExportPages(0); return err },
		"ImportPages":               func() error { _, err := d.ImportPages(-1); return err },
		"Send":                      func() error { return d.Send(nil, cudadriver.Memory{}) },
		"Receive":                   func() error { _, err := d.Receive(nil); return err },
		"MallocHost":                func() error { _, err := d.MallocHost(0); return err },
		"FreeHost":                  func() error { return d.FreeHost(0) },
		"CopyToHost":                func() error { return d.CopyToHost(0, 0, 0) },
		"CopyFromHost":              func() error { return d.CopyFromHost(0, 0, 0) },
		"IsCapturing":               func() error { _, err := d.IsCapturing(0); return err },
		"Synchronize":               func() error { return d.Synchronize() },
		"DeviceCount":               func() error { _, err := cudadriver.DeviceCount(); return err },
		"New":                       func() error { _, err := cudadriver.New(cudadriver.Options{}); return err },
		"NewMemPool":                func() error { _, err := cudadriver.NewMemPool(); return err },
		"NewMemPoolWith":            func() error { _, err := cudadriver.NewMemPoolWith(cudadriver.MemPoolOptions{}); return err },
		"NewGraphPool":              func() error { _, err := cudadriver.NewGraphPool(0); return err },
		"MallocAsync":               func() error { _, err := p.MallocAsync(256, 0); return err },
		"FreeAsync":                 func() error { return p.FreeAsync(0, 0) },
		"PoolReserved":              func() error { _, _, err := p.PoolReserved(); return err },
		"ResetPoolPeak":             func() error { return p.ResetPoolPeak() },
		"TrimPool":                  func() error { return p.TrimPool(0) },
		"ClosePool":                 func() error { return p.ClosePool() },
		"of a graph: PoolReserved":  func() error { _, _, err := g.PoolReserved(); return err },
		"of a graph: ResetPoolPeak": func() error { return g.ResetPoolPeak() },
		"of a graph: TrimPool":      func() error { return g.TrimPool(0) },
	}
}

// TestWithoutDevice checks that without a device every call returns the error of Available,
// in one line.
func TestWithoutDevice(t *testing.T) {
	why := cudadriver.Available()
	if why == nil {
		t.Skip("there is a device")
	}
	t.Log(why)
	for name, call := range calls() {
		err := call()
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one of one line", name, err)
			continue
		}
		var e, first *cudadriver.Error
		switch {
		case errors.Is(why, cudadriver.ErrNoCUDA):
			if !errors.Is(err, cudadriver.ErrNoCUDA) || errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v, want an ErrNoCUDA", name, err)
			}
		case !errors.As(why, &first) || !errors.As(err, &e) || e.Code != first.Code:
			t.Errorf("%s: %v, want %v", name, err, why)
		}
	}
	if _, err := allocator.NewPool(cudadriver.Driver{}, allocator.PoolOptions{}); err == nil {
		t.Error("a pool without a device")
	}
}
