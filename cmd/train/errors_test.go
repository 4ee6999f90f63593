package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"mlpool/kernels"
)

func TestErrors(t *testing.T) {
	good, _ := writeConfig(t, "cpu", "")
	bigBatch, _ := writeConfig(t, "cpu", "")
	text, err := os.ReadFile(bigBatch)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bigBatch, bytes.Replace(text, []byte("bsz = 16"), []byte("bsz = 301"), 1), 0o666); err != nil {
		t.Fatal(err)
	}
	unknownKey, _ := writeConfig(t, "cpu", "nmu_epochs = 3\n")
	strategy, _ := writeConfig(t, "cpu", "[allocator]\nstrategy = \"magic\"\n")
	segments, _ := writeConfig(t, "cpu", "[allocator]\nstrategy = \"buddy\"\nsegments = \"virtual\"\n")
	profile, _ := writeConfig(t, "cpu", "executor = \"graph\"\nprofile = 1\n")
	gpu, _ := writeConfig(t, "cuda", "")
	graph, _ := writeConfig(t, "cpu", "executor = \"graph\"\n")
	noLogs, _ := writeConfig(t, "cpu", "")
	if err := os.WriteFile(filepath.Join(filepath.Dir(noLogs), "logs"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, env string
		args      []string
		code      int
		want      string
	}{
		{"no config", "", nil, exitUsage, "which config?"},
		{"two configs", "", []string{good, good}, exitUsage, "one config at a time"},
		{"unknown flag", "", []string{"-fast", good}, exitUsage, "-fast"},
		{"missing file", "", []string{"no.toml"}, exitFailure, "no.toml"},
		{"unknown key", "", []string{unknownKey}, exitFailure, "nmu_epochs"},
		{"batch too large", "", []string{bigBatch}, exitFailure, "301 is more than the 300 rows"},
		{"unknown allocator", "jemalloc", []string{good}, exitFailure, "use one of custom, plan, cuda, malloc"},
		{"cuda allocator on the CPU", "cuda", []string{good}, exitFailure, "needs a GPU, and this run is on the CPU: use one of custom, plan, malloc"},
		{"graph of mallocs", "malloc", []string{graph}, exitFailure, `cudaMalloc, which no graph can capture: use one of custom, plan, or train.executor = "eager"`},
		{"profile of graphs", "", []string{profile}, exitFailure, `train.profile: needs executor = "eager"`},
		{"unknown strategy", "", []string{strategy}, exitFailure, `small.toml:14: allocator.strategy: is "magic", want "tlsf" or `},
		{"segments of a strategy", "", []string{segments}, exitFailure, `small.toml:15: allocator.segments: "virtual" cannot be had: allocator: strategy buddy cannot have virtual segments; use "malloc", or leave it out`},
		{"segments of a plan", "plan", []string{segments}, exitFailure, `small.toml:15: allocator.segments: "virtual" cannot be had: `},
		{"log_dir is a file", "", []string{noLogs}, exitFailure, "log_dir"},
		{"log_dir of a comparison is a file", "", []string{"-compare", noLogs}, exitFailure, "log_dir"},
		{"one allocator twice", "", []string{"-compare=custom,custom", good}, exitUsage, "custom and custom are the same allocator"},
		{"one allocator", "", []string{"-compare=custom", good}, exitUsage, "is one allocator"},
		{"strategy with a typing error", "", []string{"-set", "allocator.strategy=tslf", good}, exitUsage, `did you mean "tlsf"?`},
		{"no GPU", "", []string{gpu}, exitFailure, `"cuda" cannot be had`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "no GPU" && kernels.Available() == nil {
				t.Skip("there is a GPU")
			}
			t.Setenv(allocatorEnv, c.env)
			code, _, stderr := train(context.Background(), c.args...)
			if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit code %d, want %d; stderr %q, want one line with %q", code, c.code, stderr, c.want)
			}
		})
	}
}

// TestCPUPrecision says that the CPU does not compute in the precision that a config asks for.
func TestCPUPrecision(t *testing.T) {
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "cpu", "")
	for precision, want := range map[string]string{
		"auto": "", "fp32": "", "tf32": "train: train.precision = \"tf32\" is for a GPU: the CPU computes in fp32\n",
	} {
		if code, _, stderr := train(context.Background(), "-check", "-set", "train.precision="+precision, path); code != 0 || stderr != want {
			t.Errorf("%s: exit code %d, stderr %q, want %q", precision, code, stderr, want)
		}
	}
}

// TestConfigErrors prints each error of a config on a line.
func TestConfigErrors(t *testing.T) {
	path, _ := writeConfig(t, "cpu", "fusee = 1\nexecutor = 'grapf'\n")
	code, _, stderr := train(context.Background(), path)
	if code != exitFailure || strings.Count(stderr, "\n") != 2 || strings.Count("\n"+stderr, "\ntrain: ") != 2 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	code, _, stderr = train(context.Background(), "-set", "train.bsz=0", "-set", "train.seed=-1", path)
	if code != exitUsage || !regexp.MustCompile(`^train: -set train.bsz: .*\ntrain: -set train.seed: .*\n$`).MatchString(stderr) {
		t.Errorf("settings: exit code %d, stderr %q", code, stderr)
	}
}

func TestAutoFallsBackToTheCPU(t *testing.T) {
	if kernels.Available() == nil {
		t.Skip("there is a GPU")
	}
	t.Setenv(allocatorEnv, "")
	path, _ := writeConfig(t, "auto", "")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	code, stdout, stderr := train(context.Background(), path)
	if code != 0 || !strings.Contains(stdout, ": CPU, 1 thread\n") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "on the CPU") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestWithoutCUDA says how a program gets CUDA that was built without it, and only there.
func TestWithoutCUDA(t *testing.T) {
	const build = "`make build` builds it with CUDA where nvcc is, tools/install_cuda.sh installs nvcc"
	for _, c := range []struct {
		err  error
		want bool
	}{
		{kernels.ErrNoCUDA, true},
		{fmt.Errorf("kernels: %w", kernels.ErrNoCUDA), true},
		{errors.New("no CUDA-capable device is detected"), false},
	} {
		if got := remedy(c.err); strings.Contains(got, build) != c.want || !c.want && got != "" {
			t.Errorf("%v: %q, want the remedy %t", c.err, got, c.want)
		}
	}
	if kernels.Available() == nil {
		return
	}
	t.Setenv(allocatorEnv, "")
	for _, device := range []string{"auto", "cuda"} {
		path, _ := writeConfig(t, device, "")
		_, _, stderr := train(context.Background(), path)
		if want := errors.Is(kernels.Available(), kernels.ErrNoCUDA); strings.Contains(stderr, build) != want {
			t.Errorf("device %s: %q, want the remedy %t", device, stderr, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, flag := range []string{"-h", "-help"} {
		code, stdout, stderr := train(context.Background(), flag)
		if code != 0 || stderr != "" {
			t.Errorf("%s: exit code %d, stderr %q", flag, code, stderr)
		}
		for _, want := range []string{"usage: train", "-compare", "-export", "ALLOCATOR_TYPE", "exit code"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: no %q in:\n%s", flag, want, stdout)
			}
		}
	}
}
