//go:build unix

package tools

import (
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// TestTraces runs the tests of the scripts in traces, which need Python 3.9 alone.
func TestTraces(t *testing.T) {
	if out, err := exec.Command("python3", "-c", "import sys; sys.exit(sys.version_info < (3, 9))").CombinedOutput(); err != nil {
		t.Skipf("no Python 3.9: %v %s", err, out)
	}
	for _, script := range []string{"record", "replay"} {
		t.Run(script, func(t *testing.T) {
			for _, name := range []string{script + ".py", script + "_test.py"} { // so that go test sees them change
				if _, err := os.ReadFile("traces/" + name); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("python3", "-B", script+"_test.py")
			cmd.Dir = "traces"
			out, err := cmd.CombinedOutput()
			if err != nil || !regexp.MustCompile(`Ran [1-9]\d* tests`).Match(out) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
