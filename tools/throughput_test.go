//go:build linux

package tools

import (
	"bytes"
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

// fakeSMI stands in for nvidia-smi on a machine with two GPUs. It appends its arguments to
// $SMI_LOG. FAIL_LOCK and FAIL_RESTORE make those calls fail with the given status, UNSUPPORTED
// makes the lock a warning, SLOW_LOCK makes it take half a second. It creates $SMI_LOG.locking
// and $SMI_LOG.sampling when it starts to lock and to sample.
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

// sampled is the start of a command that waits for the first samples.
const sampled = `while [ ! -e "$SMI_LOG.sampling" ]; do sleep 0.01; done; `

type result struct {
	status         int
	stdout, stderr string
	smi            []string // the calls of nvidia-smi, in order
}

// throughput runs throughput_test.sh, and calls during with its process while it runs.
func throughput(t *testing.T, env, args []string, during func(pid int, dir string)) (r result) {
	t.Helper()
	dir, bash := sandbox(t, "awk", "bash", "cat", "env", "grep", "mktemp", "rm", "sed", "sh", "sleep", "sort", "tail", "touch", "true")
	bin, log := filepath.Join(dir, "bin"), filepath.Join(dir, "smi.log")
	if !slices.Contains(env, "NO_SMI=1") {
		fake(t, bin, "nvidia-smi", fakeSMI)
	}
	cmd := exec.CommandContext(t.Context(), bash, append([]string{"throughput_test.sh"}, args...)...)
	cmd.Env = append([]string{"PATH=" + bin, "SMI_LOG=" + log, "TMPDIR=" + dir, "DIR=" + dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(hang, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer timer.Stop()
	if during != nil {
		during(cmd.Process.Pid, dir)
	}
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	r = result{status: cmd.ProcessState.ExitCode(), stdout: strings.TrimSpace(stdout.String()), stderr: strings.TrimSpace(stderr.String())}
	if _, err := os.Stat(log); err == nil {
		r.smi = strings.Split(read(t, log), "\n")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "tmp.*")); len(left) > 0 {
		t.Errorf("it left %v behind", left)
	}
	return r
}

// locked checks that the script locked the clock of this GPU once, then restored it once,
// and touched and sampled no other GPU.
func (r result) locked(t *testing.T, gpu string, mhz int) {
	t.Helper()
	changes := slices.DeleteFunc(slices.Clone(r.smi), func(call string) bool { return strings.Contains(call, "--query") })
	if want := []string{fmt.Sprintf("-i %s -lgc %d,%d", gpu, mhz, mhz), fmt.Sprintf("-i %s -rgc", gpu)}; !slices.Equal(changes, want) {
		t.Errorf("calls that change the clock: %q, want %q", changes, want)
	}
	for _, call := range r.smi {
		if strings.Contains(call, "-lms") && !strings.HasPrefix(call, "-i "+gpu+" ") {
			t.Errorf("it sampled another GPU: %q", call)
		}
	}
}

func (r result) wants(t *testing.T, status int, line string) {
	t.Helper()
	if r.status != status {
		t.Errorf("exit status %d, want %d; stderr: %s", r.status, status, r.stderr)
	}
	if !regexp.MustCompile(`(?m)^throughput_test\.sh: \d+\.\d{3} s, ` + line + `$`).MatchString(r.stdout) {
		t.Errorf("stdout %q has no line %q", r.stdout, line)
	}
}

const seen = `clocks seen: min 345, median 1965, max 1965 MHz in 3 samples`

func TestThroughput(t *testing.T) {
	for _, c := range []struct {
		name     string
		env      []string
		options  []string
		exit     int    // of the command
		gpu      string // that is locked; empty: none
		mhz      int
		unlocked string // why no GPU is locked
		stderr   string
		noSample bool
	}{
		{name: "locks below the boost, samples, restores", gpu: "0", mhz: 1965},
		{name: "the command fails", exit: 42, gpu: "0", mhz: 1965},
		{name: "--clock", env: []string{"GPU_CLOCK_MHZ=900"}, options: []string{"--clock", "1200"}, gpu: "0", mhz: 1200},
		{name: "--clock=", options: []string{"--clock=1200", "--"}, gpu: "0", mhz: 1200},
		{name: "GPU_CLOCK_MHZ", env: []string{"GPU_CLOCK_MHZ=1200"}, gpu: "0", mhz: 1200},
		{name: "the second GPU", env: []string{"CUDA_VISIBLE_DEVICES=1,0"}, gpu: "1", mhz: 1965},
		{name: "the start of a UUID", env: []string{"CUDA_VISIBLE_DEVICES=GPU-bb,GPU-aaaa-1"}, gpu: "GPU-bbbb-2", mhz: 1965},
		{name: "hidden", env: []string{"CUDA_VISIBLE_DEVICES="}, unlocked: "CUDA_VISIBLE_DEVICES hides every GPU", noSample: true},
		{name: "hidden by -1", env: []string{"CUDA_VISIBLE_DEVICES=-1"}, unlocked: "CUDA_VISIBLE_DEVICES hides every GPU", noSample: true},
		{name: "a slice", env: []string{"CUDA_VISIBLE_DEVICES=MIG-1"}, unlocked: "a MIG slice has no separate clock", noSample: true},
		{name: "no such GPU", env: []string{"CUDA_VISIBLE_DEVICES=7"}, unlocked: "nvidia-smi knows no GPU 7", noSample: true},
		{name: "no such UUID", env: []string{"CUDA_VISIBLE_DEVICES=GPU-cc"}, unlocked: "nvidia-smi knows no GPU GPU-cc", noSample: true},
		{name: "no nvidia-smi", env: []string{"NO_SMI=1"}, exit: 5, unlocked: "nvidia-smi is not installed", noSample: true},
		{name: "no permission", env: []string{"FAIL_LOCK=4"}, exit: 3, unlocked: `The current user does not have permission to change clocks\.`, stderr: "running unlocked"},
		{name: "the GPU has no lock", env: []string{"UNSUPPORTED=1"}, unlocked: `Setting locked GPU clocks is not supported for GPU 0\.`},
		{name: "restore fails", env: []string{"FAIL_RESTORE=9"}, gpu: "0", mhz: 1965, stderr: "THE CLOCK OF GPU 0 IS STILL LOCKED AT 1965 MHz: run 'nvidia-smi -i 0 -rgc'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wait, clocks := sampled, seen
			if c.noSample {
				wait, clocks = "", "no clocks seen"
			}
			r := throughput(t, c.env, append(c.options, "sh", "-c", wait+fmt.Sprintf("echo $CUDA_DEVICE_ORDER; exit %d", c.exit)), nil)
			state := fmt.Sprintf("GPU %s locked at %d MHz", c.gpu, c.mhz)
			if c.gpu == "" {
				state = `unlocked \(` + c.unlocked + `\)`
			}
			r.wants(t, c.exit, state+", "+clocks)
			if !strings.HasPrefix(r.stdout, "PCI_BUS_ID\n") || !strings.Contains(r.stderr, c.stderr) {
				t.Errorf("stdout %q, stderr %q, want %q", r.stdout, r.stderr, c.stderr)
			}
			if c.gpu != "" {
				r.locked(t, c.gpu, c.mhz)
			} else if slices.ContainsFunc(r.smi, func(call string) bool { return strings.HasSuffix(call, "-rgc") }) {
				t.Errorf("it restored a clock that it had not locked: %q", r.smi)
			}
		})
	}
	for _, args := range [][]string{{}, {"--clock"}, {"--clock", "fast", "true"}, {"--clock=", "--", "no-such-command"}, {"--what", "true"}} {
		if r := throughput(t, nil, args, nil); r.status == 0 || len(r.smi) > 0 || strings.Contains(r.stderr, "\n") || r.stderr == "" {
			t.Errorf("%q: status %d, nvidia-smi called %q, stderr %q", args, r.status, r.smi, r.stderr)
		}
	}
}

// TestThroughputSignals sends a signal to the script, or to its group as a terminal does. The
// command must receive it once, may take its time to end, and decides the exit status.
func TestThroughputSignals(t *testing.T) {
	const careful = `for s in INT TERM; do trap "echo $s >>$DIR/signals; n=1" $s; done
		` + sampled + `touch "$DIR/ready"
		until [[ $n ]]; do sleep 0.02; done
		sleep 0.3; exit 130`
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		group  bool
		env    []string
		args   []string
		ready  string // the file after which the signal is sent
		heard  string
		line   string
	}{
		{"SIGINT to the group", syscall.SIGINT, true, nil, []string{"bash", "-c", careful}, "ready", "INT", `GPU 0 locked at 1965 MHz, ` + seen},
		{"SIGTERM to the script", syscall.SIGTERM, false, nil, []string{"bash", "-c", careful}, "ready", "TERM", `GPU 0 locked at 1965 MHz, ` + seen},
		{"a command that dies of it", syscall.SIGINT, true, nil, []string{"sh", "-c", sampled + `touch "$DIR/ready"; exec sleep 60`}, "ready", "", `GPU 0 locked at 1965 MHz, ` + seen},
		{"before the command starts", syscall.SIGINT, true, []string{"SLOW_LOCK=1"}, []string{"sh", "-c", `touch "$DIR/signals"`}, "smi.log.locking", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if signal.Ignored(c.signal) {
				t.Skip("ignored since the test began, as under nohup")
			}
			r := throughput(t, c.env, c.args, func(pid int, dir string) {
				awaitFile(t, filepath.Join(dir, c.ready))
				if c.group {
					pid = -pid
				}
				if err := syscall.Kill(pid, c.signal); err != nil {
					t.Fatal(err)
				}
				if c.heard != "" {
					awaitFile(t, filepath.Join(dir, "signals"))
					time.Sleep(50 * time.Millisecond)
					if got := read(t, filepath.Join(dir, "signals")); got != c.heard {
						t.Errorf("the command received %q, want one %s", got, c.heard)
					}
				}
			})
			if c.line == "" {
				if r.status != 130 || r.stdout != "" {
					t.Errorf("status %d, stdout %q", r.status, r.stdout)
				}
			} else {
				r.wants(t, 130, c.line)
			}
			r.locked(t, "0", 1965)
		})
	}
}
