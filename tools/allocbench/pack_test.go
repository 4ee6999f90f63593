package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackTrace packs a trace, prints the result and writes the offsets.
func TestPackTrace(t *testing.T) {
	trace, packed := filepath.Join(t.TempDir(), "trace.csv"), filepath.Join(t.TempDir(), "packed.csv")
	const buffers = "lower,upper,size\n0,2,1\n0,3,1\n1,5,1\n3,5,2\n2,3,1\n"
	ok(t, os.WriteFile(trace, []byte(buffers), 0o666))
	var out bytes.Buffer
	args := []string{"-trace", trace, "-pack", "1h", "-export-minimalloc", packed}
	ok(t, run(t.Context(), args, &out, io.Discard, nil))
	for _, want := range []string{"packed into 3 bytes", "lower bound 3 bytes", "optimal"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, want %q in it", out.String(), want)
		}
	}
	text, err := os.ReadFile(packed)
	ok(t, err)
	if lines := strings.Split(strings.TrimSpace(string(text)), "\n"); len(lines) != 6 || !strings.HasSuffix(lines[0], ",offset") {
		t.Errorf("wrote %q", text)
	}
	for _, c := range []badFlags{
		{"-pack 1s", "-pack needs -trace"},
		{"-pack -1s -trace " + trace, "-pack is more than 0"},
		{"-pack 1s -runs 7 -trace " + trace, "-runs has no effect with -pack"},
		{"-pack 1s -trace " + trace + " -export-minimalloc " + trace, "would be overwritten"},
		{"-pack 1s -trace " + filepath.Join(t.TempDir(), "none.csv"), "none.csv"},
	} {
		c.check(t)
	}
}
