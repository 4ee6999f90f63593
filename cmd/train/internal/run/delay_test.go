//go:build unix

package run

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/cmd/train/internal/traintest"
)

// TestCheckpointIsNoDelay writes a checkpoint to a pipe that nobody reads at first: the run is not
// overdue.
func TestCheckpointIsNoDelay(t *testing.T) {
	t.Setenv(backend.AllocatorEnv, "")
	path, logDir := traintest.WriteConfig(t, "cpu", "")
	cfg, set := traintest.Loaded(t, path)
	cfg.Model.FeatDim = 128 // more weights than a pipe holds
	b, err := backend.Open(cfg, new(ranks.Ranks).NeedGPU, io.Discard)
	traintest.OK(t, err)
	s := prepared(t, cfg, b, set)
	traintest.OK(t, s.begin())
	pipe := filepath.Join(traintest.Latest(t, logDir), rundir.WeightsFile+".tmp")
	traintest.OK(t, syscall.Mkfifo(pipe, 0o600))
	r := new(ranks.Ranks)
	s.runners[0].ranks = r
	saved := make(chan error, 1)
	go func() { saved <- s.runners[0].checkpoint() }()
	reader, err := os.Open(pipe) // waits for the writer
	traintest.OK(t, err)
	if !r.Writing() {
		t.Error("nothing is written")
	}
	if _, err := io.Copy(io.Discard, reader); err != nil {
		t.Error(err)
	}
	traintest.OK(t, reader.Close())
	if err := <-saved; err == nil { // a pipe cannot be synced to the disk
		t.Error("there is a checkpoint in a pipe")
	}
	if r.Writing() {
		t.Error("the checkpoint is written for ever")
	}
	if err := errors.Join(s.finish(time.Now(), nil), s.close(nil)); err != nil {
		t.Error(err)
	}
}
