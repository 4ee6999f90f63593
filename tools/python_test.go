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
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
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

// TestPythonNeeds starts scripts without the modules that they need: they must name them in one
// line, and still print their help.
func TestPythonNeeds(t *testing.T) {
	python(t)
	for script, args := range map[string][]string{
		"numerics": {"--train", "TRAIN", "--mnist", "MNIST"},
	} {
		for _, name := range []string{script, "common"} { // so that go test sees changes
			if _, err := os.ReadFile(name + ".py"); err != nil {
				t.Fatal(err)
			}
		}
		run := func(args ...string) ([]byte, error) {
			return exec.Command("python3", append([]string{"-B", "-S", script + ".py"}, args...)...).CombinedOutput()
		}
		out, err := run(args...)
		want := script + ": needs numpy torch: install with python3 -m pip install numpy torch\n"
		if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 1 || string(out) != want {
			t.Errorf("%s: %v, %q, want %q", script, err, out, want)
		}
		if out, err := run("-h"); err != nil || !bytes.HasPrefix(out, []byte("usage: "+script+".py ")) || !bytes.Contains(out, []byte("--device")) {
			t.Errorf("%s -h: %v, %q", script, err, out)
		}
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
	table := filepath.Join(dir, "peers.csv")
	out, err := exec.Command("python3", "-B", "peers.py", "--train", program, "--mnist", dir, "--csv", table,
		"--frameworks", "ours", "--shapes", "8x16x2", "--precisions", "tf32,bf16", "--epochs", "3", "--device", "cpu").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sweep := filepath.Join(dir, "sweep.csv")
	if out, err := exec.Command("python3", "-B", "peers.py", "--train", program, "--mnist", dir, "--csv", sweep,
		"--frameworks", "ours", "--sweep", "1", "--precisions", "tf32", "--epochs", "3", "--device", "cpu").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if row := `(?m)^ours,[^,]+,fp32,4,23,7,1,.*,4,23,[\d.e-]+$`; !regexp.MustCompile(row).MatchString(read(t, sweep)) {
		t.Errorf("no row of the first shape in\n%s", read(t, sweep))
	}
	text := read(t, table)
	for _, precision := range []string{"fp32", "bf16"} { // on the CPU, fp32 in place of tf32
		row := `(?m)^ours,[^,]+,` + precision + `,8,16,2,1,[\d.e-]+,[\d.e-]+,[\d.e-]+,3,[01]\.\d{4},\d+$`
		if !regexp.MustCompile(row).MatchString(text) {
			t.Errorf("no row of %s in\n%s", precision, text)
		}
	}
}
