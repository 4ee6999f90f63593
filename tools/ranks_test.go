//go:build linux

package tools

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// fakeTrain stands for a build of cmd/train with CUDA, or without. As a rank it is stopped, and
// notes in $DIR/rank which process it is.
const fakeTrain = `#!/usr/bin/env bash
if [[ $1 == -version ]]; then
	echo "mlpool (devel), commit not noted, go1.26.0, ${CUDA:-built without CUDA}"
	exit
fi
[[ $OMPI_COMM_WORLD_RANK ]] || exit 1
echo $$ >"$DIR/rank.new"
mv "$DIR/rank.new" "$DIR/rank"
kill -STOP $$
`

// ranksScript is a part of ranks.sh on a machine with two GPUs. Without is a command that is not
// there.
func ranksScript(t *testing.T, part, without string, env ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	dir, bash := sandbox(t, "bash", "cat", "env", "grep", "mkdir", "mktemp", "mv", "realpath", "rm", "sleep", "tail", "tee", "tr", "wc")
	bin := filepath.Join(dir, "bin")
	fake(t, bin, "nvidia-smi", "#!/bin/sh\nprintf 'GPU 0: NVIDIA H200\\nGPU 1: NVIDIA H200\\n'\n")
	fake(t, bin, "mpirun", "#!/bin/sh\n")
	fake(t, bin, "train", fakeTrain)
	if without != "" {
		if err := os.Remove(filepath.Join(bin, without)); err != nil {
			t.Fatal(err)
		}
	}
	cmd = exec.CommandContext(ctx, bash, "ranks.sh", filepath.Join(bin, "train"), filepath.Join(dir, "out"), part)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append([]string{"PATH=" + bin, "DIR=" + dir, "TMPDIR=" + dir, "CUDA=CUDA 13.2"}, env...)
	return cmd, dir
}

// TestRanksNeeds has something missing that ranks.sh needs: it says what, and no result.
func TestRanksNeeds(t *testing.T) {
	for _, c := range []struct {
		without string
		env     []string
		want    string
	}{
		{"train", nil, "ranks.sh: no program "},
		{"", []string{"CUDA="}, "/train is built without CUDA: make build CUDA=1\n"},
		{"mpirun", nil, "ranks.sh: no mpirun here: install Open MPI\n"},
		{"nvidia-smi", nil, "ranks.sh: 0 GPUs here, and RANKS=2\n"},
		{"", []string{"RANKS=3"}, "ranks.sh: 2 GPUs here, and RANKS=3\n"},
	} {
		t.Run(c.want, func(t *testing.T) {
			cmd, dir := ranksScript(t, "failures", c.without, c.env...)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			stdout, err := cmd.Output()
			if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 2 || len(stdout) > 0 || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("%v, stdout %q, stderr %q, want %q", err, stdout, &stderr, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "out")); !os.IsNotExist(err) {
				t.Errorf("there are results (%v)", err)
			}
		})
	}
}

// TestRanksLeavesNone ends ranks.sh while a rank is stopped.
func TestRanksLeavesNone(t *testing.T) {
	cmd, dir := ranksScript(t, "failures", "")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitFile(t, filepath.Join(dir, "rank"))
	rank, err := strconv.Atoi(read(t, filepath.Join(dir, "rank")))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("ranks.sh ends well")
	}
	if err := syscall.Kill(rank, syscall.SIGKILL); err != syscall.ESRCH {
		t.Errorf("the rank is still there (%v)", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp.*")); len(left) > 0 {
		t.Errorf("it left %v behind", left)
	}
}

// TestRanksRunOutOfTime has racecheck take too long, and memcheck find an error.
func TestRanksRunOutOfTime(t *testing.T) {
	cmd, dir := ranksScript(t, "sanitizer", "")
	bin := filepath.Join(dir, "bin")
	fake(t, bin, "compute-sanitizer", "#!/bin/sh\n")
	fake(t, bin, "timeout", "#!/bin/sh\ncase $* in *racecheck*) exit 124 ;; esac\necho ERROR SUMMARY: 1 error\nexit 9\n")
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v: %s", err, out)
	}
	said := read(t, filepath.Join(dir, "out", "sanitizer.txt"))
	for _, want := range []string{"WRONG memcheck, eager: ERROR SUMMARY: 1 error", "?     racecheck, eager: ran out of time\n", "?     racecheck, graph: ran out of time"} {
		if !strings.Contains(said, want) {
			t.Errorf("ranks.sh says %q, want %q", said, want)
		}
	}
}
