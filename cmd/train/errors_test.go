package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/shirou/gopsutil/v4/mem"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/collective"
)

func TestErrors(t *testing.T) {
	good, _ := traintest.WriteConfig(t, "cpu", "")
	bigBatch, _ := traintest.WriteConfig(t, "cpu", "", "bsz = 16", "bsz = 301")
	unknownKey, _ := traintest.WriteConfig(t, "cpu", "nmu_epochs = 3\n")
	segments, _ := traintest.WriteConfig(t, "cpu", "[allocator]\nstrategy = \"buddy\"\nsegments = \"virtual\"\n")
	gpu, _ := traintest.WriteConfig(t, "cuda", "")
	noLogs, _ := traintest.WriteConfig(t, "cpu", "")
	traintest.Write(t, filepath.Join(filepath.Dir(noLogs), "logs"), "")
	for _, c := range []struct {
		name, env string
		args      []string
		code      int
		want      string
	}{
		{"unknown flag", "", []string{"-fast", good}, exit.Usage, "-fast"},
		{"missing file", "", []string{"no.toml"}, exit.Failure, "no.toml"},
		{"unknown key", "", []string{unknownKey}, exit.Failure, "nmu_epochs"},
		{"batch too large", "", []string{bigBatch}, exit.Failure, "301 is more than the 300 rows"},
		{"unknown allocator", "jemalloc", []string{good}, exit.Failure, "use one of custom, cuda, malloc"},
		{"segments of a strategy", "", []string{segments}, exit.Failure, `small.toml:15: allocator.segments: "virtual" is not available: allocator: strategy buddy cannot have virtual segments; use "malloc", or leave it out`},
		{"a folder", "", []string{filepath.Dir(good)}, exit.Failure, " is a folder: name a TOML file, as in train configs/mnist.toml\n"},
		{"log_dir of a comparison is a file", "", []string{"-compare", noLogs}, exit.Failure, "log_dir"},
		{"one allocator", "", []string{"-compare=custom", good}, exit.Usage, "-compare=custom is one allocator: name two or more, as in -compare=custom,cuda, or it twice"},
		{"no GPU", "", []string{gpu}, exit.Failure, `"cuda" is not available`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "no GPU" && kernels.Available() == nil {
				t.Skip("there is a GPU")
			}
			t.Setenv(backend.AllocatorEnv, c.env)
			fails(t, c.code, c.want, c.args...)
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

// TestKeyAtFault names the line and the key of a value that does not work, whichever part finds
// out.
func TestKeyAtFault(t *testing.T) {
	dir := t.TempDir()
	file, empty := filepath.Join(dir, "file"), filepath.Join(dir, "empty")
	traintest.Write(t, file, "")
	must.OK(t, os.Mkdir(empty, 0o777))
	bad := traintest.DataDir(t)
	traintest.Write(t, filepath.Join(bad, "t10k-labels-idx1-ubyte"), "x")
	for _, c := range []struct{ text, want string }{
		{"[allocator]\nsegment_bytes = 3", ":4: allocator.segment_bytes: is 3, want 0 or a power of two"},
		{"[allocator]\nsegments = 'malloc'\nsegment_bytes = 70368744177664", ":5: allocator.segment_bytes: the run needs at least "},
		{"[allocator]\nsegment_bytes = 140737488355328", ":4: allocator.segment_bytes: is 140737488355328, want"},
		{"[allocator]\nmax_segment_bytes = 4096", ":4: allocator.max_segment_bytes: is 4096, less than"},
		{"[allocator]\npreallocate = 4096\nmax_bytes = 10", ":4: allocator.preallocate: is 4096, more than"},
		{"[allocator]\npreallocate = 67108864\nmax_fraction = 1e-5", ":4: allocator.preallocate: "},
		{"[allocator]\nsegments = 'virtual'\nmax_bytes = 100", ":4: allocator.segments: "},
		{fmt.Sprintf("[allocator]\ntrace = '%s/none/x.csv'", dir), ":4: allocator.trace: open "},
		{fmt.Sprintf("[data]\ndata_dir = '%s/none'", dir), ":4: data.data_dir: stat "},
		{fmt.Sprintf("[data]\ndata_dir = '%s'", empty), ":4: data.data_dir: " + empty + ": no train-images-idx3-ubyte or "},
		{fmt.Sprintf("[data]\ndata_dir = '%s'", file), ":4: data.data_dir: " + file + ": is a file"},
		{fmt.Sprintf("[data]\ndata_dir = '%s'", bad), ":4: data.data_dir: " + bad + "/t10k-labels-idx1-ubyte: labels: truncated: 1 of 8 bytes"},
		{fmt.Sprintf("[log]\nlog_dir = '%s'", file), ":4: log.log_dir: "},
		{fmt.Sprintf("[log]\nlog_dir = '%s/x'", file), ":4: log.log_dir: "},
	} {
		text := "train.device = 'cpu'\nmodel.feat_dim = 2\n" + c.text + "\n"
		if !strings.Contains(text, "data_dir") {
			text += fmt.Sprintf("[data]\ndata_dir = '%s'\n", traintest.DataDir(t))
		}
		if !strings.Contains(text, "log_dir") {
			text += "[log]\nlog_dir = ''\n"
		}
		path := filepath.Join(t.TempDir(), "c.toml")
		traintest.Write(t, path, text)
		fails(t, exit.Failure, "train: "+path+c.want, path)
	}
}

// TestTraceAtFault removes the folder of the trace during the training.
func TestTraceAtFault(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "traces")
	must.OK(t, os.Mkdir(dir, 0o777))
	path, _ := traintest.WriteConfig(t, "cpu", fmt.Sprintf("[allocator]\ntrace = '%s/x.csv'\n", dir))
	stdout := &traintest.OnText{Text: "epoch 1/3", Do: func() { os.Remove(dir) }}
	var stderr strings.Builder
	code := runProcess(context.Background(), []string{path}, stdout, &stderr)
	if want := fmt.Sprintf("train: %s:14: allocator.trace: open %s/x.csv: no such file or directory\n", path, dir); code != exit.Failure || stderr.String() != want {
		t.Errorf("exit code %d, got %s, want %s", code, &stderr, want)
	}
}

// TestTooLarge asks for more memory than any machine has. Nothing is allocated.
func TestTooLarge(t *testing.T) {
	if _, err := mem.VirtualMemory(); err != nil {
		t.Skip("this system does not say how much memory there is")
	}
	for _, c := range []struct{ old, new, want string }{
		{"feat_dim = 24\nnum_layers = 2", "feat_dim = 32768\nnum_layers = 1000", "small.toml:2: model.feat_dim: the run needs at least "},
		{"[train]", "[allocator]\npreallocate = 70368744177664\n[train]", "allocator.preallocate: the run needs at least "},
		{"[train]", "[allocator]\nsegment_bytes = 70368744177664\n[train]\nexecutor = 'graph'", "allocator.segment_bytes: the run needs at least "},
		{"[train]", "[allocator]\nsegments = 'malloc'\nsegment_bytes = 70368744177664\n[train]", "allocator.segment_bytes: the run needs at least "},
	} {
		t.Setenv(backend.AllocatorEnv, "")
		path, logDir := traintest.WriteConfig(t, "cpu", "", c.old, c.new)
		export := filepath.Join(t.TempDir(), "export")
		code, stdout, stderr := train("-export", export, path)
		if code != exit.Failure || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 || stdout != "" {
			t.Errorf("%s: exit code %d, stderr %q, want %q; stdout %q", c.new, code, stderr, c.want, stdout)
		}
		for _, dir := range []string{logDir, export} {
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s: %s was made: %v", c.new, dir, err)
			}
		}
	}
}

// asymmetric is a rank without symmetric memory: the memory of its buckets comes from the allocator.
type asymmetric struct{ collective.Collective }

func (asymmetric) AllocSymmetric(int) (uintptr, func() error, error) {
	return 0, nil, errors.ErrUnsupported
}

// TestNeedIsLow compares the least memory of a run with its peak on the allocator that keeps no
// reserve.
func TestNeedIsLow(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	t.Setenv(backend.AllocatorEnv, backend.PlainMalloc)
	for _, batches := range []string{"bsz = 16", "bsz = 100", "bsz = 16\nprecision = \"bf16\"", "bsz = 100\nprecision = \"bf16\""} {
		for _, model := range []string{"feat_dim = 256\nnum_layers = 2", "feat_dim = 255\nnum_layers = 5", "feat_dim = 256\nnum_layers = 1"} {
			path, root := traintest.WriteConfig(t, "cpu", "", "feat_dim = 24\nnum_layers = 2", model, "bsz = 16", batches, "learning_rate = 0.5", "learning_rate = 0.01", "num_epochs = 3", "num_epochs = 1")
			for _, ranks := range []int{1, 2} {
				if e := trainRanks(t, context.Background(), ranks, func(int) []string { return []string{path} },
					func(l *collective.Local) collective.Collective { return asymmetric{l} })[0]; e.code != 0 {
					t.Fatal(e.stderr)
				}
				r := recordsOf(t, filepath.Join(root, backend.PlainMalloc))[0]
				cfg, set := traintest.Loaded(t, path)
				if n := backend.DeviceNeed(cfg, set, []backend.Subject{{Kind: backend.PlainMalloc}}, 0, ranks); n.Bytes > r.PeakAllocated || n.Bytes < r.PeakAllocated*9/10 {
					t.Errorf("%q, %q, %d ranks: said to need %d bytes, had %d at its peak", model, batches, ranks, n.Bytes, r.PeakAllocated)
				}
			}
		}
	}
}
