package tools

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	if lines, ok := makeIt(t, []string{"CGO_ENABLED=1"}, "train", "EMULATE=1", "-n"); !ok || !slices.Contains(lines, "go build -tags cuda -o build/train ./cmd/train") {
		t.Errorf("make train EMULATE=1: success %v, output %q", ok, lines)
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

// kernelsOf makes a folder with the rules for kernels, two sources, and a compiler that notes
// what it compiles in the file it returns. It writes half an object and fails where the folder
// has a file "fail".
func kernelsOf(t *testing.T) (dir, compiled string) {
	t.Helper()
	for _, tool := range []string{"make", "ar", "flock"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	rules, err := os.ReadFile("../kernels/kernels.mk")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	compiled = filepath.Join(dir, "compiled")
	for name, text := range map[string]string{
		"Makefile":              "include kernels/kernels.mk\n",
		"kernels/kernels.mk":    string(rules),
		"kernels/cuda/nn/a.cu":  "",
		"kernels/cuda/nn/b.cu":  "",
		"kernels/cuda/kernel.h": "",
		"nvcc": `#!/bin/sh
case "$*" in *--version* | *--help*) exit ;; esac
for object; do :; done
echo "$object" >>compiled
echo half >"$object"
[ ! -e fail ] || exit 1
sleep 0.2 # so that two that run side by side do
echo whole >"$object"
`,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, compiled
}

// makeIn makes the kernels in a folder of kernelsOf.
func makeIn(dir string) (out string, err error) {
	cmd := exec.Command("make", "-C", dir, "kernels", "NVCC=./nvcc", "CUDA_ARCH=sm_90")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "EMULATE=")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// TestMakeKernelsTwice has two makes at the same time, as of `make -j2 train test`: the second
// waits for what the first compiles.
func TestMakeKernelsTwice(t *testing.T) {
	dir, compiled := kernelsOf(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if out, err := makeIn(dir); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	both.Wait()
	if text, err := os.ReadFile(compiled); err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("compiled, of two sources: %q, %v", text, err)
	}
}

// TestMakeKernelsFails has the compiler fail with half an object written, which the next make
// must not take for whole.
func TestMakeKernelsFails(t *testing.T) {
	dir, _ := kernelsOf(t)
	fail := filepath.Join(dir, "fail")
	if err := os.WriteFile(fail, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := makeIn(dir); err == nil {
		t.Errorf("a compiler that fails is no error: %s", out)
	}
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	if out, err := makeIn(dir); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	objects, err := filepath.Glob(filepath.Join(dir, "build/*/nn/*.o"))
	if err != nil || len(objects) != 2 {
		t.Fatalf("objects %q, %v", objects, err)
	}
	for _, object := range objects {
		if text, err := os.ReadFile(object); err != nil || string(text) != "whole\n" {
			t.Errorf("%s is %q, %v", object, text, err)
		}
	}
}
