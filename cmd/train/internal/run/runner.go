package run

import (
	"errors"
	"slices"
	"strings"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/observe"
	"mlpool/cmd/train/internal/backend"
	"mlpool/cmd/train/internal/checkpoint"
	"mlpool/cmd/train/internal/ranks"
	"mlpool/cmd/train/internal/recording"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/kernels/device"
	"mlpool/model"
)

// runner trains one model on one subject. With the executor "graph" a second allocator serves what
// is captured.
type runner struct {
	backend.Subject
	cfg     configs.Config // with the subject's strategy
	allocs  []*allocator.Timed
	device  *device.Device
	trainer *model.Trainer[device.Tensor]
	folder  *rundir.Folder // of the run; nil: none
	facts   rundir.Facts
	trace   *allocator.Trace // nil: none
	kernels []observe.Work   // for the trace
	records []rundir.Record
	losses  []float32 // of each step

	earlier  *Earlier     // the run to resume; nil: none
	settings []setting    // for checkpoints
	unsaved  bool         // no checkpoint has the current weights
	saved    bool         // there is a checkpoint of the run
	best     best         // of a run by itself
	good     good         // with several ranks
	ranks    *ranks.Ranks // nil: one GPU

	watch    bool // record the first epoch, for a report
	recorder recording.Recorder
}

// own wraps a in an [allocator.Timed], which r.close closes.
func (r *runner) own(a allocator.Allocator, err error) (*allocator.Timed, error) {
	if err != nil {
		return nil, err
	}
	t := allocator.NewTimed(a)
	r.allocs = append(r.allocs, t)
	return t, nil
}

// segments returns the kind of segments of the runner's pools: virtual, malloc, or "virtual and
// malloc" if the allocator for captures has another kind; empty: there is no pool.
func (r *runner) segments() string {
	var kinds []string
	for _, a := range r.allocs {
		p, ok := allocator.As[interface{ Segments() string }](a)
		if ok && !slices.Contains(kinds, p.Segments()) {
			kinds = append(kinds, p.Segments())
		}
	}
	return strings.Join(kinds, " and ")
}

// stats adds up those statistics that a record has, over the runner's allocators, and the time in them.
func (r *runner) stats() (sum allocator.Stats, spent time.Duration) {
	for _, a := range r.allocs {
		st := a.Stats()
		sum.Allocs += st.Allocs
		sum.DriverCalls += st.DriverCalls
		sum.DriverMallocs += st.DriverMallocs
		sum.HostWaits += st.HostWaits
		sum.Refused += st.Refused
		sum.Mappings += st.Mappings
		sum.Stitches += st.Stitches
		sum.PeakAllocated += st.PeakAllocated
		sum.PeakReserved += st.PeakReserved
		spent += a.Time()
	}
	return sum, spent
}

// held adds up by tag what the runner's allocators have handed out.
func (r *runner) held() []allocator.TagBytes {
	var blocks []allocator.LiveBlock
	for _, a := range r.allocs {
		blocks = append(blocks, a.Live()...)
	}
	return allocator.ByTag(blocks)
}

func (r *runner) close() error {
	var errs []error
	if r.trainer != nil {
		errs = append(errs, r.trainer.Close())
	}
	if r.device != nil {
		errs = append(errs, r.device.CloseCollective())
	}
	for _, a := range r.allocs {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}

// place returns the number of complete epochs, and of steps of the next.
func (r *runner) place() (epoch, step int) {
	if len(r.records) == 0 {
		start := r.earlier.start()
		return start.Epoch, len(start.Losses)
	}
	if at := last(r.records); at.Interrupted {
		return at.Epoch - 1, at.Steps
	}
	return last(r.records).Epoch, 0
}

// diverged reports whether the last epoch diverged.
func (r *runner) diverged() bool { return len(r.records) > 0 && last(r.records).Diverged > 0 }

// best is the state after the epoch with the lowest validation loss.
type best struct {
	checkpoint.Checkpoint // no weights: there is none yet
	loss                  rundir.Nats
	unsaved               bool
}

// good is the state after the last epoch whose weights all ranks agreed on. It is saved if a rank fails.
type good struct {
	checkpoint.Checkpoint // no weights: there is none, or it is saved
	costly                bool
}

func last[E any](s []E) E { return s[len(s)-1] }
