package tools

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestHelp asks each script for its help, which does nothing else.
func TestHelp(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	var scripts []string
	for _, pattern := range []string{"*.sh", "*/*.sh"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, found...)
	}
	for _, script := range scripts {
		for _, flag := range []string{"-h", "--help"} {
			var stderr strings.Builder
			cmd := exec.Command(bash, script, flag)
			cmd.Stderr = &stderr
			if stdout, err := cmd.Output(); err != nil || len(stdout) < 80 || stderr.Len() > 0 {
				t.Errorf("%s %s: %v, stdout %q, stderr %q", script, flag, err, stdout, &stderr)
			}
		}
	}
}
