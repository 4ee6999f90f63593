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

// TestMakeKernels wants a line that says what will take its time, and every core at
// work, unless make was told otherwise. The compiler is one that is never run.
func TestMakeKernels(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
		jobs bool
	}{
		{[]string{"CUDA_ARCH=sm_90", "NVCC=true", "CUDA=1"}, "compiling the kernels for sm_90", true},
		{[]string{"CUDA_ARCH=all-major", "NVCC=true", "CUDA=1", "-j2"}, "compiling the kernels for every GPU", false},
		{[]string{"EMULATE=1", "NVCC="}, "compiling the kernels for a GPU that the CPU emulates", true},
	} {
		// -B: as if nothing was built.
		lines, ok := makeIt(t, []string{"CGO_ENABLED=1"}, append(test.args, "kernels", "-n", "-B")...)
		said := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, test.want) })
		if !ok || !said {
			t.Errorf("make %v: success %v, no line with %q in %q", test.args, ok, test.want, lines)
		}
		own := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "--no-print-directory -j") })
		if own != test.jobs {
			t.Errorf("make %v: chooses the number of jobs: %v, want %v", test.args, own, test.jobs)
		}
	}
}

// TestMakeHelp wants a line for each target and each variable that a user may name.
func TestMakeHelp(t *testing.T) {
	lines, ok := makeIt(t, nil, "help")
	if !ok {
		t.Fatalf("%q", lines)
	}
	for _, target := range []string{"train", "test", "build", "check", "plot", "clean", "help", "kernels", "CONFIG", "CUDA=0", "EMULATE=1", "NVCC", "CUDA_ARCH", "RUNS"} {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, target+" ") }) {
			t.Errorf("no %s in %q", target, lines)
		}
	}
}
