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

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/program"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
)

// TestWaiting has a proxy that never answers.
func TestWaiting(t *testing.T) {
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
	path, _ := traintest.WriteConfig(t, "cpu", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stderr := &traintest.CancelAfter{Text: "waiting for", Cancel: cancel}
	code := runProcess(ctx, []string{path, "-set", "data.data_dir="}, new(strings.Builder), stderr)
	if want := "train: waiting for a Go module proxy, http://" + proxy.Addr().String() + " ...\n"; code != exit.CodeInterrupted || !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("exit code %d, got %s, want %s", code, stderr, want)
	}
}

// TestNoData says in two lines what to do, and where it looked.
func TestNoData(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("GOMODCACHE", t.TempDir())
	code, stdout, stderr := train("-data")
	text := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if code != exit.Failure || stdout != "" || len(text) != 2 || !strings.HasPrefix(text[0], "train: no MNIST: ") || !strings.Contains(text[0], "set data_dir") ||
		!strings.HasPrefix(text[1], "train: looked in cache: ") || !strings.Contains(text[1], cache) {
		t.Errorf("exit code %d, %s, %s", code, stdout, stderr)
	}
}

func TestData(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	code, stdout, stderr := train("-data", path)
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
	if code, _, stderr := train("-data", "-set", "data.data_dir=none", path); code != exit.Failure ||
		!strings.HasPrefix(stderr, "train: -set data.data_dir: stat none") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := train("-version")
	if code != 0 || stderr != "" || stdout != program.Facts().String()+"\n" || !strings.HasPrefix(stdout, "mlpool ") {
		t.Errorf("exit code %d, %q, %s", code, stdout, stderr)
	}
	text, err := json.Marshal(program.Build{Version: "v1", Commit: "ab", Modified: true, Go: "go1", CUDA: "12.4"})
	if want := `{"version":"v1","commit":"ab","modified":true,"go":"go1","cuda":"12.4"}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
}
