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

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/internal/must"
	"mlpool/internal/program"
)

// TestCheck prints a config that reads back the same, and reports errors without looking for data.
func TestCheck(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "[allocator]\nstrategy = 'slab'\n")
	stdout := succeeds(t, "-check", "-set", "data.data_dir=none", path)
	again := filepath.Join(t.TempDir(), "again.toml")
	traintest.Write(t, again, stdout)
	if _, text, _ := train("-check", again); text != stdout {
		t.Errorf("got\n%s, want\n%s", text, stdout)
	}
	if cfg, err := configs.Load(again); err != nil || cfg.Allocator.Strategy != "slab" || cfg.Data.DataDir != "none" || cfg.Model.FeatDim != 24 {
		t.Errorf("got %+v, %v", cfg, err)
	}
	if _, err := os.Stat(logDir); err == nil {
		t.Error("the folder of the logs was made")
	}
	for _, c := range []struct{ env, setting, want string }{
		{"", "allocator.trace=none/x.csv", "-set allocator.trace: open none/x.csv: no such file or directory"},
		{"jemalloc", "train.seed=1", "ALLOCATOR_TYPE=jemalloc: \"jemalloc\" is not an allocator"},
		{"", "train.profile=1", "-set train.profile: needs executor = \"eager\""},
		{"", "allocator.poison=true", `-set allocator.poison: needs executor = "eager"`},
	} {
		t.Setenv(backend.AllocatorEnv, c.env)
		code, stdout, stderr := train("-check", "-set", "train.executor=graph", "-set", c.setting, path)
		if code != exit.Failure || stdout != "" || !strings.HasPrefix(stderr, "train: "+c.want) {
			t.Errorf("%s: exit code %d, got %s, want %s", c.setting, code, stderr, c.want)
		}
	}
}

// TestWaiting has a proxy that never answers.
func TestWaiting(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err) // it is go that asks a proxy
	}
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer proxy.Close() // a connection is made, but nobody accepts it
	t.Setenv("GOPROXY", "http://"+proxy.Addr().String())
	t.Setenv("GOMODCACHE", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	path, _ := traintest.WriteConfig(t, "cpu", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stderr := &traintest.OnText{Text: "waiting for", Do: cancel}
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
	must.OK(t, err)
	info, err := os.Stat(filepath.Join(cfg.Data.DataDir, "t10k-labels-idx1-ubyte.gz"))
	must.OK(t, err)
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
