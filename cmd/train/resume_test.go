package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/predict"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/internal/must"
)

// trainFor trains until the context has been asked asked times since the run began, and returns the
// run's folder.
func trainFor(t *testing.T, asked int, logDir string, args ...string) string {
	t.Helper()
	ctx := &traintest.Countdown{Context: context.Background()}
	ctx.Left.Store(1 + int64(asked))
	code, stdout, stderr := trainIn(ctx, args...)
	if code != exit.CodeInterrupted || stderr != "train: interrupted\n" {
		t.Fatalf("%q: exit code %d, stderr %q, stdout:\n%s", args, code, stderr, stdout)
	}
	return traintest.Latest(t, logDir)
}

// trainAll runs the command to its end and returns the run's folder.
func trainAll(t *testing.T, logDir string, args ...string) string {
	t.Helper()
	succeeds(t, args...)
	return traintest.Latest(t, logDir)
}

// sameRun compares the results of two runs byte for byte.
func sameRun(t *testing.T, name, got, want string) {
	t.Helper()
	for _, file := range []string{"train_losses.txt", "val_losses.txt", "val_accs.txt", rundir.WeightsFile} {
		a, errA := os.ReadFile(filepath.Join(got, file))
		b, errB := os.ReadFile(filepath.Join(want, file))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: %s is not that of the whole run (%v, %v)", name, file, errA, errB)
		}
	}
	epochs := func(dir string) (numbers []string) {
		for _, r := range recordsOf(t, dir) {
			numbers = append(numbers, fmt.Sprintf("%d:%d", r.Epoch, r.Steps))
		}
		return numbers
	}
	if a, b := epochs(got), epochs(want); !slices.Equal(a, b) {
		t.Errorf("%s: records of epochs and steps %v, want %v", name, a, b)
	}
}

// TestResume interrupts runs, resumes them with other executors and allocators, and compares with a
// run that was not interrupted.
func TestResume(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	whole := trainAll(t, logDir, path)
	for _, c := range []struct {
		asked        int // 20 times an epoch
		kind         string
		settings     []string
		moreAsked    int // 0: the second run is not interrupted
		first, steps int // of the epochs and steps that the checkpoint is of
	}{
		{asked: 0, kind: backend.CustomPool},
		{asked: 1, kind: backend.PlainMalloc},
		{asked: 6, kind: "custom:bestfit", steps: 5},
		{asked: 20, kind: backend.CustomPool, first: 1, settings: []string{"-set", "train.executor=graph"}},
		{asked: 28, kind: backend.CustomPool, first: 1, steps: 7, settings: []string{"-set", "train.executor=graph"}},
		{asked: 39, kind: backend.PlainMalloc, first: 1, steps: 18, settings: []string{"-set", "train.verbose=true"}},
		{asked: 45, kind: "custom:slack=1/64", first: 2, steps: 4, moreAsked: 8},
	} {
		t.Run(fmt.Sprintf("%d, %s", c.asked, c.kind), func(t *testing.T) {
			t.Setenv(backend.AllocatorEnv, "")
			dir := trainFor(t, c.asked, logDir, path)
			saved, err := checkpoint.Load(filepath.Join(dir, rundir.WeightsFile))
			if err != nil || saved.Epoch != c.first || saved.Step != c.steps {
				t.Fatalf("a checkpoint of %d epochs and %d steps, want %d and %d (%v)", saved.Epoch, saved.Step, c.first, c.steps, err)
			}
			before := traintest.Contents(t, dir)
			t.Setenv(backend.AllocatorEnv, c.kind)
			args := append([]string{"-resume", dir}, c.settings...)
			if c.moreAsked > 0 {
				args[1] = trainFor(t, c.moreAsked, logDir, args...)
			}
			resumed := trainAll(t, logDir, args...)
			sameRun(t, "resumed", resumed, whole)
			for name, text := range traintest.Contents(t, dir) {
				if before[name] != text {
					t.Errorf("%s of the earlier run was changed", name)
				}
			}
			if run, err := rundir.Open(resumed); err != nil || run.Facts.ResumedFrom != args[1] {
				t.Errorf("resumed from %q, want %q (%v)", run.Facts.ResumedFrom, args[1], err)
			}
		})
	}
}

