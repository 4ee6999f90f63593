package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"mlpool/cmd/train/internal/traintest"
)

// TestCarry begins with the logs of a run that ended within its third epoch.
func TestCarry(t *testing.T) {
	records := []Record{{Epoch: 1, Steps: 2, ValLoss: 0.5, ValAcc: 0.25}, {Epoch: 2, Steps: 2, ValLoss: 0.375, ValAcc: 0.5}}
	losses := []float32{1, 0.1, 0.9, 0.8, 0.7}
	dir := t.TempDir()
	f, err := Start(dir, Facts{ResumedFrom: "logs/x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rest := Record{Epoch: 3, Steps: 2, ResumedAfter: 1, ValLoss: 0.25, ValAcc: 1}
	if err := errors.Join(f.Carry(records, losses), f.Add(rest, []float32{0.6}), f.Finish()); err != nil {
		t.Fatal(err)
	}
	run, err := Open(dir)
	if err != nil || run.Facts.ResumedFrom != "logs/x" {
		t.Errorf("%+v, %v", run.Facts, err)
	}
	if got, err := run.Records(); err != nil || !reflect.DeepEqual(got, append(records, rest)) {
		t.Errorf("records %+v, %v", got, err)
	}
	if got, err := run.Losses(); err != nil || !reflect.DeepEqual(got, append(losses, 0.6)) {
		t.Errorf("losses %v, %v", got, err)
	}
	for file, want := range map[string]string{ValLossesFile: "0.5\n0.375\n0.25\n", ValAccsFile: "0.25\n0.5\n1\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(text) != want {
			t.Errorf("%s is %q, want %q (%v)", file, text, want, err)
		}
	}
	var none *Folder
	if err := none.Carry(records, losses); err != nil {
		t.Errorf("nowhere: %v", err)
	}
}

func TestCarryFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	for _, records := range [][]Record{nil, {{Epoch: 1, Steps: 1}}} {
		dir := t.TempDir()
		traintest.OK(t, os.Symlink("/dev/full", filepath.Join(dir, LossesFile)))
		f, err := Start(dir, Facts{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Carry(records, []float32{1}); err == nil {
			t.Errorf("%d records on a full disk are no error", len(records))
		}
		traintest.OK(t, f.Finish())
	}
}

func TestLocked(t *testing.T) {
	dir := t.TempDir()
	if _, err := (Run{Dir: dir}).Locked(); err == nil {
		t.Error("a folder without logs is no error")
	}
	f, err := Start(dir, Facts{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := os.Open(filepath.Join(dir, RecordsFile)); err != nil {
		t.Fatal(err)
	} else if err := errors.Join(lock(other), other.Close()); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no locks here")
	}
	for _, want := range []bool{true, false} {
		if locked, err := (Run{Dir: dir}).Locked(); err != nil || locked != want {
			t.Errorf("locked %v, want %v (%v)", locked, want, err)
		}
		if want {
			traintest.OK(t, f.Finish())
		}
	}
	looking, err := os.Open(filepath.Join(dir, RecordsFile)) // as a second -resume does at the same time
	if err != nil {
		t.Fatal(err)
	}
	traintest.OK(t, share(looking))
	if locked, err := (Run{Dir: dir}).Locked(); err != nil || locked {
		t.Errorf("beside one that looks: locked %v, %v", locked, err)
	}
	traintest.OK(t, looking.Close())
}
