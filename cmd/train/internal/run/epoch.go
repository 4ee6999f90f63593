package run

import (
	"context"
	"fmt"
	"time"

	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/compare"
	"mlpool/cmd/train/internal/recording"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/data"
	"mlpool/kernels"
	"mlpool/kernels/device"
	"mlpool/model"
)

// verboseEvery is the number of steps between two lines of a verbose run.
const verboseEvery = 100

// A graph holds up to graphSteps steps, so that its launch costs little per step, and about
// graphNodes kernels, since capturing takes time. The last graph also has the validation. A step of
// L hidden layers launches 2L+1 kernels fused (2L+3 if a large batch is gathered and its last dy
// transposed) and 6L+7 unfused; 3L+4 is the estimate in both cases.
const (
	graphSteps = 100
	graphNodes = 1 << 13
)

// prepare makes the runner ready to train.
func (r *runner) prepare(b *backend.Backend, set data.Dataset, verbose func(line string)) error {
	cfg := r.cfg
	eager, err := r.own(r.newAllocator(b, cfg))
	if err != nil {
		return err
	}
	r.device = device.New(b.Queue, eager, cfg.Train.Fuse)
	if r.ranks.Parallel() {
		if err := r.device.SetCollective(r.ranks.Comm); err != nil {
			return err
		}
	}
	opt := model.Options{
		BatchSize:     cfg.Train.Bsz,
		EvalBatchSize: max(cfg.Train.Bsz, backend.EvalBatchSize),
		Rate:          cfg.Train.LearningRate,
		Order:         func(epoch int) []int32 { return data.Order(set.Train.Len(), cfg.Train.Seed, epoch) },
		Start:         r.earlier.start(),
	}
	if r.ranks.Parallel() {
		opt.Rank, opt.Ranks = r.ranks.World.Rank, r.ranks.World.Size
	}
	if cfg.Train.Verbose {
		opt.VerboseEvery = verboseEvery
		opt.Verbose = func(step int, loss float32) {
			epoch, _ := r.place()
			verbose(fmt.Sprintf("%s: epoch %d, step %d: loss %.4g\n", r, epoch+1, step, loss))
		}
	}
	if cfg.Train.Nvtx {
		r.device.Annotate(kernels.PushRange, kernels.PopRange)
	}
	if b.Graph {
		captured, err := r.own(b.NewCaptureAllocator(r.Kind, cfg))
		if err != nil {
			return err
		}
		r.device.CaptureFrom(captured)
		opt.ChunkSteps = max(1, min(graphSteps, graphNodes/(3*cfg.Model.NumLayers+4)))
	}
	if r.trainer, err = model.NewTrainer(r.device, model.Set(set.Train), model.Set(set.Test), r.earlier.weights(cfg, set), opt); err != nil {
		return backend.AtLimit(cfg, err)
	}
	r.recorder = recording.Recorder{Device: r.device, Allocator: eager, Repeat: r.trainer.Repeat, Graphs: b.Graph}
	return nil
}

// epoch trains for one epoch, or for the rest of one that an earlier run began. It returns the
// record and the losses of the steps that it did.
func (r *runner) epoch(ctx context.Context) (rundir.Record, []float32, error) {
	_, done := r.place()
	before, spentBefore := r.stats()
	var e model.Epoch
	train := func() (err error) {
		e, err = r.trainer.Epoch(ctx)
		return err
	}
	var err error
	if r.watch && len(r.records) == 0 && !r.recorder.Graphs { // a trace asks the driver, which a capture forbids
		err = r.recorder.Epoch(train)
	} else {
		err = train()
	}
	if err != nil {
		return rundir.Record{}, nil, backend.AtLimit(r.cfg, err)
	}
	after, spent := r.stats()
	rec := rundir.Record{
		Allocator: r.String(), Segments: r.segments(), Epoch: e.Number, Steps: len(e.Losses), Interrupted: e.Interrupted,
		Warmup: len(r.records) == 0, ResumedAfter: done, Diverged: e.Diverged(),
		Loss: rundir.Nats(e.Loss()), ValLoss: rundir.Nats(e.ValLoss), ValAcc: e.ValAcc,
		TrainMS: milliseconds(e.Train), ValMS: milliseconds(e.Validation),
		AllReduceUS: 1000 * milliseconds(e.AllReduce), ExposedUS: 1000 * milliseconds(e.Exposed),
		Allocs:        after.Allocs - before.Allocs,
		DriverCalls:   after.DriverCalls - before.DriverCalls,
		DriverMallocs: after.DriverMallocs - before.DriverMallocs,
		HostWaits:     after.HostWaits - before.HostWaits,
		Refused:       after.Refused - before.Refused,
		Mappings:      after.Mappings - before.Mappings,
		Stitches:      after.Stitches - before.Stitches,
		AllocatorMS:   milliseconds(spent - spentBefore),
		PeakAllocated: after.PeakAllocated,
		PeakReserved:  after.PeakReserved,
	}
	r.records, r.unsaved = append(r.records, rec), true
	losses := e.Losses[done:]
	r.losses = append(r.losses, losses...)
	return rec, losses, nil
}

// log logs an epoch in the runner's folder.
func (r *runner) log(rec rundir.Record, losses []float32) error {
	defer r.ranks.Write()()
	r.facts.Epochs = r.earlier.start().Epoch + len(compare.Whole(r.records))
	if r.folder == nil {
		return nil
	}
	return r.folder.Add(rec, losses)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
