package data

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mlpool/internal/must"
)

// TestNotFound wants the error of a missing data set to say what to do, and where it looked.
func TestNotFound(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	_, err := findFashion(missing)
	var none *NotFoundError
	if !errors.As(err, &none) || err.Error() != "no Fashion-MNIST: run apt-get install dataset-fashion-mnist, or set data_dir to a folder with its four files" ||
		len(none.Looked) != 1 || !strings.Contains(none.Looked[0], missing) {
		t.Errorf("got %v, %+v", err, none)
	}
	t.Setenv("XDG_CACHE_HOME", missing)
	t.Setenv("GOMODCACHE", t.TempDir())
	for _, tt := range []struct {
		unset []string // environment variables
		last  string   // place looked in
	}{
		{nil, "Go module: "},
		{[]string{"XDG_CACHE_HOME", "HOME"}, "cache: "},
	} {
		t.Run("last "+tt.last, func(t *testing.T) {
			for _, name := range tt.unset {
				t.Setenv(name, "")
			}
			_, err := Locate(t.Context(), Options{Name: "mnist"})
			var none *NotFoundError
			if !errors.As(err, &none) || !strings.Contains(err.Error(), "set data_dir") || !strings.HasPrefix(none.Looked[len(none.Looked)-1], tt.last) {
				t.Errorf("got %v, %+v, want it to end with %s", err, none, tt.last)
			}
		})
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("Locate made the cache")
	}
}

func TestLocate(t *testing.T) {
	module, _, _ := strings.Cut(mnistModule, "@")
	t.Setenv("XDG_CACHE_HOME", filepath.Join(t.TempDir(), "none"))
	l, err := Locate(t.Context(), Options{Name: "mnist"})
	must.OK(t, err)
	dir := mnistDir(t)
	var want []File
	for _, f := range mnist {
		want = append(want, File{filepath.Join(dir, f.name), f.size})
	}
	if !strings.HasPrefix(l.Source, "Go module "+module) || !slices.Equal(l.Files, want) {
		t.Errorf("got %+v, want %+v", l, want)
	}
	l, err = Locate(t.Context(), Options{Name: "fashion", Dir: dir})
	if err != nil || l.Source != "data_dir" || !slices.Equal(l.Files, want) {
		t.Errorf("with data_dir: got %+v, %v", l, err)
	}
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	cache = filepath.Join(cache, "mlpool", "mnist")
	must.OK(t, os.Mkdir(filepath.Dir(cache), 0o755), os.Symlink(dir, cache))
	l, err = Locate(t.Context(), Options{Name: "mnist"})
	if err != nil || l.Source != "cache" || l.Files[3] != (File{filepath.Join(cache, mnist[3].name), mnist[3].size}) {
		t.Errorf("with a cache: got %+v, %v", l, err)
	}
	if d, err := Load(t.Context(), Options{Name: "mnist"}); err != nil || d.Dir != cache {
		t.Errorf("with a cache: loaded from %s, %v", d.Dir, err)
	}
	if p, err := findFashion(dir); err != nil || p != (place{"Debian package dataset-fashion-mnist", dir}) {
		t.Errorf("got %v, %v", p, err)
	}
}

// TestFindMNIST checks the order of the places, the error if all fail, and what is in the
// cache afterwards.
func TestFindMNIST(t *testing.T) {
	real, altered := mnistDir(t), t.TempDir()
	for _, f := range mnist {
		must.OK(t, os.WriteFile(filepath.Join(altered, f.name), make([]byte, f.size), 0o644))
	}
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o644))
	empty := func(t *testing.T) string { return filepath.Join(t.TempDir(), "made", "on the way") }
	is := func(dir string) func(*testing.T) string { return func(*testing.T) string { return dir } }
	none := errors.New("none")
	const cached = "<cache>" // stands for the folder of the cache
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
		{"no room for a download", empty, "", &fs.PathError{Op: "mkdir", Err: fs.ErrPermission}, "no MNIST: set XDG_CACHE_HOME", "md", false},
		{"nowhere", empty, "", none, "no MNIST: connect to a network", "md", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.module == altered { // which an earlier case has mended
				must.OK(t, os.WriteFile(filepath.Join(altered, mnist[0].name), nil, 0o644))
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
			p, err := findMNIST(t.Context(), cache, module, download)
			got := p.dir
			if err != nil {
				got = err.Error()
				var none *NotFoundError
				if !errors.As(err, &none) || len(none.Looked) != 3 {
					t.Errorf("looked in %+v, want three places", none)
				}
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

// TestFindMNISTCancelled wants a cancelled search to stop with the context's error.
func TestFindMNISTCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	module := func(context.Context) (string, error) { cancel(); return "", errors.New("killed") }
	download := func(context.Context, string) error { t.Error("went on to download"); return nil }
	if _, err := findMNIST(ctx, t.TempDir(), module, download); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestModuleDir wants the module's folder offline, from any working directory, and errors of
// one line.
func TestModuleDir(t *testing.T) {
	want := mnistDir(t)
	t.Setenv("GOPROXY", "off")
	t.Chdir(t.TempDir()) // outside the module
	got, err := moduleDir(t.Context(), time.Minute, nil)
	if err != nil || got != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	t.Setenv("GOFLAGS", "-mod=vendor")
	if got, err := moduleDir(t.Context(), time.Minute, nil); err != nil || got != want {
		t.Errorf("with GOFLAGS=-mod=vendor: got %s, %v, want %s", got, err, want)
	}
	t.Setenv("GOMODCACHE", t.TempDir())
	if got, err := moduleDir(t.Context(), time.Minute, nil); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "GOPROXY=off") {
		t.Errorf("with an empty module cache: got %s, %v", got, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := moduleDir(cancelled, time.Minute, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}

	// A go command that hangs is killed.
	bin := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\n[ \"$1\" = env ] && echo https://a,direct && exit\nexec sleep 60\n"), 0o755))
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	hurried, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := ""
	if _, err := moduleDir(hurried, time.Millisecond, func(what string) { waited = what; cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("a go command that hangs: %v", err)
	}
	if waited != "a Go module proxy, https://a,direct" {
		t.Errorf("waited for %q", waited)
	}

	t.Setenv("PATH", "")
	if _, err := moduleDir(t.Context(), time.Minute, nil); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("without a go command: %v", err)
	}
}
