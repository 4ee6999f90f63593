//go:build linux

// Package tools tests the scripts of this folder. No test may reach a real
// GPU: each runs a script with a PATH that holds nothing but links to the
// commands it uses and, where there is to be one, a fake nvidia-smi.
package tools

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeSMI stands for nvidia-smi on a machine with two GPUs. It writes its
// arguments to $SMI_LOG; FAIL_LOCK and FAIL_RESTORE make those calls fail with
// the given status, UNSUPPORTED makes the lock a warning, SLOW_LOCK makes it take
// half a second. $SMI_LOG.locking and $SMI_LOG.sampling appear once it is at that.
const fakeSMI = `#!/usr/bin/env bash
trap '' INT
echo "$*" >>"$SMI_LOG"
if [[ $1 == -i ]]; then
	case $2 in
	0 | 1 | GPU-aaaa-1 | GPU-bbbb-2) ;;
	*) echo "No devices were found"; exit 6 ;;
	esac
	shift 2
fi
case $* in
--query-gpu=uuid*) printf 'GPU-aaaa-1\nGPU-bbbb-2\n' ;;
--query-supported-clocks=gr*) printf '1980\n1965\n1950\n210\n1980\n1965\n210\n' ;;
-lgc*)
	if [[ $FAIL_LOCK ]]; then
		echo "The current user does not have permission to change clocks."
		echo "Terminating early due to previous errors."
		exit "$FAIL_LOCK"
	fi
	[[ $UNSUPPORTED ]] && echo "Setting locked GPU clocks is not supported for GPU 0."
	[[ $SLOW_LOCK ]] && : >"$SMI_LOG.locking" && sleep 0.5
	;;
-rgc) [[ $FAIL_RESTORE ]] && exit "$FAIL_RESTORE" ;;
*-lms*)
	printf '345\n[N/A]\n1965\n1965\n'
	: >"$SMI_LOG.sampling"
	exec sleep 60
	;;
esac
exit 0
`

// waitSampling is what a test's command starts with where the samples count.
const waitSampling = `while [ ! -e "$SMI_LOG.sampling" ]; do sleep 0.01; done; `

type result struct {
	status         int
	stdout, stderr string
	smi            []string // the calls of nvidia-smi, in order
}

// hang is after how long a script is killed that should have ended.
const hang = 5 * time.Minute

// A script is one run of throughput_test.sh to be.
type script struct {
	noSMI  bool
	env    []string
	args   []string
	during func(t *testing.T, group int, dir string) // called while it runs
}

