package output

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mlpool/internal/must"
)

// TestWriteFileOnFullDisk overwrites a file in its own blocks. What does not fit changes nothing.
func TestWriteFileOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip(err) // as to all but root
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	path := filepath.Join(dir, "run.json")
	must.OK(t, WriteFile(path, []byte("running")))
	if err := os.WriteFile(filepath.Join(dir, "losses.txt"), make([]byte, 1<<20), 0o666); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for _, text := range []string{"failed: no space left", "done"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Error(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("%q, %v, want %q", got, err, text)
		}
	}
	if err := WriteFile(path, []byte(strings.Repeat("long", 1<<14))); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("too long: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "done" {
		t.Errorf("%q, %v, after what was too long", got, err)
	}
}
