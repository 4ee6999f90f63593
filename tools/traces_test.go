//go:build unix

package tools

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// TestRecord runs the tests of traces/record.py, which need Python 3.9 alone.
func TestRecord(t *testing.T) {
	for _, name := range []string{"traces/record.py", "traces/record_test.py"} { // so that go test sees them change
		if _, err := os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("python3", "-c", "import sys; sys.exit(sys.version_info < (3, 9))").CombinedOutput(); err != nil {
		t.Skipf("no Python 3.9: %v %s", err, out)
	}
	cmd := exec.Command("python3", "-B", "record_test.py")
	cmd.Dir = "traces"
	out, err := cmd.CombinedOutput()
	if err != nil || !regexp.MustCompile(`Ran [1-9]\d* tests`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}
