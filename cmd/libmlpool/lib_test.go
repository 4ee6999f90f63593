//go:build linux && cgo

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// raceEnabled says that the tests have Go's race detector.
var raceEnabled bool

// TestPrograms builds the library, and runs the programs of testdata with it on the emulated driver of
// kernels/emulator. Device memory is then the host's, so C's sanitizers see it. With -race the library has
// Go's race detector instead.
func TestPrograms(t *testing.T) {
	for _, tool := range []string{"gcc", "g++", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	library := []string{"build", "-buildmode=c-shared", "-o", at("libmlpool.so")}
	sanitize := []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}
	preload := at("libemulator.so")
	if raceEnabled {
		library, sanitize = append(library, "-race"), nil
	} else {
		preload = command(t, "gcc", "-print-file-name=libasan.so") + " " + preload
	}
	command(t, "go", append(library, ".")...)
	sources, err := filepath.Glob("../../kernels/emulator/*.cpp")
	if err != nil || len(sources) == 0 {
		t.Fatal("no emulator:", err)
	}
	command(t, "g++", append([]string{"-std=c++20", "-shared", "-fPIC", "-w", "-I../../kernels/emulator", "-o", at("libemulator.so")}, sources...)...)
	link := []string{"-g", "-Wall", "-Wextra", "-Werror", "-I.", "-L" + folder, "-o"}
	command(t, "gcc", append(append(link, at("test_c"), "testdata/test.c", "-lmlpool", "-lpthread"), sanitize...)...)
	command(t, "g++", append(append(link, at("test_cpp"), "-std=c++17", "testdata/test.cpp", "-lmlpool"), sanitize...)...)

	for _, program := range []struct {
		name string
		args []string
	}{
		{"C", []string{at("test_c"), folder}},
		{"C++", []string{at("test_cpp")}},
		{"Python", []string{"python3", "-B", "testdata/test.py"}},
	} {
		t.Run(program.name, func(t *testing.T) {
			cmd := exec.Command(program.args[0], program.args[1:]...)
			// Python leaks on purpose, and Go's runtime too.
			cmd.Env = append(os.Environ(), "LD_PRELOAD="+preload, "LD_LIBRARY_PATH="+folder, "ASAN_OPTIONS=detect_leaks=0",
				"MLPOOL_LIBRARY="+at("libmlpool.so"), "PYTHONPATH=.")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), " passed, 0 failed") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// command runs a command and returns its output without the line's end.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
