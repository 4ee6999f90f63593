package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/kernels/collective"
	"mlpool/kernels/collective/launch"
)

// TestRanksEnd ends a training on ranks early in every way.
func TestRanksEnd(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	set := func(rank, of int, args ...string) []string {
		if rank != of {
			return []string{path}
		}
		return append(args, path)
	}
	for _, c := range []struct {
		name string
		args func(rank int) []string
		wrap func(*collective.Local) collective.Collective
		want string
	}{
		{"another key", func(rank int) []string { return set(rank, 1, "-set", "train.bsz=8") }, nil,
			"train: train.bsz is 8 on rank 1, and 16 on rank 0: start all ranks with the same program and config\n"},
		{"no such config", func(rank int) []string { return []string{path, "missing.toml"}[rank/2 : rank/2+1] }, nil, "train: rank 2: open missing.toml: no such file or directory\n"},
		{"one does not come", func(rank int) []string { return [][]string{{path}, nil, {path}}[rank] }, nil, "train: rank 1 of 3 did not come to 127.0.0.1:"},
		{"profile", func(int) []string { return []string{"-set", "train.profile=3", path} }, nil, "-set train.profile: is for one GPU"},
		{"too large", func(int) []string { return []string{"-set", "train.bsz=101", path} }, nil, "101 on each of 3 ranks is more than the 300 rows"},
		{"one dies", func(int) []string { return []string{path} }, func(l *collective.Local) collective.Collective { return &failing{Local: l, t: t, rank: 2, left: 12} },
			"train: rank 2: epoch 2: step "},
		{"other weights", func(int) []string { return []string{"-set", "train.checkpoint_every=1", path} }, func(l *collective.Local) collective.Collective {
			return &failing{Local: l, t: t, rank: 1, left: 17, spoils: true}
		},
			"train: after epoch 2 rank 1 has other weights than rank 0, with checksums "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.args(1) == nil {
				impatient(t)
			}
			all := trainRanks(t, context.Background(), 3, c.args, c.wrap)
			quiet(t, all)
			if !strings.HasPrefix(all[0].stderr, c.want) && !strings.Contains(all[0].stderr, c.want) || strings.Count(all[0].stderr, "\n") != 1 {
				t.Errorf("rank 0 says %q, want one line %q", all[0].stderr, c.want)
			}
			for rank, e := range all {
				if e.code == 0 && c.args(rank) != nil {
					t.Errorf("rank %d ends well", rank)
				}
			}
			if c.wrap == nil {
				return
			}
			saved, err := checkpoint.Load(filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile))
			if err != nil || saved.Epoch != 1 || saved.Settings["ranks"] != "3" {
				t.Errorf("the checkpoint is of epoch %d and %s ranks, %v", saved.Epoch, saved.Settings["ranks"], err)
			}
		})
	}
}

// failing is a rank that fails after some collectives, or returns a wrong result: of the last exchange of an epoch, since
// the next one would give it the weights of the others.
type failing struct {
	*collective.Local
	t          *testing.T
	rank, left int
	spoils     bool
	others     <-chan struct{} // not nil: it has one for each collective that another rank has come to
}

// Close would wait for the others, which wait in a collective.
func (f *failing) Close() error {
	if f.Err() == nil {
		f.t.Errorf("rank %d parts as if all were well", f.Rank())
	}
	return f.Local.Close()
}

func (f *failing) AllReduce(x uintptr, n int, stream uintptr) error {
	return f.at(x, func() error { return f.Local.AllReduce(x, n, stream) })
}

func (f *failing) Exchange(u collective.Updates, stream uintptr) error {
	return f.at(u.W, func() error { return f.Local.Exchange(u, stream) })
}

func (f *failing) at(x uintptr, do func() error) error {
	if f.others != nil {
		<-f.others
	}
	if f.left--; f.left != 0 || f.Rank() != f.rank {
		return do()
	}
	if !f.spoils {
		return errors.New("unhandled system error")
	}
	if err := do(); err != nil {
		return err
	}
	return f.spoil(x)
}

