//go:build linux

// Package tools tests the scripts of this folder. No test may reach a GPU: each runs a script
// with a PATH that holds only links to the commands it uses and fakes of the rest.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlpool/internal/must"
)

// sandbox returns a folder whose folder bin holds links to these commands and
// nothing else, and the path of bash.
func sandbox(t *testing.T, commands ...string) (dir, bash string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	if exec.Command(bash, "-c", "(( BASH_VERSINFO[0] >= 5 ))").Run() != nil {
		t.Skip("bash is older than 5")
	}
	dir, err = filepath.EvalSymlinks(t.TempDir()) // install_cuda.sh prints paths without links
	must.OK(t, err)
	bin := filepath.Join(dir, "bin")
	must.OK(t, os.Mkdir(bin, 0o755))
	for _, command := range commands {
		path, err := exec.LookPath(command)
		if err != nil {
			t.Skipf("no %s here", command)
		}
		must.OK(t, os.Symlink(path, filepath.Join(bin, command)))
	}
	return dir, bash
}

// fake writes a file that may be run to dir/name, in a new folder if there is none.
func fake(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755))
}

// awaitFile waits until a command has created a file.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	for range 1000 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s did not appear", filepath.Base(path))
}

// fakeTrain stands in for a build of cmd/train. It appends its arguments to $DIR/arguments and
// writes a table of two allocators; its epochs take 9, 3 and 5 ms in turn. As a rank it notes
// its process in $DIR/rank and stops. The files of its data set are in $DIR.
const fakeTrain = `#!/usr/bin/env bash
[[ $1 == -version ]] && { echo "mlpool (devel), ${CUDA-CUDA 12.4}"; exit; }
if [[ $OMPI_COMM_WORLD_RANK ]]; then
	echo $$ >"$DIR/rank.new"
	mv "$DIR/rank.new" "$DIR/rank"
	kill -STOP $$
fi
case " $* " in *" -data "*) printf '%s  7 bytes\n' "$DIR/train-images.gz" "$DIR/train-labels" "$DIR/t10k-labels"; exit ;; esac
echo "$*" >>"$DIR/arguments"
[[ $FAIL ]] && { echo "train: no memory" >&2; exit 1; }
while (($#)) && [[ $1 != -csv ]]; do shift; done
(($#)) || exit 1
times=(9 3 5)
cat >"$2" <<END
allocator,status,median_ms,fastest_ms,slowest_ms,allocator_us_per_step,allocs_per_step,driver_calls_per_step,peak_allocated_bytes,peak_reserved_bytes,val_acc,losses
custom,done,${times[($(sed -n '$=' "$DIR/arguments") - 1) % 3]}.125,2.5,31,1.4,9,0,104857600,106954752,0.98061,
cuda,${STATUS-done},40,39,41,12.65,9,18,104857600,134217728,0.98061,${LOSSES-identical}
END
`

