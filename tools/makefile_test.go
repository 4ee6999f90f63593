package tools

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// makeIt runs the project's Makefile with more of an environment, and returns the
// lines of its output and whether it succeeded.
func makeIt(t *testing.T, env []string, args ...string) (lines []string, ok bool) {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{"../Makefile", "../kernels/kernels.mk"} { // so that go test sees them change
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("make", append([]string{"--no-print-directory", "-C", ".."}, args...)...)
	// What a make that runs this test has set is not for this one.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "CUDA", "EMULATE", "NVCC", "RUNS"}, name)
	}), env...)
	out, err := cmd.CombinedOutput()
	return strings.Split(strings.TrimSpace(string(out)), "\n"), err == nil
}

// TestMakeCUDAWithoutCgo wants one line that says what to do. The compiler is
// one that is never run.
func TestMakeCUDAWithoutCgo(t *testing.T) {
	for _, args := range [][]string{{"build", "CUDA=1", "NVCC=true"}, {"test", "EMULATE=1", "NVCC="}} {
		lines, ok := makeIt(t, []string{"CGO_ENABLED=0"}, append(args, "-n")...)
		if ok || len(lines) != 1 || !strings.Contains(lines[0], "needs cgo, which is off: unset CGO_ENABLED") {
			t.Errorf("make %s: success %v, output %q", strings.Join(args, " "), ok, lines)
		}
	}
	if lines, ok := makeIt(t, []string{"CGO_ENABLED=0"}, "build", "CUDA=0", "-n"); !ok {
		t.Errorf("make build CUDA=0: %q", lines)
	}
}

// TestMakePlot wants every run below logs to be asked for, whatever is there.
func TestMakePlot(t *testing.T) {
	lines, ok := makeIt(t, nil, "plot", "-n")
	if !ok || !strings.HasSuffix(lines[len(lines)-1], "-o build/train_losses.png logs/...") {
		t.Errorf("success %v, output %q", ok, lines)
	}
}
