package main

import (
	"errors"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/kernels"
)

func TestErrors(t *testing.T) {
	good, _ := traintest.WriteConfig(t, "cpu", "")
	bigBatch, _ := traintest.WriteConfig(t, "cpu", "")
	text := traintest.Read(t, bigBatch)
	traintest.Write(t, bigBatch, strings.Replace(string(text), "bsz = 16", "bsz = 301", 1))
	unknownKey, _ := traintest.WriteConfig(t, "cpu", "nmu_epochs = 3\n")
	strategy, _ := traintest.WriteConfig(t, "cpu", "[allocator]\nstrategy = \"magic\"\n")
	segments, _ := traintest.WriteConfig(t, "cpu", "[allocator]\nstrategy = \"buddy\"\nsegments = \"virtual\"\n")
	profile, _ := traintest.WriteConfig(t, "cpu", "executor = \"graph\"\nprofile = 1\n")
	gpu, _ := traintest.WriteConfig(t, "cuda", "")
	graph, _ := traintest.WriteConfig(t, "cpu", "executor = \"graph\"\n")
	noLogs, _ := traintest.WriteConfig(t, "cpu", "")
	traintest.Write(t, filepath.Join(filepath.Dir(noLogs), "logs"), "")
	for _, c := range []struct {
		name, env string
		args      []string
		code      int
		want      string
	}{
		{"no config", "", nil, exit.Usage, "which config?"},
		{"two configs", "", []string{good, good}, exit.Usage, "one config at a time"},
		{"unknown flag", "", []string{"-fast", good}, exit.Usage, "-fast"},
		{"missing file", "", []string{"no.toml"}, exit.Failure, "no.toml"},
		{"unknown key", "", []string{unknownKey}, exit.Failure, "nmu_epochs"},
		{"batch too large", "", []string{bigBatch}, exit.Failure, "301 is more than the 300 rows"},
		{"unknown allocator", "jemalloc", []string{good}, exit.Failure, "use one of custom, plan, cuda, malloc"},
		{"cuda allocator on the CPU", "cuda", []string{good}, exit.Failure, "needs a GPU, and this run is on the CPU: use one of custom, plan, malloc"},
		{"graph of mallocs", "malloc", []string{graph}, exit.Failure, `cudaMalloc, which no graph can capture: use one of custom, plan, or train.executor = "eager"`},
		{"profile of graphs", "", []string{profile}, exit.Failure, `train.profile: needs executor = "eager"`},
		{"unknown strategy", "", []string{strategy}, exit.Failure, `small.toml:14: allocator.strategy: is "magic", want "tlsf" or `},
		{"segments of a strategy", "", []string{segments}, exit.Failure, `small.toml:15: allocator.segments: "virtual" is not available: allocator: strategy buddy cannot have virtual segments; use "malloc", or leave it out`},
		{"segments of a plan", "plan", []string{segments}, exit.Failure, `small.toml:15: allocator.segments: "virtual" is not available: `},
		{"log_dir is a file", "", []string{noLogs}, exit.Failure, "log_dir"},
		{"log_dir of a comparison is a file", "", []string{"-compare", noLogs}, exit.Failure, "log_dir"},
		{"one allocator twice", "", []string{"-compare=custom,custom", good}, exit.Usage, "custom and custom are the same allocator"},
		{"one allocator", "", []string{"-compare=custom", good}, exit.Usage, "is one allocator"},
		{"strategy with a typing error", "", []string{"-set", "allocator.strategy=tslf", good}, exit.Usage, `did you mean "tlsf"?`},
		{"no GPU", "", []string{gpu}, exit.Failure, `"cuda" is not available`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "no GPU" && kernels.Available() == nil {
				t.Skip("there is a GPU")
			}
			t.Setenv(backend.AllocatorEnv, c.env)
			code, _, stderr := train(c.args...)
			if code != c.code || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit code %d, want %d; stderr %q, want one line with %q", code, c.code, stderr, c.want)
			}
		})
	}
}

// TestCPUPrecision warns of a precision that is for a GPU.
func TestCPUPrecision(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	for precision, want := range map[string]string{
		"auto": "", "fp32": "", "tf32": "train: train.precision = \"tf32\" is for a GPU: the CPU computes in fp32\n",
	} {
		if code, _, stderr := train("-check", "-set", "train.precision="+precision, path); code != 0 || stderr != want {
			t.Errorf("%s: exit code %d, stderr %q, want %q", precision, code, stderr, want)
		}
	}
}

// TestConfigErrors prints a line for each error of a config.
func TestConfigErrors(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "fusee = 1\nexecutor = 'grapf'\n")
	code, _, stderr := train(path)
	if code != exit.Failure || strings.Count(stderr, "\n") != 2 || strings.Count("\n"+stderr, "\ntrain: ") != 2 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	code, _, stderr = train("-set", "train.bsz=0", "-set", "train.seed=-1", path)
	if code != exit.Usage || !regexp.MustCompile(`^train: -set train.bsz: .*\ntrain: -set train.seed: .*\n$`).MatchString(stderr) {
		t.Errorf("settings: exit code %d, stderr %q", code, stderr)
	}
}

func TestAutoFallsBackToTheCPU(t *testing.T) {
	if kernels.Available() == nil {
		t.Skip("there is a GPU")
	}
	path, _ := traintest.WriteConfig(t, "auto", "")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	code, stdout, stderr := train(path)
	if code != 0 || !strings.Contains(stdout, ": CPU, 1 thread\n") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "on the CPU") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// TestWithoutCUDA says how to get a build with CUDA.
func TestWithoutCUDA(t *testing.T) {
	const build = "`make build` builds it with CUDA where nvcc is, tools/install_cuda.sh installs nvcc"
	if kernels.Available() == nil {
		return
	}
	for _, device := range []string{"auto", "cuda"} {
		path, _ := traintest.WriteConfig(t, device, "")
		_, _, stderr := train(path)
		if want := errors.Is(kernels.Available(), kernels.ErrNoCUDA); strings.Contains(stderr, build) != want {
			t.Errorf("device %s: %q, want the remedy %t", device, stderr, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, flag := range []string{"-h", "-help"} {
		code, stdout, stderr := train(flag)
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
