package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/report"
)

// finished is a run that has ended, as a report takes it.
type finished struct {
	facts     rundir.Facts
	folder    string // empty: none
	config    []byte // the effective one, as TOML
	records   []rundir.Record
	losses    []float32
	recording report.Recording
	damaged   error // why the recording is left out; nil: it is not
	held      []allocator.TagBytes
}

// reportRuns writes a report of earlier runs, or of comparisons, by their folders.
func reportRuns(ctx context.Context, path string, folders []string, stdout, stderr io.Writer) error {
	if err := checkOutput("-report", path); err != nil {
		return err
	}
	all, err := await(ctx, func() ([]finished, error) { return readAllFinished(folders) })
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.damaged != nil {
			fmt.Fprintf(stderr, "train: %v\n", f.damaged)
		}
	}
	return writeReport(path, all, stdout)
}

// readAllFinished reads the runs in folders, those of comparisons one by one.
func readAllFinished(folders []string) (all []finished, err error) {
	for _, folder := range folders {
		runs, err := rundir.Runs(folder)
		if err != nil {
			return nil, err
		}
		for _, r := range runs {
			one, err := readFinished(r)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// readFinished reads what a run left in its folder. What a run that ended early did not
// write is left out.
func readFinished(r rundir.Run) (f finished, err error) {
	f = finished{facts: r.Facts, folder: r.Dir}
	if dir, err := filepath.EvalSymlinks(r.Dir); err == nil {
		f.folder = dir // the run's own, where it is known by a link such as latest
	}
	if f.records, err = r.Records(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f.losses, err = r.Losses(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f.config, err = os.ReadFile(r.Config()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	path := filepath.Join(r.Dir, rundir.RecordingFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := rundir.Unmarshal(text, &f.recording); err != nil { // as a run leaves it that is killed
		f.recording = report.Recording{}
		f.damaged = fmt.Errorf("%s: %w: the report shows no step of this run", path, err)
	}
	return f, nil
}

// writeReport writes the page of some runs at once, and says where it is.
func writeReport(path string, runs []finished, stdout io.Writer) error {
	p, err := reportPage(runs)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := report.Write(&b, p); err != nil {
		return err
	}
	if err := rundir.WriteFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("-report: %w", err)
	}
	fmt.Fprintf(stdout, "report in %s\n", path)
	return nil
}
