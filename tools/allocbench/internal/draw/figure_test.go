package draw

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"mlpool/internal/must"
	"mlpool/tools/allocbench/internal/bench"
)

func TestOrigin(t *testing.T) {
	for _, c := range []struct {
		notes      []string
		file, want string
	}{
		{[]string{"NVIDIA H200, driver 580.159, 2026-11-22; clocks not locked"}, "a/b.csv", "NVIDIA H200, 2026-11-22, b.csv"},
		{[]string{"NVIDIA GeForce RTX 4090, driver for CUDA 13.0", "2026-11-22 10:00 UTC"}, "", "NVIDIA GeForce RTX 4090, 2026-11-22"},
		{[]string{"beside an NVIDIA H200", "host cost only: " + bench.AddressesOnly}, "t.csv", "no GPU: host time on a driver without memory, t.csv"},
		{nil, "", ""},
	} {
		if got := Origin(c.notes, c.file); got != c.want {
			t.Errorf("%q: %q, want %q", c.notes, got, c.want)
		}
	}
}

// TestCurves wants another colour, dash or mark for each allocator that plotstyle does not know.
func TestCurves(t *testing.T) {
	f := figure{value: func(r bench.Row) float64 { return r.Mean }}
	names := []string{"tlsf", "cuda", "x", "y"}
	var rows []bench.Row
	for _, name := range names {
		rows = append(rows, bench.Row{Case: "a", Allocator: name, Mean: 1})
	}
	seen := map[int]bool{}
	f.fill(rows)
	for _, name := range names {
		if i := f.curve(name); seen[i] {
			t.Errorf("%s looks like another", name)
		} else {
			seen[i] = true
		}
	}
}

// TestWriteFile keeps a file whose new text is not whole.
func TestWriteFile(t *testing.T) {
	path, full := filepath.Join(t.TempDir(), "new", "rows.csv"), errors.New("no space left on device")
	for _, want := range []error{nil, full} {
		err := WriteFile(path, func(w io.Writer) error {
			_, err := fmt.Fprint(w, want)
			return errors.Join(err, want)
		})
		if !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
	if got := string(must.Read(t, path)); got != "<nil>" {
		t.Errorf("%q", got)
	}
}