// measuring returns a command that runs a script on a machine with four GPUs.
func measuring(t *testing.T, env []string, script string, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir, bash := sandbox(t, "awk", "bash", "cat", "cp", "date", "env", "grep", "gzip", "head", "mkdir", "mktemp", "mv", "realpath", "rm", "sed", "sleep", "sort", "tail", "tee", "tr", "wc")
	bin := filepath.Join(dir, "bin")
	fake(t, bin, "train", fakeTrain)
	fake(t, bin, "nvidia-smi", "#!/bin/sh\ncase $1 in -L) printf 'GPU %d: H200\\n' 0 1 2 3 ;; *) printf 'NVIDIA H200, 580.159\\nNVIDIA H200, 580.159\\n' ;; esac\n")
	fake(t, bin, "mpirun", "#!/bin/sh\n")
	all := []string{script}
	for _, arg := range args {
		all = append(all, strings.ReplaceAll(arg, "DIR", dir))
	}
	cmd = exec.CommandContext(t.Context(), bash, all...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = append([]string{"PATH=" + bin, "DIR=" + dir, "TMPDIR=" + dir}, env...)
	return cmd, dir
}

// TestMeasure runs the scripts that train many times and write a CSV.
func TestMeasure(t *testing.T) {
	for _, c := range []struct {
		args, env []string
		trainings int
		with      []string // arguments of some training
		lines     string   // of the CSV, without comments
	}{
		{
			args:      []string{"builds.sh", "DIR/out.csv", "10=DIR/bin/train", "9=DIR/bin/train"},
			env:       []string{"SHAPES=784x64 2048x4096", "PRECISIONS=tf32", "EPOCHS=4", "MNIST=/mnist"},
			trainings: 2 * 2 * 3,
			with: []string{"model.feat_dim=784 -set train.bsz=64 -set train.precision=tf32", "model.feat_dim=2048 -set train.bsz=4096",
				"train.executor=graph", "train.num_epochs=4", "-set data.data_dir=/mnist"},
			// The middle one of 9, 5 and 3 ms, and of 3, 9 and 5.
			lines: "build,feat_dim,bsz,precision,median_ms\n9,784,64,tf32,5.12\n10,784,64,tf32,5.12\n9,2048,4096,tf32,5.12\n10,2048,4096,tf32,5.12\n",
		},
		{
			args:      []string{"trainings.sh", "DIR/bin/train", "DIR/out.csv"},
			env:       []string{"PRECISIONS=fp32 bf16", "EPOCHS=3", "MNIST=/mnist"},
			trainings: 5 * 2 * 2,
			with: []string{"train.executor=graph", "train.precision=bf16", "train.num_epochs=3", "-set model.feat_dim=333 -set train.bsz=61",
				"-set model.feat_dim=2048", "-set train.bsz=1024", "-set train.fuse=false", "-set data.data_dir=/mnist"},
			lines: "\nmnist.toml,eager,fp32,custom,9.12,2.50,31.00,1.40,9.0,0.0,100.0,102.0,98.06\nmnist.toml,eager,fp32,cuda,40.00,39.00,41.00,12.65,9.0,18.0,100.0,128.0,98.06\n",
		},
	} {
		cmd, dir := measuring(t, c.env, c.args[0], c.args[1:]...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c.args[0], err, out)
		}
		said, csv := read(t, filepath.Join(dir, "arguments")), read(t, filepath.Join(dir, "out.csv"))+"\n"
		if n := strings.Count(said, "\n") + 1; n != c.trainings {
			t.Errorf("%s: %d trainings, want %d", c.args[0], n, c.trainings)
		}
		for _, part := range c.with {
			if !strings.Contains(said, part) {
				t.Errorf("%s: no training with %s", c.args[0], part)
			}
		}
		if !strings.Contains(csv, c.lines) || !strings.Contains(csv, "\n# NVIDIA H200, driver 580.159, 20") {
			t.Errorf("%s: no lines %q in\n%s", c.args[0], c.lines, csv)
		}
	}
}

// TestMeasureFails wants an error that names the reason, and no results.
func TestMeasureFails(t *testing.T) {
	ranks := "ranks.sh DIR/bin/train DIR/out failures"
	for _, c := range []struct{ env, args, without, want string }{
		{"FAIL=1", "builds.sh DIR/out 9=DIR/bin/train", "", "train: no memory"},
		{"", "builds.sh DIR/out DIR/bin/train", "", "is not NAME=TRAIN"},
		{"", "builds.sh DIR/out 9=DIR/bin/none", "", "bin/none: make build builds build/train"},
		{"FAIL=1", "trainings.sh DIR/bin/train DIR/out", "", "train: no memory"},
		{"STATUS=interrupted", "trainings.sh DIR/bin/train DIR/out", "", "on cuda: interrupted"},
		{"LOSSES=differ", "trainings.sh DIR/bin/train DIR/out", "", "the losses on cuda differ"},
		{"", ranks, "train", "ranks.sh: no program "},
		{"CUDA=no", ranks, "", "/train is built without CUDA: make build CUDA=1\n"},
		{"", ranks, "mpirun", "ranks.sh: mpirun is missing: install Open MPI\n"},
		{"", ranks, "nvidia-smi", "ranks.sh: RANKS=2, but this machine has 0 GPUs\n"},
		{"RANKS=2 5", ranks, "", "ranks.sh: RANKS=5, but this machine has 4 GPUs\n"},
		{"RANKS=2 1", ranks, "", "ranks.sh: RANKS: 1 is not a number of several GPUs\n"},
		{"RANKS=two", ranks, "", "ranks.sh: RANKS: two is not a number of several GPUs\n"},
	} {
		args := strings.Fields(c.args)
		cmd, dir := measuring(t, []string{c.env}, args[0], args[1:]...)
		if c.without != "" {
			must.OK(t, os.Remove(filepath.Join(dir, "bin", c.without)))
		}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s %s: %v, %s, want an error with %q", c.env, c.args, err, out, c.want)
		}
		if _, err := os.Stat(filepath.Join(dir, "out")); err == nil {
			t.Errorf("%s %s: results were written", c.env, c.args)
		}
	}
}

