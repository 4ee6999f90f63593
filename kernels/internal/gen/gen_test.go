package main

import (
	"bytes"
	"os"
	"testing"
)

// TestUpToDate compares the generated files with what the generator makes now.
func TestUpToDate(t *testing.T) {
	files, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not as generated (%v): run go generate ./kernels", path, err)
		}
	}
}
