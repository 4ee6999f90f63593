package launch

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"mlpool/internal/must"
)

// asRank in the environment makes the test binary a rank. Its value is what happens once the ranks
// have met.
const asRank = "LAUNCH_TEST_AS_RANK"

const (
	oneDies    = "rank 1 dies"
	oneStops   = "rank 1 is stopped"
	allAreLate = "all are stopped"
	sayWhere   = "each prints the address of rank 0"
)

// silence is how long the processes wait for each other: a loaded machine takes a second to
// start one.
const silence = 5 * time.Second

func TestMain(m *testing.M) {
	what := os.Getenv(asRank)
	if what == "" {
		os.Exit(m.Run())
	}
	if err := rankProcess(what); err != nil {
		if !reported(err) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(0)
}

func rankProcess(what string) error {
	p, err := FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	if what == sayWhere {
		fmt.Println(p.Job, p.Address)
		return nil
	}
	w, err := Rendezvous(context.Background(), p, silence)
	if err != nil {
		return err
	}
	if warning := w.Warning(); warning != "" { // they have the user's secret
		fmt.Fprintln(os.Stderr, warning)
	}
	if what == allAreLate || what == oneStops && p.Rank == 1 {
		err = stop()
	}
	switch {
	case err != nil:
	case what == oneDies && p.Rank == 1:
		os.Exit(9)
	case what == allAreLate:
		err = w.Agree("end", nil, "")
	default:
		<-w.Ended()
		err = w.Err()
	}
	return w.Leave(err)
}

// stop stops this process until SIGCONT. Its thread may run on for a while after SIGSTOP, until
// another thread takes the signal.
func stop() error {
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, syscall.SIGCONT)
	defer signal.Stop(goOn)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-goOn
	return nil
}

// isStopped reports whether a process is stopped, by its state in /proc.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must.OK(t, err)
	_, state, _ := bytes.Cut(text, []byte(") "))
	return bytes.HasPrefix(state, []byte("T"))
}

// TestProcesses starts three ranks as mpirun would. Stopped ranks continue later: when the others
// have ended, or all together, after more than the time that they would wait for one.
func TestProcesses(t *testing.T) {
	host, err := os.Hostname()
	must.OK(t, err)
	for _, c := range []struct {
		what, want string // of process PID
	}{
		{oneDies, "rank 1 is gone: process PID on " + host + " ended without a word, or its host or network did\n"},
		{oneStops, "rank 1 is silent: nothing came from process PID on " + host + " for 5s: see whether it is stopped there (state T in ps), or its host or network is down\n"},
		{allAreLate, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			_, port, err := net.SplitHostPort(freeAddress(t))
			must.OK(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // kills what is stopped
			defer cancel()
			cache := t.TempDir() // none has a secret: the first makes one
			var ranks [3]*exec.Cmd
			var stderr [3]strings.Builder
			for rank := range ranks {
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Env = append(os.Environ(), asRank+"="+c.what, "XDG_CACHE_HOME="+cache, SecretEnv+"=", "OMPI_COMM_WORLD_SIZE=3", "OMPI_COMM_WORLD_LOCAL_SIZE=3", "MASTER_PORT="+port,
					fmt.Sprint("OMPI_COMM_WORLD_RANK=", rank), fmt.Sprint("OMPI_COMM_WORLD_LOCAL_RANK=", rank))
				cmd.Stderr = &stderr[rank]
				must.OK(t, cmd.Start())
				ranks[rank] = cmd
			}
			wait := func(rank int) {
				if err := ranks[rank].Wait(); (err == nil) != (c.want == "") {
					t.Errorf("rank %d ends with %v", rank, err)
				}
			}
			goOn := func(rank int) {
				must.OK(t, ranks[rank].Process.Signal(syscall.SIGCONT))
			}
			if c.what == allAreLate {
				for _, cmd := range ranks {
					for !isStopped(t, cmd.Process.Pid) {
						if ctx.Err() != nil {
							t.Fatal("a rank does not stop")
						}
						time.Sleep(10 * time.Millisecond)
					}
				}
				time.Sleep(silence + time.Second)
				for rank := range ranks {
					goOn(rank)
				}
			}
			wait(0)
			wait(2)
			if c.what == oneStops {
				goOn(1)
			}
			wait(1)
			want := strings.ReplaceAll(c.want, "PID", fmt.Sprint(ranks[1].Process.Pid))
			if stderr[0].String() != want || stderr[1].String() != "" || stderr[2].String() != "" {
				t.Errorf("the ranks say %q, %q and %q, want %q of rank 0 alone", &stderr[0], &stderr[1], &stderr[2], want)
			}
		})
	}
}

// TestScripts starts each rank by a script, which is its parent, in mpirun's session or in another
// one. All ranks get the same job and port.
func TestScripts(t *testing.T) {
	const noScript, script = `exec "$0"`, `"$0"; exit $?`
	for _, c := range []struct {
		script  string
		session bool
	}{{noScript, false}, {noScript, true}, {script, false}, {script, true}} {
		t.Run(fmt.Sprintf("%s session=%v", c.script, c.session), func(t *testing.T) {
			var said [2]string
			for rank := range said {
				cmd := exec.Command("sh", "-c", c.script, os.Args[0])
				cmd.Env = append(os.Environ(), asRank+"="+sayWhere, "PMI_SIZE=2", "MPI_LOCALNRANKS=2", fmt.Sprint("PMI_RANK=", rank), fmt.Sprint("MPI_LOCALRANKID=", rank))
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: c.session}
				cmd.Stderr = os.Stderr
				out, err := cmd.Output()
				must.OK(t, err)
				said[rank] = string(out)
			}
			if said[0] != said[1] || !strings.Contains(said[0], " 127.0.0.1:") {
				t.Errorf("rank 0 says %q, and rank 1 %q", said[0], said[1])
			}
		})
	}
}
