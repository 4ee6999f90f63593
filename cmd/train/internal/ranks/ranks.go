// Package ranks joins processes that train one model together, each on a GPU.
//
// All ranks train the same config with the same program and end after the same step, or end with an
// error that says which rank differs. When a rank is gone, the others end within seconds, and rank
// 0 notes why in the folder of the run. A nil [Ranks] trains alone.
package ranks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"mlpool/cmd/train/internal/exit"
	"mlpool/configs"
	"mlpool/kernels/collective"
	"mlpool/kernels/collective/gpu"
	"mlpool/kernels/collective/launch"
	"mlpool/kernels/nccl"
)

// Ranks is one of several processes that train together, each on a GPU. A nil *Ranks is a process
// that trains alone. Set the exported fields before use.
type Ranks struct {
	Env     func(string) string
	Silence time.Duration // after which a rank counts as gone
	// Ready is called before the first use of the GPU. Connect returns the rank's part in the
	// collectives, which is aborted when the ranks end.
	Ready   func(launch.Process) error
	Connect func(context.Context, *launch.World) (collective.Collective, error)
	// GiveUp ends this process if its run has not returned EndWithin after another rank ended. If it
	// is nil, the process never gives up.
	GiveUp    func()
	EndWithin time.Duration

	// disk is held during writes of the run's files, so that GiveUp does not interrupt one. It also
	// guards conclude, which notes in the folder how the run ended; nil: there is nothing to note.
	disk     sync.Mutex
	conclude func(reason error) error

	World     *launch.World
	Comm      collective.Collective
	Transport string // of tensors: "NCCL 2.27.3"
	// Stop says that a rank was interrupted: all ranks end after the same epoch.
	Stop bool
}

// Processes returns the ranks of a launch, each a process with a GPU.
func Processes() *Ranks {
	r := &Ranks{Env: os.Getenv, Silence: launch.Silence, Ready: launch.Process.TakeGPU, GiveUp: func() { os.Exit(exit.Failure) }, EndWithin: endWithin}
	r.Connect = func(ctx context.Context, w *launch.World) (collective.Collective, error) {
		version, err := nccl.Version()
		if err != nil {
			return nil, err
		}
		r.Transport = "NCCL " + nccl.VersionName(version)
		if err := w.Agree("versions", []launch.Fact{{Key: "NCCL", Value: nccl.VersionName(version)}}, "install the same on all hosts"); err != nil {
			return nil, err
		}
		comm, err := gpu.Connect(ctx, w, w.Rank, w.Size, w.Within)
		if err != nil {
			return nil, err // an interface must not hold a nil *Comm
		}
		return comm, nil
	}
	return r
}

// Parallel reports whether there are other ranks.
func (r *Ranks) Parallel() bool { return r != nil && r.World != nil }

// Size returns the number of ranks.
func (r *Ranks) Size() int {
	if !r.Parallel() {
		return 1
	}
	return r.World.Size
}

// Together meets the other ranks and calls f. What f writes to stderr is discarded except on rank 0.
// If all ranks end at the same step (an interruption or divergence), only rank 0 prints it.
func (r *Ranks) Together(ctx context.Context, process launch.Process, stderr io.Writer, f func(stderr io.Writer) error) (err error) {
	if r.World, err = launch.Rendezvous(ctx, process, r.Silence); err != nil {
		if exit.IsInterrupted(err) {
			err = OfRank(process, exit.ErrInterrupted)
		}
		return err
	}
	if warning := r.World.Warning(); warning != "" && process.Rank == 0 {
		fmt.Fprintf(stderr, "train: %s\n", warning)
	}
	done := make(chan struct{})
	go r.ended(done, stderr)
	if process.Rank != 0 {
		stderr = io.Discard
	}
	err = f(stderr)
	close(done) // to leave takes a bounded time
	if r.allEnd(err) {
		err = errors.Join(err, r.World.Leave(nil))
		if process.Rank != 0 {
			err = errors.Join(err, &launch.ReportedError{Reason: "as on rank 0"})
		}
		return err
	}
	left := r.World.Leave(err)
	if left != nil && ctx.Err() != nil && !exit.IsInterrupted(left) {
		left = errors.Join(left, exit.ErrInterrupted)
	}
	return left
}

// Alone returns why to ignore a launcher's variables: only one is set, perhaps by accident, or
// train.device, which device returns, is the CPU. It returns nil if none is set, or if they count.
func (r *Ranks) Alone(p launch.Process, envErr error, device func() (string, error)) error {
	half := new(launch.HalfError)
	switch {
	case errors.As(envErr, &half) && len(half.Set) == 1:
		return envErr
	case p.Size == 1 && envErr == nil || r.Ready == nil:
		return nil
	}
	if name, err := device(); err != nil || name != "cpu" { // the next reader of the config reports err
		return nil
	}
	return cmp.Or(envErr, fmt.Errorf(`train.device is "cpu", and NCCL moves data between GPUs: this was started as rank %d of %d`, p.Rank, p.Size))
}

