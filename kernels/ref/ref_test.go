package ref_test

import (
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

func Test(t *testing.T) { kerneltest.Run(t, kerneltest.Reference(kernels.FP32), kerneltest.Tolerance) }

func TestValuesInBF16(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	kerneltest.Run(t, kerneltest.Reference(kernels.BF16), kerneltest.ToleranceBF16)
}
