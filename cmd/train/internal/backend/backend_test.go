package backend

import (
	"testing"

	"mlpool/kernels"
)

// TestAutoPrecision has GPUs on which 3xtf32 is slower than fp32, or not usable, and one on which it is faster.
func TestAutoPrecision(t *testing.T) {
	for _, c := range []struct {
		gpu  kernels.Info
		want kernels.Precision
	}{
		{kernels.Info{Major: 7, Minor: 5}, kernels.FP32}, {kernels.Info{Major: 8, Minor: 6}, kernels.FP32},
		{kernels.Info{Major: 12}, kernels.FP32}, {kernels.Info{Major: 9}, kernels.TF32X3},
	} {
		if c.want != kernels.FP32 && c.want.Usable() != nil {
			continue // here
		}
		if got, err := precisionOf("auto", c.gpu); got != c.want || err != nil {
			t.Errorf("compute capability %d.%d: %v, %v, want %v", c.gpu.Major, c.gpu.Minor, got, err, c.want)
		}
	}
}
