package run

import (
	"bytes"
	"compress/gzip"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mlpool/allocator/observe"
	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/traintest"
	"mlpool/configs"
	"mlpool/data"
	"mlpool/internal/must"
	"mlpool/kernels/device"
	"mlpool/kernels/kerneltest"
)

var writeTrainings = flag.Bool("record", false, "write the traces of the trainings, rather than compare with those that are there")

// trainingsFolder has the traces that tools/traces/trainer.sh writes.
const trainingsFolder = "../../../../tools/traces/testdata/trainer"

// trainings are the default training, and others unlike it.
var trainings = []struct {
	features, batch int
	fuse            bool
}{

	{784, 64, true}, {784, 64, false},
	{784, 1024, true}, {784, 1024, false},
	{2048, 64, true}, {2048, 64, false},
	{333, 64, true}, {333, 61, false},
}

// idleQueue returns a queue that takes the operations of a training and does none of them. What a
// training asks of its allocator depends on shapes alone, so the requests are those
// of any other queue that wants no gradient transposed: see TestIdleQueue.
func idleQueue() device.Queue {
	return device.Observe(new(device.HostQueue), func(device.Launch, func() error) error { return nil })
}

// prepared returns a session on b that is ready to train on the pool.
func prepared(t *testing.T, cfg configs.Config, b *backend.Backend, set data.Dataset) *session {
	t.Helper()
	s := &session{cfg: cfg, bound: cfg.Train.NumEpochs, stdout: io.Discard, stderr: io.Discard}
	s.backend, s.among = b, []backend.Subject{{Kind: backend.CustomPool}}
	must.OK(t, s.prepare(set))
	return s
}

// traceOf trains and returns the trace.
func traceOf(t *testing.T, cfg configs.Config, b *backend.Backend, set data.Dataset) *observe.Requests {
	t.Helper()
	cfg.Allocator.Trace = filepath.Join(t.TempDir(), "trace.csv")
	cfg.Log.LogDir = ""
	s := prepared(t, cfg, b, set)
	must.OK(t, s.train(context.Background()))
	if n := s.runners[0].trace.Dropped(); n > 0 {
		t.Errorf("the trace lacks its first %d calls", n)
	}
	must.OK(t, s.close(nil))
	trace, err := observe.ReadFile(cfg.Allocator.Trace, observe.MostEvents)
	must.OK(t, err)
	return trace
}

// TestTrainings trains two epochs on data of MNIST's shape, and compares the traces with those that
// tests of the pool and allocbench use, or writes them.
func TestTrainings(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	set := traintest.Blank(60_000, 10_000, 784)
	for _, c := range trainings {
		name := fmt.Sprintf("%dx%d", c.features, c.batch)
		if c.fuse {
			name += "-fused"
		}
		t.Run(name, func(t *testing.T) {
			cfg := configs.Default()
			cfg.Model.FeatDim, cfg.Train.Bsz, cfg.Train.Fuse, cfg.Train.NumEpochs = c.features, c.batch, c.fuse, 2
			got := traceOf(t, cfg, &backend.Backend{Name: "idle", Queue: idleQueue()}, set)
			path := filepath.Join(trainingsFolder, name+".csv.gz")
			if *writeTrainings {
				writeTraining(t, path, fmt.Sprintf("feat_dim = %d, bsz = %d, fuse = %v", c.features, c.batch, c.fuse), got)
			}
			want, err := observe.ReadFile(path, observe.MostEvents)
			must.OK(t, err)
			if !slices.Equal(got.Events, want.Events) {
				t.Errorf("the %d calls of the training are not the %d of %s: run tools/traces/trainer.sh", len(got.Events), len(want.Events), path)
			}
		})
	}
}

// writeTraining writes a trace as tools/traces/record.py does, without the column Later: on one
// stream all memory is free at once.
func writeTraining(t *testing.T, path, job string, trace *observe.Requests) {
	t.Helper()
	var text bytes.Buffer
	z, err := gzip.NewWriterLevel(&text, gzip.BestCompression)
	must.OK(t, err)
	fmt.Fprintf(z, "# job: %s; 4 hidden layers, 2 epochs of 60000 training and 10000 validation images\n", job)
	fmt.Fprintf(z, "# command: tools/traces/trainer.sh\n# date: %s\n", time.Now().UTC().Format(time.DateOnly))
	fmt.Fprint(z, "# backend: none, which asks for what the CPU and CUDA ask for; eager executor\n")
	fmt.Fprintf(z, "# peak_requested: %d\n# calls: %d\n", trace.Peak, len(trace.Events))
	fmt.Fprint(z, "Thread,Time,Action,Pointer,Size,Stream\n")
	for _, e := range trace.Events {
		action := "allocate"
		if e.Free {
			action = "free"
		}
		fmt.Fprintf(z, "0,0,%s,%#x,%d,%d\n", action, e.Slot+1, e.Bytes, e.Stream)
	}
	must.OK(t, z.Close()) // with the error of the first write that failed
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o777))
	traintest.Write(t, path, text.String())
}

// TestIdleQueue compares the requests of the idle queue with those of queues that compute.
func TestIdleQueue(t *testing.T) {
	for _, name := range []string{"cpu", "cuda"} {
		t.Run(name, func(t *testing.T) {
			if name == "cuda" {
				kerneltest.RequireGPU(t)
			}
			for _, batch := range []int{16, 300} {
				for _, fuse := range []bool{true, false} {
					cfg := configs.Default()
					cfg.Model.FeatDim, cfg.Train.NumEpochs, cfg.Train.Bsz, cfg.Train.Fuse, cfg.Train.Device = 21, 2, batch, fuse, name
					set := traintest.Blank(650, 70, 16)
					b, err := backend.Open(cfg, new(ranks.Ranks).NeedGPU, io.Discard)
					must.OK(t, err)
					computed := traceOf(t, cfg, b, set)
					idle := traceOf(t, cfg, &backend.Backend{Name: "idle", Queue: idleQueue()}, set)
					if len(idle.Events) == 0 || !slices.Equal(idle.Events, computed.Events) {
						t.Errorf("batches of %d, fuse %v: %d calls, and %d of a queue that does nothing", batch, fuse, len(computed.Events), len(idle.Events))
					}
				}
			}
		})
	}
}
