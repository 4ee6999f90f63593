package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/internal/completion/completiontest"
	"mlpool/internal/must"
	"mlpool/internal/program"
)

func TestCompletion(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "trace.csv"), nil, 0o666))
	must.OK(t, os.Mkdir(filepath.Join(dir, "recorded"), 0o777))
	completiontest.Run(t, "allocbench", script, dir, []completiontest.Case{
		{"allocbench -ver", "-version", "-csv"},
		{"allocbench -trace ", "trace.csv", "-csv"},
		{"allocbench -traces r", "recorded", "trace.csv"},
		{"allocbench -scenario p", "pair", "churn"},
		{"allocbench -scenario ", "replay", "trace.csv"},
		{"allocbench -allocator b", "bestfit", "cuda"},
		{"allocbench -allocator ma", "malloc", "segments"},
		{"allocbench -completion ", "zsh", "trace.csv"},
		{"allocbench -runs 3 -qu", "-quick", "trace.csv"},
	})
}

// TestNoMeasurement prints what needs no machine.
func TestNoMeasurement(t *testing.T) {
	for args, want := range map[string]string{"-version": program.Facts().String() + "\n", "-completion bash": script("bash"), "-completion fish": script("fish")} {
		var out bytes.Buffer
		must.OK(t, run(t.Context(), strings.Fields(args), &out, io.Discard, nil))
		if out.String() != want {
			t.Errorf("%s prints %q, want %q", args, out.String(), want)
		}
	}
	badFlags{"-completion tcsh", "want bash or zsh or fish"}.check(t)
}
