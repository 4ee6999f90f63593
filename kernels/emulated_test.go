package kernels_test

import (
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// inChild is in the environment of what again starts.
const inChild = "KERNELS_TEST_CHILD"

// again runs tests of this program in a process of its own, on an emulated GPU that the environment
// describes.
func again(t *testing.T, test string, env ...string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^"+test+"$")
	cmd.Env = append(append(os.Environ(), inChild+"=1"), env...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+test+" ") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestOtherGPUs runs tests on GPUs that have more or less than an H200 of what decides on a kernel.
func TestOtherGPUs(t *testing.T) {
	kerneltest.RequireGPU(t)
	if !kerneltest.Emulated() {
		t.Skip("there is one GPU")
	}
	for _, c := range []struct {
		gpu, test string
		env       []string
	}{
		{"H100 PCIe", "TestFusesWgrad", []string{"EMULATOR_SMS=114"}},
		{"compute capability 5.0", "TestClassifierSizes", []string{"EMULATOR_MAJOR=5", "EMULATOR_SHARED=49152"}},
		{"compute capability 7.5", "TestClassifierSizes", []string{"EMULATOR_MAJOR=7", "EMULATOR_SHARED=65536"}},
		{"compute capability 8.0", "TestClassifierSizes", []string{"EMULATOR_MAJOR=8", "EMULATOR_SHARED=166912"}},
		{"compute capability 8.6", "TestClassifierSizes", []string{"EMULATOR_MAJOR=8", "EMULATOR_SHARED=101376"}},
	} {
		t.Run(c.gpu, func(t *testing.T) { again(t, c.test, c.env...) })
	}
}

// TestClassifierSizes has the most classes and inputs of each kernel of a classifier of few rows: as much
// shared memory as it can take.
func TestClassifierSizes(t *testing.T) {
	kerneltest.RequireGPU(t)
	const maxClasses, maxInputs = 16, 8192
	s := newStream(t)
	zeros, out := malloc(t, 4*maxClasses*maxInputs), malloc(t, 8)
	try(t, s.Fill(zeros, 0, 4*maxClasses*maxInputs))
	for _, classes := range []int{1, 10, maxClasses} {
		for _, k := range []int{1, 1024, 2048, maxInputs} {
			try(t, s.Classifier(kernels.Classifier{
				Loss: out, Correct: out + 4, X: zeros, W: zeros, Labels: zeros, Indices: zeros, Rows: 1, Classes: classes, K: k,
			}))
			got := make([]float32, 2) // all logits are 0: the first class is the prediction, and the label
			try(t, s.Download(bytesOf(got), out))
			if math.Abs(float64(got[0])-math.Log(float64(classes))) > 1e-6 || got[1] != 1 {
				t.Errorf("%d classes of %d inputs: loss %v, correct %v", classes, k, got[0], got[1])
			}
		}
	}
}
