package output

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"mlpool/internal/must"
)

// TestWriteFile replaces files, and writes through links and to pipes.
func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "table.csv")
	for _, text := range []string{"first", "second"} {
		must.OK(t, WriteFile(path, []byte(text)))
		want(t, path, text)
	}
	link := path + ".link"
	must.OK(t, errors.Join(os.Symlink(filepath.Base(path), link), WriteFile(link, []byte("by the link"))))
	want(t, path, "by the link")
	if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
		t.Errorf("the link was replaced: %v, %v", info.Mode(), err)
	}
	dangling := filepath.Join(filepath.Dir(path), "dangling")
	must.OK(t, errors.Join(os.Symlink("new.csv", dangling), CheckWritable(dangling), WriteFile(dangling, []byte("by it"))))
	want(t, filepath.Join(filepath.Dir(path), "new.csv"), "by it")
	if loop := path + ".loop"; os.Symlink(loop, loop) != nil || CheckWritable(loop) == nil {
		t.Error("a link to itself is called writable")
	}
	r, w, err := os.Pipe()
	must.OK(t, err)
	pipe := fmt.Sprint("/dev/fd/", w.Fd())
	if _, err := os.Stat(pipe); err != nil {
		t.Skip(err)
	}
	must.OK(t, errors.Join(WriteFile(pipe, []byte("piped")), w.Close()))
	if got, err := io.ReadAll(r); err != nil || string(got) != "piped" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestWriteFileInClosedFolder writes in place if the folder takes no new file.
func TestWriteFileInClosedFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "table.csv")
	must.OK(t, errors.Join(os.WriteFile(path, []byte("first"), 0o666), os.Chmod(dir, 0o555)))
	defer os.Chmod(dir, 0o777)
	must.OK(t, WriteFile(path, []byte("second")))
	want(t, path, "second")
}

// want fails the test unless a file has the text.
func want(t *testing.T, path, text string) {
	t.Helper()
	if got := string(must.Read(t, path)); got != text {
		t.Errorf("%s has %q, want %q", path, got, text)
	}
}