// TestGiveUp ends rank 1 while rank 0 waits in an exchange that does not return. Rank 0 notes the
// reason in the folder of the run before it gives up.
func TestGiveUp(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	group, port := collective.NewLocal(2), freePort(t)
	come, gaveUp := make(chan struct{}, 100), make(chan struct{})
	var facts rundir.Facts
	var saved checkpoint.Checkpoint
	var all sync.WaitGroup
	var stderr [2]bytes.Buffer
	for rank := range group {
		vars := mpirun(rank, 2, port)
		r := localRank(func(name string) string { return vars[name] }, group[rank], func(l *collective.Local) collective.Collective {
			if rank == 0 {
				return asleep{l, come, gaveUp}
			}
			return &failing{Local: l, t: t, rank: 1, left: 31, others: come}
		})
		if rank == 0 {
			r.EndWithin = time.Second // also to note the end, on a busy machine
			r.GiveUp = sync.OnceFunc(func() {
				if run, err := rundir.Open(traintest.Latest(t, logDir)); err != nil {
					t.Error(err)
				} else {
					facts = run.Facts
					if saved, err = checkpoint.LoadWeights(run, rundir.WeightsFile); err != nil {
						t.Error(err)
					}
				}
				close(gaveUp)
			})
		}
		all.Go(func() { runCommand(context.Background(), r, []string{path}, io.Discard, &stderr[rank]) })
	}
	all.Wait()
	if want := "rank 1: epoch 3: step "; facts.Status != rundir.Failed || !strings.HasPrefix(facts.Error, want) || facts.End == nil || facts.Epochs != 2 || saved.Epoch != 2 {
		t.Errorf("the run is %q after %d epochs, with weights of %d, for %q, want %q for %q", facts.Status, facts.Epochs, saved.Epoch, facts.Error, rundir.Failed, want)
	}
	if !strings.HasPrefix(stderr[0].String(), "train: "+facts.Error+"\n") {
		t.Errorf("rank 0 says %q", &stderr[0])
	}
}

// TestSlowLeave has rank 0's run end at once and rank 1 leave late: rank 0 waits, and does not give up.
func TestSlowLeave(t *testing.T) {
	port := freePort(t)
	process := func(rank int) launch.Process {
		return launch.Process{Rank: rank, Size: 2, Address: "127.0.0.1:" + port, OneHost: true, Secret: strings.Repeat("x", 20), Within: patience}
	}
	left := make(chan error, 1)
	go func() {
		w, err := launch.Rendezvous(t.Context(), process(1), patience)
		if err == nil {
			<-w.Ended()
			time.Sleep(300 * time.Millisecond)
			err = w.Leave(nil)
		}
		left <- err
	}()
	r := &ranks.Ranks{Silence: patience, EndWithin: 100 * time.Millisecond}
	r.GiveUp = func() { t.Error("rank 0 gives up") }
	full := errors.New("the disk is full")
	err := r.Together(t.Context(), process(0), io.Discard, func(io.Writer) error {
		r.World.End(full)
		return full
	})
	if theirs := <-left; !errors.Is(err, full) || theirs == nil || theirs.Error() != full.Error() {
		t.Errorf("the ranks end with %v and %v", err, theirs)
	}
}

// TestEndAfterEpoch ends rank 1 after an epoch that is no better than the one before, while rank 0 prints its line. The
// weights of the epoch before are saved, which are the best.
func TestEndAfterEpoch(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "", "num_epochs = 3", "num_epochs = 4", "learning_rate = 0.5", "learning_rate = 1e-30")
	group, port := collective.NewLocal(2), freePort(t)
	var all sync.WaitGroup
	var other *launch.World
	for rank := range group {
		vars := mpirun(rank, 2, port)
		r := localRank(func(name string) string { return vars[name] }, group[rank], nil)
		var stdout io.Writer = io.Discard
		if connect := r.Connect; rank == 1 {
			r.Connect = func(ctx context.Context, w *launch.World) (collective.Collective, error) {
				other = w
				return connect(ctx, w)
			}
		} else {
			stdout = &traintest.OnText{Text: "epoch 2/4", Do: func() {
				other.End(errors.New("killed"))
				for group[0].Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}}
		}
		all.Go(func() { runCommand(context.Background(), r, []string{path}, stdout, io.Discard) })
	}
	all.Wait()
	for _, file := range []string{rundir.WeightsFile, rundir.BestFile} {
		if saved, err := checkpoint.Load(filepath.Join(traintest.Latest(t, logDir), file)); err != nil || saved.Epoch != 1 {
			t.Errorf("%s has the weights of epoch %d: %v", file, saved.Epoch, err)
		}
	}
}

