package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/kernels/collective"
	"mlpool/kernels/collective/launch"
)

// ended is how a rank ended.
type ended struct {
	code           int
	stdout, stderr string
}

// freePort returns an unused port of this host.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	must.OK(t, errors.Join(err, l.Close()))
	return port
}

// trainRanks runs the command on size ranks, on the CPU and in this process. args returns the
// arguments of a rank; nil: it does not come. wrap replaces its part in the collectives, if it is
// not nil.
func trainRanks(t *testing.T, ctx context.Context, size int, args func(rank int) []string, wrap func(*collective.Local) collective.Collective) []ended {
	t.Helper()
	return trainRanksAt(t, ctx, freePort(t), size, args, wrap)
}

// trainRanksAt is trainRanks with rank 0 at a port.
func trainRanksAt(t *testing.T, ctx context.Context, port string, size int, args func(rank int) []string, wrap func(*collective.Local) collective.Collective) []ended {
	t.Helper()
	group := collective.NewLocal(size)
	out := make([]ended, size)
	var all sync.WaitGroup
	for rank := range size {
		list := args(rank)
		if list == nil {
			continue // it does not come
		}
		vars := mpirun(rank, size, port)
		r := localRank(func(name string) string { return vars[name] }, group[rank], wrap)
		all.Go(func() {
			var stdout, stderr bytes.Buffer
			code := runCommand(ctx, r, list, &stdout, &stderr)
			out[rank] = ended{code, stdout.String(), stderr.String()}
		})
	}
	all.Wait()
	return out
}

// mpirun returns the environment that mpirun gives a rank.
func mpirun(rank, size int, port string) map[string]string {
	return map[string]string{
		"OMPI_COMM_WORLD_RANK": fmt.Sprint(rank), "OMPI_COMM_WORLD_LOCAL_RANK": fmt.Sprint(rank),
		"OMPI_COMM_WORLD_SIZE": fmt.Sprint(size), "OMPI_COMM_WORLD_LOCAL_SIZE": fmt.Sprint(size), "MASTER_PORT": port,
		launch.TimeoutEnv: patience.String(), launch.SecretEnv: secret,
	}
}

// secret is shared by the ranks.
var secret = "what ranks know and others do not"

// patience is how long ranks wait for each other.
var patience = 5 * time.Minute

// impatient shortens patience for a test in which a rank does not come or falls silent.
func impatient(t *testing.T) {
	was := patience
	patience = 4 * time.Second
	t.Cleanup(func() { patience = was })
}

// localRank returns a rank that trains on the CPU.
func localRank(env func(string) string, l *collective.Local, wrap func(*collective.Local) collective.Collective) *ranks.Ranks {
	r := &ranks.Ranks{Env: env, Silence: patience, Transport: "this process"}
	r.Connect = func(_ context.Context, w *launch.World) (collective.Collective, error) {
		w.OnEnd(l.Abort)
		if wrap == nil {
			return l, nil
		}
		return wrap(l), nil
	}
	return r
}

// quiet fails the test if a rank but rank 0 printed something.
func quiet(t *testing.T, all []ended) {
	t.Helper()
	for rank, e := range all[1:] {
		if e.stdout != "" || e.stderr != "" {
			t.Errorf("rank %d says %q and %q", rank+1, e.stdout, e.stderr)
		}
	}
}

// latestLosses returns the latest run and its losses.
func latestLosses(t *testing.T, logDir string) (rundir.Run, []float32) {
	t.Helper()
	run, err := rundir.Open(traintest.Latest(t, logDir))
	must.OK(t, err)
	losses, err := run.Losses()
	must.OK(t, err)
	return run, losses
}

// TestRanks compares the losses of several ranks with those of one.
func TestRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	for _, executor := range []string{"eager", "graph"} {
		path, logDir := traintest.WriteConfig(t, "cpu", fmt.Sprintf("executor = %q", executor))
		losses := func(size int) (values []float64) {
			t.Helper()
			args := []string{"-set", fmt.Sprint("train.bsz=", 24/size), path}
			all := trainRanks(t, context.Background(), size, func(int) []string { return args }, nil)
			quiet(t, all)
			for rank, e := range all {
				if e.code != 0 || e.stderr != "" {
					t.Fatalf("rank %d of %d: exit code %d, %s", rank, size, e.code, e.stderr)
				}
			}
			if want := fmt.Sprintf("batches of %d on each of %d ranks, 24 in all, over this process", 24/size, size); size > 1 && (!strings.Contains(flat(all[0].stdout), want) || !strings.Contains(all[0].stdout, " hidden\n")) {
				t.Errorf("rank 0 says %q, want %q", all[0].stdout, want)
			}
			run, got := latestLosses(t, logDir)
			records, err := run.Records()
			if err != nil || len(records) != 3 || (records[2].AllReduceUS > 0) != (size > 1) || size > 1 && run.Facts.Ranks != size || run.Facts.Status != rundir.Done {
				t.Errorf("%d records of %+v, %v", len(records), run.Facts, err)
			}
			for _, l := range got {
				values = append(values, float64(l))
			}
			return append(values, float64(records[2].ValLoss), records[2].ValAcc)
		}
		want := losses(1)
		for _, size := range []int{2, 3, 4, 8} {
			got := losses(size)
			for i := range want {
				if len(got) != len(want) || math.Abs(got[i]-want[i]) > 1e-5 {
					t.Fatalf("value %d of %d on %d ranks is %v, on one %v", i, len(got), size, got, want)
				}
			}
		}
	}
}

