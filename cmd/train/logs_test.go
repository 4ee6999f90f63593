package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/internal/must"
)

// folderOf is the run's folder that the last line of a run names.
func folderOf(t *testing.T, stdout string) string {
	t.Helper()
	_, dir, found := strings.Cut(strings.TrimSpace(stdout), "; run in ")
	if !found {
		t.Fatalf("no folder of the run in:\n%s", stdout)
	}
	return dir
}

// TestLogsOfAllocators trains on one allocator after another: none overwrites logs of another, and
// each prints its folder.
func TestLogsOfAllocators(t *testing.T) {
	path, root := traintest.WriteConfig(t, "cpu", "")
	files := map[string]string{}
	for _, c := range []struct{ env, name, logs string }{
		{"", "custom", root},
		{"custom:bestfit", "custom:bestfit", filepath.Join(root, "custom-bestfit")},
		{backend.PlainMalloc, "malloc", filepath.Join(root, "malloc")},
	} {
		t.Setenv(backend.AllocatorEnv, c.env)
		stdout := succeeds(t, path)
		now := traintest.Contents(t, root)
		for name, text := range files {
			if now[name] != text {
				t.Errorf("%q changed %s", c.env, name)
			}
		}
		const logFiles = 4
		if want := len(files) + logFiles + logFiles + 5; len(now) != want {
			t.Errorf("%q: %d files after %d, want %d", c.env, len(now), len(files), want)
		}
		files = now

		dir := folderOf(t, stdout)
		if to, err := os.Readlink(filepath.Join(root, rundir.Latest)); err != nil || filepath.Join(root, to) != dir || !strings.HasSuffix(to, strings.ReplaceAll("-"+c.name, ":", "-")) {
			t.Errorf("%q: the run is in %s, latest leads to %s, %v", c.env, dir, to, err)
		}
		for _, name := range []string{rundir.RecordsFile, rundir.LossesFile, rundir.ValLossesFile, rundir.ValAccsFile} {
			inFolder, inLogs := traintest.Lines(t, filepath.Join(dir, name)), traintest.Lines(t, filepath.Join(c.logs, name))
			if !slices.Equal(inFolder, inLogs) {
				t.Errorf("%q: %s is not the same in %s and %s", c.env, name, dir, c.logs)
			}
		}
		run, err := rundir.Open(dir)
		f := run.Facts
		if err != nil || f.Name != c.name || f.Status != rundir.Done || f.Epochs != 3 || f.End == nil || f.End.Before(f.Start) || f.Error != "" ||
			f.Config != path || f.Device != "cpu" || f.Executor != "eager" || f.Machine.Cores == 0 || len(f.Command) == 0 || f.Place != 0 {
			t.Errorf("%q: %v, facts %+v", c.env, err, f)
		}
		want := map[string]string{"": "tlsf", "custom:bestfit": "bestfit"}[c.env]
		cfg, err := configs.Load(run.Config())
		if f.Strategy != want || err != nil || want != "" && cfg.Allocator.Strategy != want || cfg.Model.FeatDim != 24 {
			t.Errorf("%q: strategy %q, and %q in the config; %v", c.env, f.Strategy, cfg.Allocator.Strategy, err)
		}
		if records, err := run.Records(); err != nil || len(records) != 3 || records[2].Allocator != c.name {
			t.Errorf("%q: %v, records %+v", c.env, err, records)
		}
	}
}

// TestInterruptedBefore interrupts a run while it loads data: earlier logs stay.
func TestInterruptedBefore(t *testing.T) {
	path, root := traintest.WriteConfig(t, "cpu", "")
	trainAll(t, root, path)
	before := traintest.Contents(t, root)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if code, stdout, stderr := trainIn(ctx, path); code != exit.CodeInterrupted || stdout != "" || stderr != "train: interrupted\n" {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
	if after := traintest.Contents(t, root); !maps.Equal(after, before) {
		t.Errorf("%d files are %d now, or differ", len(before), len(after))
	}
}

// TestLogsOfRun has folders of runs as log_dir. Nothing in them changes.
func TestLogsOfRun(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, backend.PlainMalloc)
	path, root := traintest.WriteConfig(t, "cpu", "")
	one := trainAll(t, root, path)
	two := trainAll(t, root, "-compare=malloc,custom", path)
	cut := trainAll(t, root, "-compare=malloc,custom", path)
	must.OK(t, os.Remove(filepath.Join(cut, rundir.ComparisonFile))) // as where it was killed
	before := traintest.Contents(t, root)
	for _, c := range []struct {
		logDir, run string
		args        []string
	}{
		{one, one, nil},
		{one, one, []string{"-check"}},
		{one, one, []string{"-compare"}},
		{filepath.Join(root, rundir.Latest, backend.CustomPool), filepath.Join(root, rundir.Latest, backend.CustomPool), nil},
		{two, two, nil},
		{cut, filepath.Join(cut, backend.PlainMalloc), nil},
	} {
		want := "train: -set log.log_dir: " + c.run + " is the folder of a run, which keeps its own logs: set another folder\n"
		fails(t, exit.Failure, want, append(c.args, "-set", "log.log_dir="+c.logDir, path)...)
	}
	if after := traintest.Contents(t, root); !maps.Equal(before, after) {
		t.Errorf("before: %d files, after: %d, or one was changed", len(before), len(after))
	}
}
