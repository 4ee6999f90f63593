package kernels_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

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
	} {
		t.Run(c.gpu, func(t *testing.T) { again(t, c.test, c.env...) })
	}
}
