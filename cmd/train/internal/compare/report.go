package compare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"mlpool/allocator"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/internal/output"
	"mlpool/internal/report"
)

// Run is a run as far as it got: its facts, its logs, and its recording.
type Run struct {
	Facts     rundir.Facts
	Folder    string // empty: none
	Config    []byte // the effective config, as TOML
	Records   []rundir.Record
	Losses    []float32
	Recording report.Recording
	damaged   error // why there is no recording; nil: the run may have none
	Held      []allocator.TagBytes
}

// Report writes a page about the runs in folders, which may be comparisons.
func Report(ctx context.Context, path string, folders []string, stdout, stderr io.Writer) error {
	if err := output.Check("-report", path); err != nil {
		return err
	}
	damaged, err := exit.Await(ctx, func() (damaged []error, err error) {
		all, err := readAllFinished(folders)
		if err == nil {
			err = writePage(path, all)
		}
		for _, f := range all {
			if f.damaged != nil {
				damaged = append(damaged, f.damaged)
			}
		}
		return damaged, err
	})
	for _, why := range damaged {
		fmt.Fprintf(stderr, "train: %v\n", why)
	}
	if err == nil {
		fmt.Fprintf(stdout, "report in %s\n", path)
	}
	return err
}

// readAllFinished reads the runs in folders, and all runs of comparisons.
func readAllFinished(folders []string) (all []Run, err error) {
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

// readFinished reads the folder of a run. A run that ended early lacks some files.
func readFinished(r rundir.Run) (f Run, err error) {
	f = Run{Facts: r.Facts, Folder: r.Dir}
	if dir, err := filepath.EvalSymlinks(r.Dir); err == nil {
		f.Folder = dir // dir may be a link such as latest
	}
	if f.Records, err = r.Records(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f.Losses, err = r.Losses(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f.Config, err = rundir.ReadFile(r.Config()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	path := filepath.Join(r.Dir, rundir.RecordingFile)
	text, err := rundir.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := rundir.Unmarshal(text, &f.Recording); err != nil { // the run was killed while writing it
		f.Recording = report.Recording{}
		f.damaged = fmt.Errorf("%s: %w: the report shows no step of this run", path, err)
	}
	return f, nil
}

// WriteReport writes the page of runs, and prints where it is.
func WriteReport(path string, runs []Run, stdout io.Writer) error {
	err := writePage(path, runs)
	if err == nil {
		fmt.Fprintf(stdout, "report in %s\n", path)
	}
	return err
}

func writePage(path string, runs []Run) error {
	p, err := reportPage(runs)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := report.Write(&b, p); err != nil {
		return err
	}
	if err := output.WriteFile(path, b.Bytes()); err != nil {
		return fmt.Errorf("-report: %w", err)
	}
	return nil
}