func (s script) run(t *testing.T) result {
	t.Helper()
	dir, bash := sandbox(t, "awk", "bash", "cat", "env", "grep", "mktemp", "rm", "sed", "sh", "sleep", "sort", "tail", "touch", "true")
	bin := filepath.Join(dir, "bin")
	if !s.noSMI {
		fake(t, bin, "nvidia-smi", fakeSMI)
	}
	log := filepath.Join(dir, "smi.log")
	cmd := exec.Command(bash, append([]string{"throughput_test.sh"}, s.args...)...)
	cmd.Env = append([]string{"PATH=" + bin, "SMI_LOG=" + log, "TMPDIR=" + dir, "DIR=" + dir}, s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A file, not a pipe: Wait would sit out whatever outlives the script.
	stdout, stderr := create(t, dir, "stdout"), create(t, dir, "stderr")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(hang, func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	defer timer.Stop()
	if s.during != nil {
		s.during(t, cmd.Process.Pid, dir)
	}
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	r := result{
		status: cmd.ProcessState.ExitCode(),
		stdout: read(t, stdout.Name()),
		stderr: read(t, stderr.Name()),
	}
	if !s.noSMI {
		if _, err := os.Stat(log); err == nil {
			r.smi = strings.Split(strings.TrimSpace(read(t, log)), "\n")
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp.*")); len(left) > 0 {
		t.Errorf("it left %v behind", left)
	}
	return r
}

// sandbox returns a folder whose folder bin holds links to these commands and
// nothing else, and where bash is.
func sandbox(t *testing.T, commands ...string) (dir, bash string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	if exec.Command(bash, "-c", "(( BASH_VERSINFO[0] >= 5 ))").Run() != nil {
		t.Skip("bash is older than 5")
	}
	dir, err = filepath.EvalSymlinks(t.TempDir()) // install_cuda.sh says where it is without links
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range commands {
		path, err := exec.LookPath(command)
		if err != nil {
			t.Skipf("no %s here", command)
		}
		if err := os.Symlink(path, filepath.Join(bin, command)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, bash
}

// fake puts a command of the test's own into bin.
func fake(t *testing.T, bin, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, dir, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// awaitFile returns when the file is there: the command has come that far.
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

// locksAndRestores checks that the clock of this GPU, and of no other, was
// locked once and then given back once, and that it is this one that was sampled.
func (r result) locksAndRestores(t *testing.T, gpu string, mhz int) {
	t.Helper()
	lock := fmt.Sprintf("-i %s -lgc %d,%d", gpu, mhz, mhz)
	restore := fmt.Sprintf("-i %s -rgc", gpu)
	changes := slices.DeleteFunc(slices.Clone(r.smi), func(call string) bool {
		return strings.Contains(call, "--query")
	})
	if want := []string{lock, restore}; !slices.Equal(changes, want) {
		t.Errorf("calls that change the clock: %q, want %q", changes, want)
	}
	for _, call := range r.smi {
		if strings.Contains(call, "-lms") && !strings.HasPrefix(call, "-i "+gpu+" ") {
			t.Errorf("sampled another GPU: %q", call)
		}
	}
}

func (r result) wants(t *testing.T, status int, line string) {
	t.Helper()
	if r.status != status {
		t.Errorf("exit status %d, want %d; stderr: %s", r.status, status, r.stderr)
	}
	if !regexp.MustCompile(`(?m)^throughput_test\.sh: \d+\.\d{3} s, ` + line + `$`).MatchString(r.stdout) {
		t.Errorf("stdout %q has no result like %q", r.stdout, line)
	}
}

const seen = `clocks seen: min 345, median 1965, max 1965 MHz in 3 samples`

func TestThroughput(t *testing.T) {
	t.Run("locks below the boost, samples, restores", func(t *testing.T) {
		r := script{args: []string{"sh", "-c", waitSampling + "echo out; echo $CUDA_DEVICE_ORDER"}}.run(t)
		r.wants(t, 0, `GPU 0 locked at 1965 MHz, `+seen)
		r.locksAndRestores(t, "0", 1965)
		if !strings.HasPrefix(r.stdout, "out\nPCI_BUS_ID\n") {
			t.Errorf("the command's output: %q", r.stdout)
		}
		sample := slices.IndexFunc(r.smi, func(s string) bool { return strings.Contains(s, "-lms") })
		if n := len(r.smi); sample != n-2 || !strings.Contains(r.smi[n-3], "-lgc") {
			t.Errorf("lock, sample, restore in another order: %q", r.smi)
		}
	})
	for name, s := range map[string]script{
		"option":           {args: []string{"--clock", "1200"}},
		"option with =":    {args: []string{"--clock=1200"}},
		"environment":      {env: []string{"GPU_CLOCK_MHZ=1200"}},
		"option overrules": {env: []string{"GPU_CLOCK_MHZ=900"}, args: []string{"--clock", "1200"}},
		"double dash":      {args: []string{"--clock", "1200", "--"}},
	} {
		t.Run("clock by "+name, func(t *testing.T) {
			s.args = append(s.args, "sh", "-c", waitSampling)
			r := s.run(t)
			r.wants(t, 0, `GPU 0 locked at 1200 MHz, `+seen)
			r.locksAndRestores(t, "0", 1200)
		})
	}
	for visible, gpu := range map[string]string{
		"1":                     "1",
		"1,0":                   "1",
		"GPU-bbbb-2":            "GPU-bbbb-2",
		"GPU-bb":                "GPU-bbbb-2",
		"GPU-bbbb-2,GPU-aaaa-1": "GPU-bbbb-2",
	} {
		t.Run("CUDA_VISIBLE_DEVICES="+visible, func(t *testing.T) {
			r := script{env: []string{"CUDA_VISIBLE_DEVICES=" + visible}, args: []string{"sh", "-c", waitSampling}}.run(t)
			r.wants(t, 0, `GPU `+gpu+` locked at 1965 MHz, `+seen)
			r.locksAndRestores(t, gpu, 1965)
		})
	}
	for visible, reason := range map[string]string{
		"":         "CUDA_VISIBLE_DEVICES hides every GPU",
		"-1":       "CUDA_VISIBLE_DEVICES hides every GPU",
		"MIG-1":    "a MIG slice has no clock of its own",
		"7":        "nvidia-smi knows no GPU 7",
		"GPU-cc":   "nvidia-smi knows no GPU GPU-cc",
		"nonsense": "nvidia-smi knows no GPU nonsense",
	} {
		t.Run("CUDA_VISIBLE_DEVICES="+visible, func(t *testing.T) {
			r := script{env: []string{"CUDA_VISIBLE_DEVICES=" + visible}, args: []string{"true"}}.run(t)
			r.wants(t, 0, `unlocked \(`+reason+`\), no clocks seen`)
			if calls := strings.Join(r.smi, "\n"); strings.Contains(calls, "gc") && !strings.Contains(calls, "-i "+visible+" ") {
				t.Errorf("it touched a GPU: %q", r.smi)
			}
		})
	}
	t.Run("failing command", func(t *testing.T) {
		r := script{args: []string{"sh", "-c", waitSampling + "exit 42"}}.run(t)
		r.wants(t, 42, `GPU 0 locked at 1965 MHz, `+seen)
		r.locksAndRestores(t, "0", 1965)
	})
	t.Run("no permission", func(t *testing.T) {
		r := script{env: []string{"FAIL_LOCK=4"}, args: []string{"sh", "-c", waitSampling + "exit 3"}}.run(t)
		r.wants(t, 3, `unlocked \(The current user does not have permission to change clocks\.\), `+seen)
		if slices.Contains(r.smi, "-i 0 -rgc") {
			t.Errorf("it restored a clock that it had not locked: %q", r.smi)
		}
		if !strings.Contains(r.stderr, "running unlocked") {
			t.Errorf("it does not say at the start that it runs unlocked: %q", r.stderr)
		}
	})
	t.Run("clock cannot be locked", func(t *testing.T) {
		script{env: []string{"UNSUPPORTED=1"}, args: []string{"sh", "-c", waitSampling}}.run(t).wants(t, 0, `unlocked \(Setting locked GPU clocks is not supported for GPU 0\.\), `+seen)
	})
	t.Run("no nvidia-smi", func(t *testing.T) {
		r := script{noSMI: true, args: []string{"sh", "-c", "exit 5"}}.run(t)
		r.wants(t, 5, `unlocked \(nvidia-smi is not installed\), no clocks seen`)
	})
	t.Run("restore fails", func(t *testing.T) {
		r := script{env: []string{"FAIL_RESTORE=9"}, args: []string{"sh", "-c", waitSampling}}.run(t)
		r.wants(t, 0, `GPU 0 locked at 1965 MHz, `+seen)
		if !strings.Contains(r.stderr, "THE CLOCK OF GPU 0 IS STILL LOCKED AT 1965 MHz: run 'nvidia-smi -i 0 -rgc'") {
			t.Errorf("it is not loud about it: %q", r.stderr)
		}
	})
	t.Run("wrong use", func(t *testing.T) {
		for _, args := range [][]string{{}, {"--clock"}, {"--clock", "fast", "true"}, {"--clock=", "--", "no-such-command"}, {"--what", "true"}} {
			r := script{args: args}.run(t)
			if r.status == 0 || len(r.smi) > 0 || strings.Count(r.stderr, "\n") > 0 || r.stderr == "" {
				t.Errorf("%q: status %d, nvidia-smi called %q, stderr %q", args, r.status, r.smi, r.stderr)
			}
		}
		if r := (script{args: []string{"--help"}}).run(t); r.status != 0 || !strings.HasPrefix(r.stdout, "usage: ") || len(r.smi) > 0 {
			t.Errorf("--help: %+v", r)
		}
	})
}

// The command ends as a good trainer does: it notes the signal, takes its time,
// and exits with a status of its own.
func TestThroughputSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%v, to the group: %v", sig, whole), func(t *testing.T) {
				if signal.Ignored(sig) {
					t.Skip("ignored since the test began, as under nohup, and so by all that it starts")
				}
				r := script{
					args: []string{"bash", "-c", `
						for s in INT TERM HUP QUIT; do trap "echo $s >>$DIR/signals; n=1" $s; done
						` + waitSampling + `
						touch "$DIR/ready"
						until [[ $n ]]; do sleep 0.02; done
						sleep 0.3; exit 130`},
					during: func(t *testing.T, pid int, dir string) {
						awaitFile(t, filepath.Join(dir, "ready"))
						if whole {
							pid = -pid
						}
						if err := syscall.Kill(pid, sig); err != nil {
							t.Fatal(err)
						}
						awaitFile(t, filepath.Join(dir, "signals"))
						time.Sleep(50 * time.Millisecond)
						got := strings.Fields(read(t, filepath.Join(dir, "signals")))
						if want := map[syscall.Signal]string{
							syscall.SIGINT: "INT", syscall.SIGTERM: "TERM", syscall.SIGHUP: "HUP", syscall.SIGQUIT: "QUIT",
						}[sig]; !slices.Equal(got, []string{want}) {
							t.Errorf("the command heard %v, want one %s", got, want)
						}
					},
				}.run(t)
				r.wants(t, 130, `GPU 0 locked at 1965 MHz, `+seen)
				r.locksAndRestores(t, "0", 1965)
			})
		}
	}
	t.Run("a command that dies of it", func(t *testing.T) {
		r := script{
			args: []string{"sh", "-c", waitSampling + `touch "$DIR/ready"; exec sleep 60`},
			during: func(t *testing.T, pid int, dir string) {
				awaitFile(t, filepath.Join(dir, "ready"))
				if err := syscall.Kill(-pid, syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			},
		}.run(t)
		r.wants(t, 130, `GPU 0 locked at 1965 MHz, `+seen)
		r.locksAndRestores(t, "0", 1965)
	})
	t.Run("before the command starts", func(t *testing.T) {
		r := script{
			env:  []string{"SLOW_LOCK=1"},
			args: []string{"touch", "started"},
			during: func(t *testing.T, pid int, dir string) {
				awaitFile(t, filepath.Join(dir, "smi.log.locking"))
				if err := syscall.Kill(-pid, syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			},
		}.run(t)
		if r.status != 130 || r.stdout != "" {
			t.Errorf("status %d, stdout %q", r.status, r.stdout)
		}
		r.locksAndRestores(t, "0", 1965)
		if _, err := os.Stat("started"); err == nil {
			t.Error("the command started")
			os.Remove("started")
		}
	})
}
