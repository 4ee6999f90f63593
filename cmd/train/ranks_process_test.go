//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
	"mlpool/kernels/collective/launch"
	"mlpool/kernels/kerneltest"
)

// processRanks trains on emulated GPUs, each with a process.
type processRanks struct {
	t                  *testing.T
	path, logDir, port string
	started            func(rank int, p *os.Process) // nil: nobody wants to know
}

// newProcessRanks skips the test if GPUs are real: a machine may have too few. tools/ranks.sh trains on
// them.
func newProcessRanks(t *testing.T) *processRanks {
	t.Helper()
	if !kerneltest.Emulated() {
		t.Skip("needs emulated GPUs, of which there are as many as processes")
	}
	path, logDir := traintest.WriteConfig(t, "cuda", "")
	return &processRanks{t: t, path: path, logDir: logDir, port: freePort(t)}
}

// train runs the command on ranks, and returns what rank 0 said.
func (r *processRanks) train(ranks int, args ...string) (said string, err error) {
	r.t.Helper()
	var all sync.WaitGroup
	out, errs := make([]bytes.Buffer, ranks), make([]error, ranks)
	for rank := range ranks {
		cmd := exec.Command(os.Args[0], append(args, r.path)...)
		cmd.Env = append(os.Environ(), asTrain+"=1", backend.AllocatorEnv+"=", fmt.Sprint("RANK=", rank), fmt.Sprint("LOCAL_RANK=", rank),
			fmt.Sprint("WORLD_SIZE=", ranks), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+r.port, launch.SecretEnv+"="+secret)
		cmd.Stdout, cmd.Stderr = &out[rank], &out[rank]
		must.OK(r.t, cmd.Start())
		if r.started != nil {
			r.started(rank, cmd.Process)
		}
		all.Go(func() { errs[rank] = cmd.Wait() })
	}
	all.Wait()
	for rank := 1; rank < ranks; rank++ {
		if out[rank].Len() > 0 {
			r.t.Errorf("rank %d says %q", rank, &out[rank])
		}
	}
	return out[0].String(), errors.Join(errs...)
}

// losses trains on ranks and returns the losses.
func (r *processRanks) losses(ranks int, args ...string) []float32 {
	r.t.Helper()
	said, err := r.train(ranks, args...)
	if err != nil {
		r.t.Fatalf("%v: %v\n%s", args, err, said)
	}
	_, got := latestLosses(r.t, r.logDir)
	return got
}

func TestRankProcesses(t *testing.T) {
	r := newProcessRanks(t)
	eager := r.losses(2)
	if graph := r.losses(2, "-set", "train.executor=graph"); !slices.Equal(graph, eager) {
		t.Error("the losses of graphs differ from those of the eager executor")
	}
	near := func(what string, got []float32) {
		for i, loss := range got {
			if math.Abs(float64(loss-eager[i])) > 1e-4 {
				t.Fatalf("loss %d of two ranks is %v, %s %v", i, eager[i], what, loss)
			}
		}
	}
	near("of one", r.losses(1, "-set", "train.bsz=32"))
	inFP32, inBF16 := []string{"-set", "train.executor=graph"}, []string{"-set", "train.executor=graph", "-set", "train.precision=bf16"}
	rounded := r.losses(2, inBF16...)
	t.Setenv("EMULATOR_WITHOUT_PEERS", "1")
	for _, c := range []struct {
		args []string
		want []float32
	}{{inFP32, eager}, {inBF16, rounded}} {
		if got := r.losses(2, c.args...); !slices.Equal(got, c.want) {
			t.Errorf("%v: the losses of exchanges by NCCL differ from those between peers", c.args)
		}
	}
	t.Setenv("EMULATOR_WITHOUT_PEERS", "")
	t.Setenv("CUDA_VISIBLE_DEVICES", "3")
	if said, err := r.train(2); err == nil || !strings.Contains(said, "train: rank 0 and rank 1 are both on the GPU GPU-00000000-0000-0000-0000-000000000003: start one rank for each GPU") {
		t.Errorf("two ranks on one GPU: %v, %s", err, said)
	}
}