// TestRanksLeavesNone ends ranks.sh while one of its ranks is stopped.
func TestRanksLeavesNone(t *testing.T) {
	cmd, dir := measuring(t, nil, "ranks.sh", "DIR/bin/train", "DIR/out", "failures")
	must.OK(t, cmd.Start())
	awaitFile(t, filepath.Join(dir, "rank"))
	rank, err := strconv.Atoi(read(t, filepath.Join(dir, "rank")))
	must.OK(t, err)
	must.OK(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil {
		t.Error("ranks.sh exits with 0")
	}
	if err := syscall.Kill(rank, syscall.SIGKILL); err != syscall.ESRCH {
		t.Errorf("the rank still runs (%v)", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp.*")); len(left) > 0 {
		t.Errorf("it left %v behind", left)
	}
}

// TestInstallCUDA wants arguments that it does not understand refused before anything changes,
// and a download that fails to leave nothing behind. CI installs for real.
func TestInstallCUDA(t *testing.T) {
	const usage = "usage: install_cuda.sh [DIR [arm64]]\n"
	const toolkit, gcc = "=amd64 -q=2 download nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4", " g++-12 g++-12-x86-64-linux-gnu cpp-12 libgcc-12-dev libstdc++-12-dev"
	into, arm64 := []string{"DIR/new/cuda"}, []string{"DIR", "arm64"}
	for _, c := range []struct {
		args   []string
		status int
		says   string

		compilers, system string
	}{
		{[]string{"-h"}, 0, usage, "g++", ""}, {[]string{"--what"}, 2, usage, "g++", ""}, {[]string{""}, 2, usage, "g++", ""},
		{[]string{"a", "b"}, 2, usage, "g++", ""},
		{nil, 0, "install_cuda.sh: DIR/bin/nvcc already exists\n", "g++", ""},
		{[]string{"DIR/bin"}, 1, "install_cuda.sh: DIR/bin is not empty: ", "g++", ""},
		{into, 1, "install_cuda.sh: apt-get update failed: see above\n", "g++", "debian 0 offline"},
		{into, 1, "install_cuda.sh: the CUDA of this Ubuntu is too old: ", "g++", "ubuntu 22.04 jammy"},
		{into, 1, "install_cuda.sh: g++ is missing: install it\n", "g++-14", "debian 13 trixie"},
		{into, 1, toolkit + gcc + "\ninstall_cuda.sh: apt-get download failed: see above\n", "g++ g++-14", "debian 13 trixie"},
		{into, 1, toolkit + gcc + "\n", "g++ g++-13", "ubuntu 24.04 noble"},
		{into, 1, toolkit + "\n", "g++ g++-12", "debian 12 bookworm"},
		{into, 1, toolkit + "\n", "g++ g++-14 g++-7", "debian 13 trixie"},
		{arm64, 1, "install_cuda.sh: apt-get update failed: see above\n", "g++", "debian 0 offline"},
		{arm64, 1, "=arm64 -q=2 download nvidia-cuda-dev\ninstall_cuda.sh: apt-get download failed: see above\n", "g++", "debian 12 bookworm"},
		{arm64, 1, "install_cuda.sh: the servers of Ubuntu for amd64 have no packages for arm64: ", "g++", "ubuntu 24.04 noble"},
	} {
		dir, bash := sandbox(t, "cat", "cut", "find", "grep", "head", "ls", "mkdir", "mktemp", "realpath", "rm", "sed", "sort", "tail", "tar")
		bin := filepath.Join(dir, "bin")
		for command := range strings.FieldsSeq("nvcc dpkg-deb " + c.compilers) {
			fake(t, bin, command, "#!/bin/sh\n")
		}
		fake(t, bin, "dpkg", "#!/bin/sh\necho amd64\n")
		id, release, _ := strings.Cut(c.system, " ")
		version, codename, _ := strings.Cut(release, " ")
		fake(t, dir, "os-release", "ID="+id+"\nVERSION_ID=\""+version+"\"\nVERSION_CODENAME="+codename+"\n")
		fake(t, bin, "apt-get", `#!/bin/sh
case "$*" in
indextargets*) echo http://mirror.example/debian ;;
*update) [ "`+codename+`" != offline ] ;;
*) echo "$@"; exit 100 ;;
esac
`)
		fake(t, bin, "apt-cache", `#!/bin/sh
case "$*" in
*" show nvidia-cuda-toolkit") printf 'Package: nvidia-cuda-toolkit\nDepends: libc6, g++-12 | clang-14 | g++-9, libgcc-s1\n' ;;
*" g++-12") printf '%s\n' g++-12 '  Depends: cpp-12' g++-12-x86-64-linux-gnu cpp-12 libc6 gcc-14-base libgcc-12-dev libstdc++-12-dev ;;
esac
`)
		args := []string{"install_cuda.sh"}
		for _, arg := range c.args {
			args = append(args, strings.ReplaceAll(arg, "DIR", dir))
		}
		cmd := exec.Command(bash, args...)
		cmd.Env = []string{"PATH=" + bin, "TMPDIR=" + dir, "OS_RELEASE=" + filepath.Join(dir, "os-release")}
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.status || !strings.Contains(strings.ReplaceAll(string(out), dir, "DIR"), c.says) {
			t.Errorf("%q, %s, %s: status %d, %s, want %d and %q", c.args, c.compilers, c.system, cmd.ProcessState.ExitCode(), out, c.status, c.says)
		}
		left, _ := filepath.Glob(filepath.Join(dir, "new", "*"))
		hidden, _ := filepath.Glob(filepath.Join(dir, "new", ".*"))
		if library, _ := filepath.Glob(filepath.Join(dir, "arm64.*")); len(left)+len(hidden)+len(library) > 0 {
			t.Errorf("%q: it left %q %q %q behind", c.args, left, hidden, library)
		}
	}
}

// TestThroughput wants the clock locked once and unlocked once, also if Ctrl-C ends the command, and the exit status of
// the command.
func TestThroughput(t *testing.T) {
	const locked = "-i 1 -lgc 1965,1965\n-i 1 -rgc"
	for _, c := range []struct {
		env, command string
		interrupt    bool
		status       int
		calls        string // that change the clock
		says         string
	}{
		{"", "exit 42", false, 42, locked, "GPU 1 is locked at 1965 MHz"},
		{"GPU_CLOCK_MHZ=900", "true", false, 0, "-i 1 -lgc 900,900\n-i 1 -rgc", "locked at 900 MHz"},
		{"", `echo >"$DIR/ready"; exec sleep 60`, true, 130, locked, "locked"},
		{"REFUSE=-lgc", "exit 3", false, 3, "-i 1 -lgc 1965,1965", "the clock is not locked: no permission\n"},
		{"REFUSE=-rgc", "true", false, 0, locked, "GPU 1 is still locked: run nvidia-smi -i 1 -rgc as root\n"},
	} {
		dir, bash := sandbox(t, "bash", "grep", "sed", "sleep", "sort", "tail")
		bin := filepath.Join(dir, "bin")
		fake(t, bin, "nvidia-smi", `#!/usr/bin/env bash
case $* in
*supported-clocks*) printf '1980\n1965\n210\n1980\n1965\n210\n' ;;
*) echo "$*" >>"$DIR/calls" ;;
esac
[[ ! $REFUSE || $* != *"$REFUSE"* ]] || { printf 'no permission\nmore\n'; exit 4; }
`)
		cmd := exec.CommandContext(t.Context(), bash, "throughput_test.sh", "bash", "-c", c.command)
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "DIR=" + dir, "CUDA_VISIBLE_DEVICES=1,0", c.env}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		var said strings.Builder
		cmd.Stderr = &said
		must.OK(t, cmd.Start())
		if c.interrupt {
			awaitFile(t, filepath.Join(dir, "ready"))
			if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
		err := cmd.Wait()
		if calls := read(t, filepath.Join(dir, "calls")); cmd.ProcessState.ExitCode() != c.status || calls != c.calls || !strings.Contains(said.String(), c.says) {
			t.Errorf("%s %q: %v, calls %q, %s", c.env, c.command, err, calls, said.String())
		}
	}
}