// TestResumeCommand runs the command that an interrupted run prints last.
func TestResumeCommand(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	whole := trainAll(t, logDir, path)
	ends := func(asked int, args ...string) []string {
		ctx := &traintest.Countdown{Context: context.Background()}
		ctx.Left.Store(1 + int64(asked))
		_, stdout, _ := trainIn(ctx, args...)
		var commands []string
		for line := range strings.Lines(stdout) {
			if command, ok := strings.CutPrefix(line, "continue with: "); ok {
				commands = append(commands, strings.TrimSpace(command))
			}
		}
		if n := len(commands); n > 0 && !strings.HasSuffix(stdout, commands[n-1]+"\n") {
			t.Errorf("%q: it is not the last line of:\n%s", args, stdout)
		}
		return commands
	}
	commands := ends(28, path)
	dir := traintest.Latest(t, logDir)
	if len(commands) != 1 || commands[0] != os.Args[0]+" -resume "+dir {
		t.Fatalf("%q, want a line that names %s and %s", commands, os.Args[0], dir)
	}
	sameRun(t, "resumed", trainAll(t, logDir, "-resume", dir), whole)

	odd := filepath.Join(t.TempDir(), "it's here")
	commands = ends(50, path, "-compare=custom,custom:bestfit", "-set", "log.log_dir="+odd)
	program := os.Args[0]
	dir = strings.ReplaceAll(traintest.Latest(t, odd), "'", `'\''`)
	if len(commands) != 2 || commands[0] != program+" -resume '"+dir+"/custom'" || commands[1] != "ALLOCATOR_TYPE=custom:bestfit "+program+" -resume '"+dir+"/custom-bestfit'" {
		t.Errorf("%q in %s", commands, dir)
	}
	for _, c := range []struct {
		name  string
		asked int
		args  []string
	}{
		{"nothing is saved", 10, []string{"-set", "log.log_dir="}},
		{"it has diverged", 10, []string{"-set", "train.learning_rate=1e20"}},
		{"all epochs are done", 22, []string{"-set", "train.num_epochs=1", "-set", "train.profile=5"}},
	} {
		if commands := ends(c.asked, append(c.args, path)...); commands != nil {
			t.Errorf("%s: %q", c.name, commands)
		}
	}
}

// TestResumeKilled resumes a resumed run that was killed before its first checkpoint.
func TestResumeKilled(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	whole := trainAll(t, logDir, path)
	dir := trainFor(t, 28, logDir, path)
	killed := filepath.Join(t.TempDir(), "killed")
	stdout := traintest.WriterFunc(func(p []byte) (int, error) {
		if strings.HasPrefix(string(p), "epoch 2/3") {
			if err := os.CopyFS(killed, os.DirFS(traintest.Latest(t, logDir))); err != nil {
				t.Error(err)
			}
		}
		return len(p), nil
	})
	if code := runProcess(context.Background(), []string{"-resume", dir}, stdout, os.Stderr); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	sameRun(t, "killed and resumed", trainAll(t, logDir, "-resume", killed), whole)
}

// TestResumeKilledAtEnd resumes a run that was killed after its last checkpoint: it has nothing
// left to train.
func TestResumeKilledAtEnd(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	whole := trainAll(t, logDir, path)
	run, err := rundir.Open(whole)
	must.OK(t, err)
	run.Facts.Status, run.Facts.End = rundir.Running, nil
	killed := filepath.Join(t.TempDir(), "killed")
	must.OK(t, errors.Join(os.CopyFS(killed, os.DirFS(whole)), rundir.WriteJSON(filepath.Join(killed, rundir.FactsFile), run.Facts)))
	for _, args := range [][]string{nil, {"-set", "train.executor=graph"}, {"-set", "train.profile=3"}, {"-json"}} {
		code, stdout, stderr := train(append([]string{"-resume", killed}, args...)...)
		if want := "\n" + killed + " has done 3 epochs: nothing is left to train\n"; code != 0 || !strings.Contains("\n"+stdout+stderr, want) || strings.Contains(stdout, "resuming") {
			t.Fatalf("%q: exit code %d, stderr %q, want %q in stdout:\n%s", args, code, stderr, want, stdout)
		}
		resumed := traintest.Latest(t, logDir)
		sameRun(t, "killed at its end and resumed", resumed, whole)
		if run, err = rundir.Open(resumed); err != nil || run.Facts.Status != rundir.Done || run.Facts.Epochs != 3 {
			t.Errorf("%q: %+v, %v", args, run.Facts, err)
		}
	}
	within := trainFor(t, 28, logDir, path) // in the second epoch
	fails(t, exit.Failure, "has done 1: resume with", "-resume", within, "-set", "train.num_epochs=1")
}

func TestRestOfEpoch(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := trainFor(t, 46, logDir, path)
	_, stdout, stderr := train("-resume", dir)
	if want := "custom allocator, virtual segments, the rest of an epoch after 5 steps, which includes costs that occur once: "; !strings.Contains(flat(stdout), want) {
		t.Errorf("no %q in:\n%s%s", want, stdout, stderr)
	}
}

// TestResumeFinished resumes a finished run for more epochs.
func TestResumeFinished(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	whole := trainAll(t, logDir, path)
	short := trainAll(t, logDir, path, "-set", "train.num_epochs=2")
	code, stdout, stderr := train("-resume", short, "-set", "train.num_epochs=3")
	if want := "\nresuming " + short + " after 2 epochs and 0 steps\nepoch 3/3  loss "; code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("exit code %d, stderr %q, want %q in stdout:\n%s", code, stderr, want, stdout)
	}
	sameRun(t, "one epoch more", traintest.Latest(t, logDir), whole)
	want := "train.num_epochs: is 2, and " + short + " has done 2: resume with -set train.num_epochs=4\n"
	fails(t, exit.Failure, want, "-resume", short)
}