// TestWideRankProcesses trains a model of two buckets, whose updates ranks exchange by NCCL if GPUs do not reach each
// other's memory.
func TestWideRankProcesses(t *testing.T) {
	r := newProcessRanks(t)
	const ranks = 3
	dir := t.TempDir()
	for prefix, n := range map[string]uint32{"train": 18, "t10k": 2} { // an emulated GPU is slow
		traintest.WriteIDX(t, filepath.Join(dir, prefix+"-images-idx3-ubyte.gz"), []uint32{n, 4, 4}, bytes.Repeat([]byte{0, 30, 0, 200}, int(4*n)))
		traintest.WriteIDX(t, filepath.Join(dir, prefix+"-labels-idx1-ubyte.gz"), []uint32{n}, bytes.Repeat([]byte{1, 7}, int(n/2)))
	}
	args := []string{"-set", "data.data_dir=" + dir, "-set", "model.feat_dim=1300", "-set", "model.num_layers=3",
		"-set", "train.num_epochs=1", "-set", "train.executor=graph", "-set", "train.bsz=3"}
	exchanged := r.losses(ranks, args...)
	if exchanged[len(exchanged)-1] >= exchanged[0] {
		t.Errorf("the losses are %v: nothing is learnt", exchanged)
	}
	t.Setenv("EMULATOR_WITHOUT_PEERS", "1")
	if got := r.losses(ranks, args...); !slices.Equal(got, exchanged) {
		t.Errorf("the losses are %v, by NCCL %v", exchanged, got)
	}
}

// TestRankKilled kills rank 1 once there is a checkpoint.
func TestRankKilled(t *testing.T) {
	r := newProcessRanks(t)
	for _, executor := range []string{"eager", "graph"} {
		must.OK(t, os.RemoveAll(r.logDir))
		killed := make(chan time.Time, 1)
		r.started = func(rank int, p *os.Process) {
			if rank != 1 {
				return
			}
			go func() {
				weights := filepath.Join(r.logDir, rundir.Latest, rundir.WeightsFile)
				for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
					if _, err := os.Stat(weights); err == nil {
						break
					}
				}
				killed <- time.Now()
				if err := p.Kill(); err != nil {
					t.Error(err)
				}
			}()
		}
		said, err := r.train(2, "-set", "train.num_epochs=100000", "-set", "train.checkpoint_every=1", "-set", "train.executor="+executor)
		if took := time.Since(<-killed); err == nil || took > 20*time.Second || !strings.Contains(said, "\ntrain: rank 1 is gone") {
			t.Errorf("%s: rank 0 ends %v after the kill, with %v: %s", executor, took, err, said)
		}
		if saved, err := checkpoint.Load(filepath.Join(traintest.Latest(t, r.logDir), rundir.WeightsFile)); err != nil || saved.Epoch == 0 {
			t.Errorf("%s: the checkpoint is of epoch %d, %v", executor, saved.Epoch, err)
		}
	}
}

// asRank1 in the environment turns the test binary into rank 1 of 3, on the CPU.
const asRank1 = "MLPOOL_TEST_AS_RANK_1"

// TestAnotherProgram gives rank 1 a copy of the program with one byte more.
func TestAnotherProgram(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	text := must.Read(t, os.Args[0])
	other := filepath.Join(t.TempDir(), "other")
	must.OK(t, os.WriteFile(other, append(text, 0), 0o777))
	port := freePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, other, path)
	cmd.Env = append(os.Environ(), asRank1+"=1")
	for name, value := range mpirun(1, 3, port) {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	must.OK(t, cmd.Start())
	all := trainRanksAt(t, context.Background(), port, 3, func(rank int) []string { return [][]string{{path}, nil, {path}}[rank] }, nil)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exit.Failure {
		t.Errorf("rank 1 ends with %v", err)
	}
	quiet(t, all)
	of := func(text []byte) string { return fmt.Sprintf("of SHA-256 %x", sha256.Sum256(text)) }
	for _, want := range []string{"train: the program is " + of(append(text, 0)), " on rank 1, and " + of(text), " on rank 0: start all ranks with the same program"} {
		if !strings.Contains(all[0].stderr, want) || strings.Count(all[0].stderr, "\n") != 1 {
			t.Errorf("rank 0 says %q, want one line with %q", all[0].stderr, want)
		}
	}
}
