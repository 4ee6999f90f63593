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
	// endWithin is how long a rank takes to end after another one has, at most. Copy engines that
	// wait for a rank cannot be woken, and so neither can who waits for them.
	endWithin = 5 * time.Second
	// writeWithin is how long it may write to the folder of the run meanwhile.
	writeWithin = 10 * time.Minute
)

// ended gives a run whose ranks have ended some time to end itself.
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
		defer r.Disk.Unlock()
	}
	reason := r.World.Err()
	if !errors.As(reason, new(*launch.ReportedError)) {
		fmt.Fprintf(stderr, "train: %s\n", text.OneLine(reason.Error()))
	}
	if locked && r.conclude != nil {
		defer time.AfterFunc(r.EndWithin, r.GiveUp).Stop() // the file system may not answer
		if err := r.conclude(reason); err != nil {
			fmt.Fprintf(stderr, "train: %s\n", text.OneLine(err.Error()))
		}
	}
	r.GiveUp()
}

// overdue gives a run endWithin to end, and up to writeWithin to write to its folder. It reports
// whether the run is overdue, and whether overdue locked r.disk.
func (r *Ranks) overdue(done <-chan struct{}) (overdue, locked bool) {
	const looks = 50
	every := time.NewTicker(r.EndWithin / looks)
	defer every.Stop()
	writing := time.Duration(0)
	for idle := 0; ; {
		select {
		case <-done:
			return false, false
		case <-every.C:
		}
		if r.Disk.TryLock() {
			if idle++; idle == looks {
				return true, true
			}
			r.Disk.Unlock()
		} else if writing += r.EndWithin / looks; writing >= writeWithin {
			return true, false
		}
	}
}

// ConcludeBy has f note how the run ended, where the process gives up.
func (r *Ranks) ConcludeBy(f func(reason error) error) {
	defer r.Write()()
	if r != nil {
		r.conclude = f
	}
}

// Write begins what is written to the folder of the run, until done is called.
func (r *Ranks) Write() (done func()) {
	if r == nil {
		return func() {}
	}
	r.Disk.Lock()
	return r.Disk.Unlock
}