// TestResumeSubject resumes one run of a comparison.
func TestResumeSubject(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	whole := trainAll(t, logDir, path)
	compared := trainFor(t, 50, logDir, "-compare=custom,malloc", path) // in the second epoch
	resumed := trainAll(t, logDir, "-resume", filepath.Join(logDir, rundir.Latest, backend.PlainMalloc))
	sameRun(t, "of a comparison", resumed, whole)
	if run, err := rundir.Open(resumed); err != nil || run.Facts.ResumedFrom != filepath.Join(compared, backend.PlainMalloc) || run.Facts.Epochs != 3 || run.Facts.Allocator != backend.CustomPool {
		t.Errorf("%+v, %v", run.Facts, err)
	}
	succeeds(t, "-predict", predict.TestSet, compared)
	resumed = trainAll(t, logDir, "-resume", compared)
	sameRun(t, "the first of a comparison", resumed, whole)
	if run, err := rundir.Open(resumed); err != nil || run.Facts.ResumedFrom != filepath.Join(compared, backend.CustomPool) {
		t.Errorf("%+v, %v", run.Facts, err)
	}
}

// TestResumeRefuses changes what must stay the same.
func TestResumeRefuses(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := trainFor(t, 6, logDir, path)
	other := traintest.DataDir(t)
	labels := filepath.Join(other, "t10k-labels-idx1-ubyte.gz")
	traintest.WriteIDX(t, labels, []uint32{70}, make([]byte, 70))
	for _, set := range []string{"model.feat_dim=25", "model.num_layers=3", "train.bsz=17", "train.learning_rate=0.25", "train.seed=1", "train.fuse=false"} {
		key, value, _ := strings.Cut(set, "=")
		want := fmt.Sprintf("train: -set %s: is %s; run %s used ", key, value, dir)
		fails(t, exit.Failure, want, "-resume", dir, "-set", set)
	}
	code, _, stderr := train("-resume", dir, "-set", "data.data_dir="+other)
	if code != exit.Failure || !strings.Contains(stderr, ": data.dataset") || !strings.Contains(stderr, "300 and 70 images of 16 pixels, CRC-32C ") {
		t.Errorf("other labels: exit code %d, stderr %q", code, stderr)
	}
	entries, err := os.ReadDir(logDir)
	must.OK(t, err)
	for _, e := range entries {
		if e.IsDir() && e.Name() != filepath.Base(dir) {
			t.Errorf("a run that was refused has left %s", e.Name())
		}
	}
	running := &traintest.OnText{Text: "epoch 1/3", Do: func() {
		dir := traintest.Latest(t, logDir)
		fails(t, exit.Failure, "train: "+dir+" is still being written to: wait for its end, or press Ctrl-C there\n", "-resume", dir)
	}}
	if code := runProcess(context.Background(), []string{path}, running, os.Stderr); code != 0 {
		t.Errorf("exit code %d", code)
	}
	fails(t, exit.Failure, " is not the folder of a run: ", "-resume", logDir)
}

// TestResumeDamaged damages the files of a run.
func TestResumeDamaged(t *testing.T) {
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	dir := trainFor(t, 28, logDir, path)
	saved, err := checkpoint.Load(filepath.Join(dir, rundir.WeightsFile))
	must.OK(t, err)
	for _, c := range []struct {
		file, want string
		damage     func(text []byte) []byte
	}{
		{"train_losses.txt", "but the logs of the run have 0 epochs and 25 losses", func(text []byte) []byte {
			return []byte(strings.Join(strings.Split(string(text), "\n")[:25], "\n") + "\n")
		}},
		{"train_losses.txt", "train_losses.txt:1: ", func([]byte) []byte { return []byte("x\n") }},
		{"metrics.jsonl", "but the logs of the run have 0 epochs", func([]byte) []byte { return nil }},
		{"metrics.jsonl", "metrics.jsonl:1: ", func([]byte) []byte { return []byte("{\n") }},
		{"metrics.jsonl", "but the logs of the run have 0 epochs", func([]byte) []byte { return []byte("{\"epoch\":1,\"steps\":-3}\n") }},
		{"metrics.jsonl", "but the logs of the run have 0 epochs", func([]byte) []byte { return []byte("{\"epoch\":1,\"steps\":9223372036854775807}\n") }},
		{rundir.WeightsFile, "the file is cut off", func(text []byte) []byte { return text[:5] }},
		{rundir.WeightsFile, "weights of [(16, 24) (24, 3)], and the config's model has [(16, 24) (24, 24) (24, 10)]", func([]byte) []byte {
			small := saved
			small.Weights = initialWeightsOf(16, 24, 3)
			other := t.TempDir()
			must.OK(t, small.Save(filepath.Join(other, rundir.WeightsFile)))
			return must.Read(t, filepath.Join(other, rundir.WeightsFile))
		}},
	} {
		file := filepath.Join(dir, c.file)
		text := must.Read(t, file)
		traintest.Write(t, file, string(c.damage(bytes.Clone(text))))
		fails(t, exit.Failure, c.want, "-resume", dir)
		traintest.Write(t, file, string(text))
	}
	must.OK(t, os.Remove(filepath.Join(dir, rundir.WeightsFile)))
	fails(t, exit.Failure, "train: "+filepath.Join(dir, rundir.WeightsFile)+": no weights: ", "-resume", dir)
}
