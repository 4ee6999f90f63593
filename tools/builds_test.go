//go:build linux

package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// timedTrain stands for a build of cmd/train: of its trainings the first takes 9 ms an epoch, the
// second 3, the third 5. Each adds its arguments to a file beside it.
const timedTrain = `#!/usr/bin/env bash
[[ $1 == -version ]] && { printf 'mlpool (devel), CUDA %s\n' "${0##*/train}"; exit; }
echo "$*" >>"$0.arguments"
[[ $FAIL ]] && { echo "train: no memory" >&2; exit 1; }
times=(9 3 5)
printf 'allocator,median_ms\ncustom,%s.125\n' "${times[($(sed -n '$=' "$0.arguments") - 1) % 3]}" >"$2"
`

func builds(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir, bash := sandbox(t, "awk", "bash", "cat", "date", "mktemp", "realpath", "rm", "sed", "sort", "tail", "tr")
	bin := filepath.Join(dir, "bin")
	fake(t, bin, "train9", timedTrain)
	fake(t, bin, "train10", timedTrain)
	fake(t, bin, "nvidia-smi", "#!/bin/sh\nprintf 'NVIDIA H200, 580.159\\n'\n")
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "DIR", dir)
	}
	cmd = exec.Command(bash, append([]string{"builds.sh"}, args...)...)
	cmd.Env = append([]string{"PATH=" + bin, "TMPDIR=" + dir}, env...)
	return cmd, dir
}

// TestBuilds has two builds take turns, and the middle one of three rounds written for each.
func TestBuilds(t *testing.T) {
	cmd, dir := builds(t, []string{"SHAPES=784x64 2048x4096", "PRECISIONS=3xtf32 tf32", "EPOCHS=4", "MNIST=/mnist"},
		"DIR/out.csv", "10=DIR/bin/train10", "9=DIR/bin/train9")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said, err := os.ReadFile(filepath.Join(dir, "bin", "train9.arguments"))
	if err != nil {
		t.Fatal(err)
	}
	calls := strings.Split(strings.TrimSpace(string(said)), "\n")
	if len(calls) != 2*2*3 {
		t.Errorf("%d trainings of a build, want 12: of two shapes, two precisions, three rounds", len(calls))
	}
	for _, part := range []string{"model.feat_dim=784 -set train.bsz=64 -set train.precision=3xtf32", "model.feat_dim=2048 -set train.bsz=4096",
		"train.executor=graph", "train.num_epochs=4", "-set data.data_dir=/mnist"} {
		if !strings.Contains(string(said), part) {
			t.Errorf("no training with %s", part)
		}
	}
	csv, err := os.ReadFile(filepath.Join(dir, "out.csv"))
	if err != nil {
		t.Fatal(err)
	}
	want := `# 10: mlpool (devel), CUDA 10
# 9: mlpool (devel), CUDA 9
build,feat_dim,bsz,precision,median_ms
9,784,64,3xtf32,5.12
10,784,64,3xtf32,5.12
9,784,64,tf32,5.12
10,784,64,tf32,5.12
9,2048,4096,3xtf32,5.12
10,2048,4096,3xtf32,5.12
9,2048,4096,tf32,5.12
10,2048,4096,tf32,5.12
`
	if !strings.HasSuffix(string(csv), want) || !strings.Contains(string(csv), "\n# NVIDIA H200, driver 580.159, 20") {
		t.Errorf("got\n%s, want at its end\n%s", csv, want)
	}
}

// TestBuildsGoWrong: an error is said in a line, and nothing is written.
func TestBuildsGoWrong(t *testing.T) {
	for _, c := range []struct {
		env, build, want string
	}{
		{"FAIL=1", "9=DIR/bin/train9", "train: no memory"},
		{"", "DIR/bin/train9", "is not NAME=TRAIN"},
		{"", "9=DIR/bin/none", "bin/none: make build builds build/train"},
	} {
		cmd, dir := builds(t, []string{c.env}, "DIR/out.csv", c.build)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s %s: %v, %s, want an error that says %q", c.env, c.build, err, out, c.want)
		}
		if _, err := os.Stat(filepath.Join(dir, "out.csv")); err == nil {
			t.Errorf("%s %s: out.csv was written", c.env, c.build)
		}
	}
}
