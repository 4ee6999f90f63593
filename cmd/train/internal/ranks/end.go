package ranks

import (
	"errors"
	"fmt"
	"io"
	"time"

	"mlpool/internal/text"
	"mlpool/kernels/collective/launch"
)

const (
	// endWithin is how long a rank may take to end after another one has. It may never end by itself: memory
	// of a rank that is gone may be an error on the GPU, or NCCL may wait.
	endWithin = 5 * time.Second
	// writeWithin is how long it may also write its files, and then note how it ended.
	writeWithin = 10 * time.Minute
)

// ended waits until another rank has ended. It then gives this run time to return, and calls GiveUp
// if the run does not.
func (r *Ranks) ended(done <-chan struct{}, stderr io.Writer) {
	select {
	case <-done:
		return
	case <-r.World.Ended():
	}
	if r.GiveUp == nil {
		return
	}
	overdue, locked := r.overdue(done)
	if !overdue {
		return
	}
	if locked {
		defer r.disk.Unlock()
	}
	reason := r.World.Err()
	if !errors.As(reason, new(*launch.ReportedError)) {
		fmt.Fprintf(stderr, "train: %s\n", text.OneLine(reason.Error()))
	}
	if locked && r.conclude != nil {
		defer time.AfterFunc(writeWithin, r.GiveUp).Stop() // the file system may not answer
		if err := r.conclude(reason); err != nil {
			fmt.Fprintf(stderr, "train: %s\n", text.OneLine(err.Error()))
		}
	}
	r.GiveUp()
}

// overdue gives a run EndWithin to end. Time spent writing to its folder, up to writeWithin, does
// not count. overdue reports whether the run did not end in time, and whether it locked r.disk.
func (r *Ranks) overdue(done <-chan struct{}) (overdue, locked bool) {
	const tick = 20 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for idle, writing := r.EndWithin, writeWithin; ; { // what is left of each
		select {
		case <-done:
			return false, false
		case <-ticker.C:
		}
		if !r.disk.TryLock() {
			if writing -= tick; writing <= 0 {
				return true, false
			}
			continue
		}
		if idle -= tick; idle <= 0 {
			return true, true
		}
		r.disk.Unlock()
	}
}

// ConcludeBy sets the function that notes how the run ended if the process gives up.
func (r *Ranks) ConcludeBy(f func(reason error) error) {
	defer r.Write()()
	if r != nil {
		r.conclude = f
	}
}

// Conclude begins a write that notes how the run ended, until done is called. Nothing else notes it.
func (r *Ranks) Conclude() (done func()) {
	done = r.Write()
	if r != nil {
		r.conclude = nil
	}
	return done
}

// Write begins a write of a file of the run, until done is called.
func (r *Ranks) Write() (done func()) {
	if r == nil {
		return func() {}
	}
	r.disk.Lock()
	return r.disk.Unlock
}
