//go:build unix

package tools

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlpool/internal/must"
)

// python skips the test without Python 3.9.
func python(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("python3", "-c", "import sys; sys.exit(sys.version_info < (3, 9))").CombinedOutput(); err != nil {
		t.Skipf("no Python 3.9: %v %s", err, out)
	}
}

// TestPython runs the tests of the scripts, which need only Python.
func TestPython(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	python(t)
	files, err := filepath.Glob("*.py")
	must.OK(t, err)
	more, err := filepath.Glob("traces/*.py")
	must.OK(t, err)
	files = append(files, more...)
	for _, name := range files { // so that go test sees changes
		read(t, name)
	}
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.py") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			// Each is a process of its own, which mostly waits.
			t.Parallel()
			out, err := exec.Command("python3", "-B", name).CombinedOutput()
			if err != nil || !regexp.MustCompile(`Ran [1-9]\d* tests?`).Match(out) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestPythonNeeds starts a script without the modules that it needs: it must name them in one
// line, and still print its help.
func TestPythonNeeds(t *testing.T) {
	python(t)
	read(t, "common.py") // so that go test sees changes
	read(t, "numerics.py")
	run := func(args ...string) (string, error) {
		out, err := exec.Command("python3", append([]string{"-B", "-S", "numerics.py"}, args...)...).CombinedOutput()
		return string(out), err
	}
	out, err := run("--train", "TRAIN", "--mnist", "MNIST")
	const want = "numerics: needs numpy torch: install with python3 -m pip install numpy torch\n"
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || out != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
	if out, err := run("-h"); err != nil || !strings.HasPrefix(out, "usage: numerics.py ") || !strings.Contains(out, "--device") {
		t.Errorf("-h: %v, %q", err, out)
	}
}

// TestPeersOfTrain runs peers.py with train: the flags and the JSON must agree.
func TestPeersOfTrain(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	python(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "train")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "mlpool/cmd/train").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, set := range []string{"train", "t10k"} {
		for name, shape := range map[string][]uint32{"-images-idx3-ubyte": {40, 2, 2}, "-labels-idx1-ubyte": {40}} {
			file := []byte{0, 0, 8, byte(len(shape))}
			size := 1
			for _, n := range shape {
				file = binary.BigEndian.AppendUint32(file, n)
				size *= int(n)
			}
			file = append(file, bytes.Repeat([]byte{1}, size)...)
			must.OK(t, os.WriteFile(filepath.Join(dir, set+name), file, 0o666))
		}
	}
	for _, c := range []struct{ what, jobs, precisions, row string }{ // on the CPU, fp32 in place of tf32
		{"--shapes", "8x16x2", "tf32,bf16", `(?m)^ours,[^,]+,(fp32|bf16),8,16,2,1,[\d.e-]+,[\d.e-]+,[\d.e-]+,3,[01]\.\d{4},\d+$`},
		{"--sweep", "1", "tf32", `(?m)^ours,[^,]+,(fp32),4,23,7,1,.*,4,23,[\d.e-]+$`},
	} {
		table := filepath.Join(dir, c.what+".csv")
		if out, err := exec.Command("python3", "-B", "peers.py", "--train", program, "--mnist", dir, "--csv", table, "--frameworks", "ours",
			c.what, c.jobs, "--precisions", c.precisions, "--epochs", "3", "--device", "cpu").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var precisions []string
		for _, row := range regexp.MustCompile(c.row).FindAllStringSubmatch(read(t, table), -1) {
			precisions = append(precisions, row[1])
		}
		if got := strings.Join(precisions, ","); got != strings.ReplaceAll(c.precisions, "tf32", "fp32") {
			t.Errorf("rows in %s of %s %s in\n%s", got, c.what, c.jobs, read(t, table))
		}
	}
}
