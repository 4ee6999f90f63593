//go:build linux

package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// comparingTrain stands for a build of cmd/train that compares two allocators. It adds its
// arguments to $DIR/arguments.
const comparingTrain = `#!/usr/bin/env bash
[[ $1 == -version ]] && { echo "mlpool (devel), CUDA 12.4"; exit; }
echo "$*" >>"$DIR/arguments"
[[ $FAIL ]] && { echo "train: no memory" >&2; exit 1; }
cat >"$3" <<END
allocator,status,median_ms,fastest_ms,slowest_ms,allocator_us_per_step,allocs_per_step,driver_calls_per_step,peak_allocated_bytes,peak_reserved_bytes,val_acc,losses
custom,done,30.123,29.5,31,1.4,9,0,104857600,106954752,0.98061,
cuda,${STATUS-done},40,39,41,12.65,9,18,104857600,134217728,0.98061,${LOSSES-identical}
END
`

func trainings(t *testing.T, env ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir, bash := sandbox(t, "awk", "bash", "cat", "date", "mktemp", "realpath", "rm", "sed", "tail", "tr")
	bin := filepath.Join(dir, "bin")
	fake(t, bin, "train", comparingTrain)
	fake(t, bin, "nvidia-smi", "#!/bin/sh\nprintf 'NVIDIA H200, 580.159\\nNVIDIA H200, 580.159\\n'\n")
	cmd = exec.Command(bash, "trainings.sh", filepath.Join(bin, "train"), filepath.Join(dir, "out.csv"))
	cmd.Env = append([]string{"PATH=" + bin, "DIR=" + dir, "TMPDIR=" + dir}, env...)
	return cmd, dir
}

// TestTrainings has each job trained with each executor and precision, and its rows written.
func TestTrainings(t *testing.T) {
	cmd, dir := trainings(t, "PRECISIONS=fp32 tf32", "EPOCHS=3", "MNIST=/mnist")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said, err := os.ReadFile(filepath.Join(dir, "arguments"))
	if err != nil {
		t.Fatal(err)
	}
	calls := strings.Split(strings.TrimSpace(string(said)), "\n")
	if len(calls) != 5*2*2 {
		t.Errorf("%d trainings, want 20: of five jobs, two executors, two precisions", len(calls))
	}
	for _, part := range []string{"train.executor=graph", "train.precision=tf32", "train.num_epochs=3",
		"-set model.feat_dim=333 -set train.bsz=61", "-set model.feat_dim=2048", "-set train.bsz=1024", "-set train.fuse=false", "-set data.data_dir=/mnist"} {
		if !strings.Contains(string(said), part) {
			t.Errorf("no training with %s", part)
		}
	}
	csv, err := os.ReadFile(filepath.Join(dir, "out.csv"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"# NVIDIA H200, driver 580.159, 20",
		"config,executor,precision,allocator,median_ms,",
		"mnist.toml,eager,fp32,custom,30.12,29.50,31.00,1.40,9.0,0.0,100.0,102.0,98.06\n",
		"mnist.toml with feat_dim = 333 and bsz = 61,graph,tf32,cuda,40.00,39.00,41.00,12.65,9.0,18.0,100.0,128.0,98.06\n",
	} {
		if !strings.Contains(string(csv), "\n"+line) {
			t.Errorf("no line %q in\n%s", line, csv)
		}
	}
}

// TestTrainingsGoWrong has a training fail, end early, or come to other losses: nothing is written.
func TestTrainingsGoWrong(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"FAIL=1", "train: no memory"},
		{"STATUS=interrupted", "on cuda: interrupted"},
		{"LOSSES=differ", "the losses on cuda differ"},
	} {
		cmd, dir := trainings(t, c.env)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v, %s, want an error that says %q", c.env, err, out, c.want)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.csv"))
		if err != nil || len(files) > 0 {
			t.Errorf("%s: %q was written, %v", c.env, files, err)
		}
	}
}