// OfRank names the rank in an error that the rank prints itself, since it has not met rank 0.
func OfRank(p launch.Process, err error) error {
	if p.Size <= 1 && p.Rank <= 0 {
		return err
	}
	return fmt.Errorf("rank %d: %w", p.Rank, err)
}

// allEnd reports whether err ends all ranks at the same step.
func (r *Ranks) allEnd(err error) bool {
	return r.Stop && exit.IsInterrupted(err) || exit.IsDiverged(err)
}

// Begin chooses the rank's GPU before any is used. It returns an error if several ranks cannot do
// what cfg asks for.
func (r *Ranks) Begin(cfg configs.Config) error {
	if !r.Parallel() {
		return nil
	}
	if cfg.Train.Profile > 0 {
		return cfg.Errorf("train.profile", "is for one GPU, and this is one of %d ranks: leave it out", r.World.Size)
	}
	if r.Ready == nil {
		return nil
	}
	return r.Ready(r.World.Process)
}

// NeedGPU returns the error of a rank that has no GPU; nil: it needs none.
func (r *Ranks) NeedGPU(err error) error {
	if !r.Parallel() || r.Ready == nil {
		return nil
	}
	return fmt.Errorf("number %d on its host has no GPU, and NCCL moves data between GPUs: start as many ranks as there are GPUs: %w", r.World.Local, err)
}

// ownKeys may differ between ranks.
var ownKeys = []string{"data.data_dir", "log.log_dir", "allocator.trace"}

// Join connects the ranks. It returns an error if facts or cfg differ between them, or if two share
// the GPU with the given uuid; empty: the CPU. On other ranks than 0 it empties log_dir and trace in
// cfg, since only rank 0 writes them.
func (r *Ranks) Join(ctx context.Context, cfg *configs.Config, facts []launch.Fact, uuid string) (err error) {
	section := ""
	for line := range strings.Lines(string(cfg.TOML())) {
		key, value, isKey := strings.Cut(strings.TrimSpace(line), " = ")
		if !isKey {
			section = strings.Trim(key, "[]")
		} else if key = section + "." + key; !slices.Contains(ownKeys, key) {
			facts = append(facts, launch.Fact{Key: key, Value: value})
		}
	}
	if err := r.World.Agree("config", facts, "start all ranks with the same program and config"); err != nil {
		return err
	}
	if uuid != "" {
		if err := r.World.AllDistinct("GPU", uuid, "start one rank for each GPU, with the same CUDA_VISIBLE_DEVICES for all on a host"); err != nil {
			return err
		}
	}
	if r.World.Rank != 0 {
		cfg.Log.LogDir, cfg.Allocator.Trace = "", ""
	}
	r.Comm, err = r.Connect(ctx, r.World)
	return err
}

// Close frees what Join took, after a run that returned err.
func (r *Ranks) Close(err error) error {
	if r == nil || r.Comm == nil {
		return nil
	}
	if err != nil && !r.allEnd(err) { // Close would wait for the others, which know nothing yet
		r.World.End(err)
		r.Comm.Abort(r.World.Err())
	}
	return r.Comm.Close()
}

// Agree returns an error on all ranks if value differs between them.
func (r *Ranks) Agree(key, value string) error {
	if !r.Parallel() {
		return nil
	}
	return r.World.Agree(key, []launch.Fact{{Key: key, Value: value}}, "the hosts must have the same")
}

// Same returns an error on all ranks unless all have the same weights, bit for bit, after an epoch.
// It tells all ranks if any was interrupted.
func (r *Ranks) Same(epoch int, checksum func() (uint64, error), interrupted bool) error {
	if !r.Parallel() {
		return nil
	}
	sum, err := checksum()
	if err != nil {
		return err
	}
	type state struct {
		Sum         uint64
		Interrupted bool
	}
	mine, err := json.Marshal(state{sum, interrupted})
	if err != nil {
		return err
	}
	answer, err := r.World.Exchange(fmt.Sprintf("end of epoch %d", epoch), mine, func(all [][]byte) ([]byte, error) {
		var first, any state
		for rank, text := range all {
			if err := json.Unmarshal(text, &any); err != nil {
				return nil, fmt.Errorf("rank %d: %w", rank, err)
			}
			if rank == 0 {
				first = any
			}
			if any.Sum != first.Sum {
				return nil, fmt.Errorf("after epoch %d rank %d has other weights than rank 0, with checksums %016x and %016x: the checkpoint before is good", epoch, rank, any.Sum, first.Sum)
			}
			first.Interrupted = first.Interrupted || any.Interrupted
		}
		return json.Marshal(first)
	})
	if err != nil {
		return err
	}
	var all state
	err = json.Unmarshal(answer, &all)
	r.Stop = all.Interrupted
	return err
}

// Batches describes batches of bsz rows for a header.
func (r *Ranks) Batches(bsz int) string {
	if !r.Parallel() {
		return fmt.Sprintf("batches of %d", bsz)
	}
	return fmt.Sprintf("batches of %d on each of %d ranks, %d in all, over %s", bsz, r.World.Size, bsz*r.World.Size, r.Transport)
}