// asleep is a rank that announces each collective, and whose failed exchanges return only once up
// is closed.
type asleep struct {
	*collective.Local
	come chan<- struct{}
	up   <-chan struct{}
}

func (a asleep) AllReduce(x uintptr, n int, stream uintptr) error {
	a.come <- struct{}{}
	return a.Local.AllReduce(x, n, stream)
}

func (a asleep) Exchange(u collective.Updates, stream uintptr) error {
	a.come <- struct{}{}
	err := a.Local.Exchange(u, stream)
	if err != nil {
		<-a.up
	}
	return err
}

// TestRanksInterrupted interrupts one rank: all end after the same epoch. The run resumes on
// another number of ranks.
func TestRanksInterrupted(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "", "num_epochs = 3", "num_epochs = 1000000")
	ctx, cancel := context.WithCancel(context.Background())
	all := trainRanks(t, ctx, 2, func(int) []string { return []string{path} }, func(l *collective.Local) collective.Collective {
		return &interrupting{Local: l, left: 50, cancel: cancel}
	})
	for rank, e := range all {
		if e.code != exit.CodeInterrupted {
			t.Errorf("rank %d: exit code %d, %s", rank, e.code, e.stderr)
		}
	}
	quiet(t, all)
	if !strings.HasSuffix(all[0].stderr, "train: interrupted\n") || !strings.Contains(all[0].stderr, "finishing this epoch") {
		t.Errorf("stderr %q", all[0].stderr)
	}
	dir := traintest.Latest(t, logDir)
	saved, err := checkpoint.Load(filepath.Join(dir, rundir.WeightsFile))
	if err != nil || saved.Step != 0 || saved.Epoch == 0 {
		t.Fatalf("saved after epoch %d and step %d, %v", saved.Epoch, saved.Step, err)
	}
	epochs := fmt.Sprint("train.num_epochs=", saved.Epoch+2)
	for _, size := range []int{1, 2, 4} {
		all := trainRanks(t, context.Background(), size, func(int) []string { return []string{"-resume", dir, "-set", epochs} }, nil)
		note := fmt.Sprintf("train: %s was on 2 ranks: on %d losses agree within rounding, if train.bsz times the ranks is the same\n", dir, size)
		if size == 2 {
			note = ""
		}
		for rank, e := range all {
			if e.code != 0 || rank == 0 && e.stderr != note {
				t.Errorf("rank %d of %d: exit code %d, %q, want %q", rank, size, e.code, e.stderr, note)
			}
		}
		run, err := rundir.Open(traintest.Latest(t, logDir))
		if err != nil || run.Facts.Epochs != saved.Epoch+2 {
			t.Errorf("on %d ranks it has %d epochs, %v", size, run.Facts.Epochs, err)
		}
	}
}

// interrupting is a rank that is interrupted in an all-reduce.
type interrupting struct {
	*collective.Local
	left   int
	cancel func()
}

func (i *interrupting) AllReduce(x uintptr, n int, stream uintptr) error {
	if i.left--; i.left == 0 && i.Rank() == 0 {
		i.cancel()
	}
	return i.Local.AllReduce(x, n, stream)
}

// TestRanksInterruptedEarly interrupts ranks that have met, before they train.
func TestRanksInterruptedEarly(t *testing.T) {
	path, _ := traintest.WriteConfig(t, "cpu", "")
	ctx, cancel := context.WithCancel(context.Background())
	all := trainRanks(t, ctx, 3, func(int) []string { return []string{path} }, func(l *collective.Local) collective.Collective {
		cancel()
		return l
	})
	quiet(t, all)
	for rank, e := range all {
		if e.code != exit.CodeInterrupted {
			t.Errorf("rank %d: exit code %d, %s", rank, e.code, e.stderr)
		}
	}
	if all[0].stderr != "train: interrupted\n" {
		t.Errorf("rank 0 says %q", all[0].stderr)
	}
}

// spoil changes a number at an address.
func (*failing) spoil(addr uintptr) error {
	*(*float32)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))) += 1
	return nil
}
