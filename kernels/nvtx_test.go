package kernels_test

import (
	"runtime"
	"testing"

	"mlpool/kernels"
)

// TestNVTX opens ranges with no profiler there, which does nothing.
func TestNVTX(t *testing.T) {
	if err := kernels.NVTX(); err != nil {
		t.Log(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	kernels.PushRange("outer")
	kernels.PushRange("")
	kernels.PopRange()
	kernels.PopRange()
}