// TestRanksWithoutTraining runs commands that only rank 0 answers.
func TestRanksWithoutTraining(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	for _, args := range [][]string{{"-version"}, {"-list"}, {"-h"}, {"-check", path}} {
		all := trainRanks(t, context.Background(), 2, func(int) []string { return args }, nil)
		quiet(t, all)
		if all[0].code != 0 || all[0].stdout == "" || all[1].code != 0 {
			t.Errorf("%v: %+v", args, all)
		}
	}
}

// TestRanksApart fails before the ranks meet: each reports its error.
func TestRanksApart(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	for _, c := range []struct {
		name string
		vars map[string]string
		args []string
		code int
		want string
	}{
		{"half a launch", map[string]string{"RANK": "0", "WORLD_SIZE": "2"}, []string{path}, exit.Failure, "train: half a launch: RANK, WORLD_SIZE without "},
		{"no port", mpirun(1, 2, "abc"), []string{path}, exit.Failure, "train: rank 1: MASTER_PORT=abc: want a port"},
		{"unknown flag", mpirun(1, 2, "9"), []string{"-bogus", path}, exit.Usage, "train: rank 1: unknown flag -bogus"},
		{"no config", mpirun(0, 2, "9"), nil, exit.Usage, "train: rank 0: which config?"},
		{"-compare", mpirun(1, 2, "9"), []string{"-compare", path}, exit.Failure, "train: rank 1: -compare is for one GPU, and this is one of 2 ranks: leave it out"},
		{"-report", mpirun(0, 2, "9"), []string{"-report", "x.html", path}, exit.Failure, "train: rank 0: -report is for one GPU"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &ranks.Ranks{Env: func(name string) string { return c.vars[name] }}
			var stdout, stderr bytes.Buffer
			code := runCommand(context.Background(), r, c.args, &stdout, &stderr)
			if code != c.code || stdout.Len() > 0 || !strings.HasPrefix(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("exit code %d, %q, want %d, one line %q", code, &stderr, c.code, c.want)
			}
		})
	}
}

// TestStrayVariables trains alone with variables of a launcher in the environment: it warns in one
// line.
func TestStrayVariables(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	torchrun := map[string]string{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "9"}
	for _, c := range []struct {
		vars map[string]string
		want string
	}{
		{map[string]string{"RANK": "0"}, "train: training alone: half a launch: RANK without WORLD_SIZE, LOCAL_RANK"},
		{map[string]string{"WORLD_SIZE": "2"}, "train: training alone: half a launch: WORLD_SIZE without "},
		{map[string]string{"SLURM_STEP_NUM_TASKS": "2"}, "train: training alone: half a launch: SLURM_STEP_NUM_TASKS without "},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2"}, "train: training alone: half a launch: RANK, WORLD_SIZE without LOCAL_RANK"},
		{map[string]string{"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "train: training alone: the ranks are on several hosts"},
		{torchrun, `train: training alone: train.device is "cpu", and NCCL moves data between GPUs: this was started as rank 1 of 2`},
	} {
		r := ranks.Processes()
		r.Env = func(name string) string { return c.vars[name] }
		r.Ready = func(launch.Process) error { return errors.New("it takes a GPU") }
		var stdout, stderr bytes.Buffer
		code := runCommand(context.Background(), r, []string{"-set", "train.num_epochs=1", path}, &stdout, &stderr)
		if code != 0 || !strings.HasPrefix(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") != 1 || !strings.Contains(stdout.String(), "\nepoch 1/1 ") {
			t.Errorf("%v: exit code %d, %q and %q, want one line %q", c.vars, code, &stdout, &stderr, c.want)
		}
		if run, _ := latestLosses(t, logDir); run.Facts.Status != "done" {
			t.Errorf("%v: the run is %s", c.vars, run.Facts.Status)
		}
	}
	r := ranks.Processes()
	r.Env = func(name string) string { return map[string]string{"RANK": "0"}[name] }
	var stdout, stderr bytes.Buffer
	code := runCommand(context.Background(), r, []string{"-set", "train.device=auto", path}, &stdout, &stderr)
	if code != 0 || !strings.HasPrefix(stderr.String(), "train: training alone: half a launch: ") {
		t.Errorf("one variable, whatever the device: exit code %d, %q and %q", code, &stdout, &stderr)
	}
}

// TestRanksWithoutSecret has no folder for the file of a secret.
func TestRanksWithoutSecret(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	t.Setenv("XDG_CACHE_HOME", path)
	was := secret
	secret = ""
	t.Cleanup(func() { secret = was })
	all := trainRanks(t, context.Background(), 2, func(int) []string { return []string{path} }, nil)
	quiet(t, all)
	if want := "train: the ranks have no secret ("; all[0].code != 0 || all[1].code != 0 || !strings.HasPrefix(all[0].stderr, want) || strings.Count(all[0].stderr, "\n") != 1 {
		t.Errorf("%+v, want one line %q", all, want)
	}
}
