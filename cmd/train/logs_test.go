package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLogDir(t *testing.T) {
	for _, c := range []struct {
		root, kind string
		several    bool
		want       string
	}{
		{"logs", customPool, false, "logs"},
		{"logs", customPool, true, "logs/custom"},
		{"logs", cudaAsync, false, "logs/cuda"},
		{"logs", cudaAsync, true, "logs/cuda"},
		{"", plainMalloc, true, ""},
	} {
		if got := logDir(c.root, c.kind, c.several); filepath.ToSlash(got) != c.want {
			t.Errorf("%q, %s, %v: %q, want %q", c.root, c.kind, c.several, got, c.want)
		}
	}
}

// contents are the files at any depth of a folder, by their paths in it.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, relErr := filepath.Rel(dir, path)
		files[filepath.ToSlash(name)] = string(text)
		return errors.Join(err, relErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestLogsOfAllocators trains on one allocator after the other: none overwrites
// the logs of another, and each says where its own are.
func TestLogsOfAllocators(t *testing.T) {
	path, root := writeConfig(t, "cpu", "")
	files := map[string]string{}
	for kind, dir := range map[string]string{"": root, plannedPool: filepath.Join(root, plannedPool), plainMalloc: filepath.Join(root, plainMalloc)} {
		t.Setenv(allocatorEnv, kind)
		code, stdout, stderr := train(context.Background(), path)
		if code != 0 || !strings.HasSuffix(stdout, "; logs in "+dir+"\n") {
			t.Fatalf("%q: exit code %d, %s, stdout:\n%s", kind, code, stderr, stdout)
		}
		now := contents(t, root)
		for name, text := range files {
			if now[name] != text {
				t.Errorf("%q changed %s", kind, name)
			}
		}
		if len(now) != len(files)+4 {
			t.Errorf("%q: %d files after %d, want four more", kind, len(now), len(files))
		}
		files = now
	}
	if code, stdout, stderr := train(context.Background(), "-compare", path); code != 0 ||
		!strings.HasSuffix(stdout, "; logs in "+strings.Join([]string{filepath.Join(root, "custom"), filepath.Join(root, "plan"), filepath.Join(root, "malloc")}, ", ")+"\n") {
		t.Errorf("compare: exit code %d, %s, stdout:\n%s", code, stderr, stdout)
	}
}

// TestLogsInUse starts a run where another one is writing: it must fail before it
// has changed anything, and pass once the other one is done.
func TestLogsInUse(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, root := writeConfig(t, "cpu", "")
	if code, _, stderr := train(context.Background(), "-compare", path); code != 0 {
		t.Fatal(stderr)
	}
	before := contents(t, root)
	other, err := openLogs(filepath.Join(root, plainMalloc))
	if err != nil {
		t.Fatal(err)
	}
	if again := lock(other.held); errors.Is(again, errors.ErrUnsupported) {
		t.Skip("no locks here")
	}
	code, stdout, stderr := train(context.Background(), "-compare", path)
	if want := "log.log_dir: another run is writing to " + filepath.Join(root, plainMalloc) + ": wait for its end or set another folder\n"; code != exitFailure ||
		!strings.HasSuffix(stderr, want) || strings.Count(stderr, "\n") != 1 || strings.Contains(stdout, "epoch 1/3") {
		t.Errorf("exit code %d, stderr %q, want %q; stdout:\n%s", code, stderr, want, stdout)
	}
	for name, text := range contents(t, root) {
		if before[name] != text {
			t.Errorf("%s was changed", name)
		}
	}
	if err := other.close(); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := train(context.Background(), "-compare", path); code != 0 {
		t.Errorf("after the other run: %s", stderr)
	}
}
