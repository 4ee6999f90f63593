package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/exit"
	"mlpool/cmd/train/internal/traintest"
)

// TestKeyAtFault names the line and the key of a value that does not work, whichever part finds
// out.
func TestKeyAtFault(t *testing.T) {
	dir := t.TempDir()
	file, empty := filepath.Join(dir, "file"), filepath.Join(dir, "empty")
	traintest.Write(t, file, "")
	traintest.OK(t, os.Mkdir(empty, 0o777))
	bad := traintest.DataDir(t)
	traintest.Write(t, filepath.Join(bad, "t10k-labels-idx1-ubyte"), "x")
	for _, c := range []struct{ text, want string }{
		{"[allocator]\nsegment_bytes = 3", ":4: allocator.segment_bytes: is 3, want 0 or a power of two"},
		{"[allocator]\nsegments = 'malloc'\nsegment_bytes = 70368744177664", ":5: allocator.segment_bytes: the run needs at least "},
		{"[allocator]\nsegment_bytes = 140737488355328", ":4: allocator.segment_bytes: is 140737488355328, want"},
		{"[allocator]\nmax_segment_bytes = 4096", ":4: allocator.max_segment_bytes: is 4096, less than"},
		{"[allocator]\npreallocate = 4096\nmax_bytes = 10", ":4: allocator.preallocate: is 4096, more than"},
		{"[allocator]\npreallocate = 67108864\nmax_fraction = 1e-5", ":4: allocator.preallocate: "},
		{"[allocator]\nsegments = 'virtual'\nmax_bytes = 100", ":4: allocator.segments: "},
		{fmt.Sprintf("[allocator]\ntrace = '%s/none/x.csv'", dir), ":4: allocator.trace: open "},
		{fmt.Sprintf("[data]\ndata_dir = '%s/none'", dir), ":4: data.data_dir: stat "},
		{fmt.Sprintf("[data]\ndata_dir = '%s'", empty), ":4: data.data_dir: " + empty + ": no train-images-idx3-ubyte or "},
		{fmt.Sprintf("[data]\ndata_dir = '%s'", file), ":4: data.data_dir: " + file + ": is a file"},
		{fmt.Sprintf("[data]\ndata_dir = '%s'", bad), ":4: data.data_dir: " + bad + "/t10k-labels-idx1-ubyte: labels: truncated: 1 of 8 bytes"},
		{fmt.Sprintf("[log]\nlog_dir = '%s'", file), ":4: log.log_dir: "},
		{fmt.Sprintf("[log]\nlog_dir = '%s/x'", file), ":4: log.log_dir: "},
	} {
		for _, kind := range []string{backend.CustomPool, backend.PlannedPool} {
			t.Setenv(backend.AllocatorEnv, kind)
			text := "train.device = 'cpu'\nmodel.feat_dim = 2\n" + c.text + "\n"
			if !strings.Contains(text, "data_dir") {
				text += fmt.Sprintf("[data]\ndata_dir = '%s'\n", traintest.DataDir(t))
			}
			if !strings.Contains(text, "log_dir") {
				text += "[log]\nlog_dir = ''\n"
			}
			path := filepath.Join(t.TempDir(), "c.toml")
			traintest.Write(t, path, text)
			code, _, stderr := train(path)
			if code != exit.Failure || !strings.HasPrefix(stderr, "train: "+path+c.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s: exit code %d, got %s, want %s", kind, code, stderr, path+c.want)
			}
		}
	}
}

// TestTraceAtFault removes the folder of the trace during the training.
func TestTraceAtFault(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "traces")
	traintest.OK(t, os.Mkdir(dir, 0o777))
	path, _ := traintest.WriteConfig(t, "cpu", fmt.Sprintf("[allocator]\ntrace = '%s/x.csv'\n", dir))
	stdout := &traintest.CancelAfter{Text: "epoch 1/3", Cancel: func() { os.Remove(dir) }}
	var stderr strings.Builder
	code := runProcess(context.Background(), []string{path}, stdout, &stderr)
	if want := fmt.Sprintf("train: %s:14: allocator.trace: open %s/x.csv: no such file or directory\n", path, dir); code != exit.Failure || stderr.String() != want {
		t.Errorf("exit code %d, got %s, want %s", code, &stderr, want)
	}
}
