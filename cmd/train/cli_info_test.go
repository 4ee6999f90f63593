package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/configs"
)

// TestWaiting has a proxy that answers nobody: the command says what it waits for.
func TestWaiting(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err) // it is go that asks a proxy
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close() // nobody accepts: a connection is made, and no more
	t.Setenv("GOPROXY", "http://"+proxy.Addr().String())
	t.Setenv("GOMODCACHE", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path, _ := writeConfig(t, "cpu", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stderr := &cancelAfter{text: "waiting for", cancel: cancel}
	code := runProcess(ctx, []string{path, "-set", "data.data_dir="}, new(strings.Builder), stderr)
	if want := "train: waiting for a Go module proxy, http://" + proxy.Addr().String() + " ...\n"; code != exitInterrupted || !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("exit code %d, got %s, want %s", code, stderr, want)
	}
}

// TestNoData says in two lines what to do, and where it looked.
func TestNoData(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("GOMODCACHE", t.TempDir())
	code, stdout, stderr := train(context.Background(), "-data")
	text := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if code != exitFailure || stdout != "" || len(text) != 2 || !strings.HasPrefix(text[0], "train: no MNIST: ") || !strings.Contains(text[0], "set data_dir") ||
		!strings.HasPrefix(text[1], "train: looked in cache: ") || !strings.Contains(text[1], cache) {
		t.Errorf("exit code %d, %s, %s", code, stdout, stderr)
	}
}

func TestData(t *testing.T) {
	path, _ := writeConfig(t, "cpu", "")
	code, stdout, stderr := train(context.Background(), "-data", path)
	cfg, err := configs.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(cfg.Data.DataDir, "t10k-labels-idx1-ubyte.gz"))
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("t10k-labels-idx1-ubyte.gz   %d bytes\n", info.Size())
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "source: data_dir\n"+cfg.Data.DataDir) || !strings.HasSuffix(stdout, want) {
		t.Errorf("exit code %d, %s, got\n%s, want %s", code, stderr, stdout, want)
	}
	if code, _, stderr := train(context.Background(), "-data", "-set", "data.data_dir=none", path); code != exitFailure ||
		!strings.HasPrefix(stderr, "train: -set data.data_dir: stat none") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

// TestEveryKind finds a line on each kind of allocator, and none is made for another one.
func TestEveryKind(t *testing.T) {
	for _, kind := range allKinds {
		if aboutKinds[kind] == "" {
			t.Errorf("%s has no line in aboutKinds", kind)
		}
	}
	if len(aboutKinds) != len(allKinds) {
		t.Errorf("%d lines on %d kinds", len(aboutKinds), len(allKinds))
	}
	if a, err := new(backend).newAllocator("of one's own", configs.Default()); err == nil || !strings.Contains(err.Error(), "newAllocator") {
		t.Errorf("a kind without a case in newAllocator: %T, %v", a, err)
	}
}

func TestList(t *testing.T) {
	code, stdout, stderr := train(context.Background(), "-list")
	if code != 0 || stderr != "" {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	for _, name := range append(allKinds, "tlsf", "buddy", "slab") {
		if strings.Count(stdout, "\n  "+name+" ") != 1 {
			t.Errorf("%s does not stand there once:\n%s", name, stdout)
		}
	}
	for _, c := range []struct {
		noGPU error
		want  int
	}{{nil, 0}, {fmt.Errorf("no GPU"), 1}} {
		var b strings.Builder
		if err := printList(&b, c.noGPU); err != nil || strings.Count(strings.Join(strings.Fields(b.String()), " "), "; not here: no GPU") != c.want {
			t.Errorf("%v: %v,\n%s", c.noGPU, err, &b)
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := train(context.Background(), "-version")
	if code != 0 || stderr != "" || stdout != buildFacts().String()+"\n" || !strings.HasPrefix(stdout, "mlpool ") {
		t.Errorf("exit code %d, %q, %s", code, stdout, stderr)
	}
	text, err := json.Marshal(build{Version: "v1", Commit: "ab", Modified: true, Go: "go1", CUDA: "12.4"})
	if want := `{"version":"v1","commit":"ab","modified":true,"go":"go1","cuda":"12.4"}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
}
