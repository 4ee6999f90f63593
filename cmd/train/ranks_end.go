package main

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
func (r *ranks) ended(done <-chan struct{}, stderr io.Writer) {
	select {
	case <-done:
		return
	case <-r.world.Ended():
	}
	if r.giveUp == nil {
		return
	}
	overdue, locked := r.overdue(done)
	if !overdue {
		return
	}
	if locked {
		defer r.disk.Unlock()
	}
	reason := r.world.Err()
	if !errors.As(reason, new(*launch.ReportedError)) {
		fmt.Fprintf(stderr, "train: %s\n", text.OneLine(reason.Error()))
	}
	if locked && r.conclude != nil {
		defer time.AfterFunc(r.endWithin, r.giveUp).Stop() // the file system may not answer
		if err := r.conclude(reason); err != nil {
			fmt.Fprintf(stderr, "train: %s\n", text.OneLine(err.Error()))
		}
	}
	r.giveUp()
}

// overdue gives a run endWithin to end, and up to writeWithin to write to its folder. It reports
// whether the run is overdue, and whether overdue locked r.disk.
func (r *ranks) overdue(done <-chan struct{}) (overdue, locked bool) {
	const looks = 50
	every := time.NewTicker(r.endWithin / looks)
	defer every.Stop()
	writing := time.Duration(0)
	for idle := 0; ; {
		select {
		case <-done:
			return false, false
		case <-every.C:
		}
		if r.disk.TryLock() {
			if idle++; idle == looks {
				return true, true
			}
			r.disk.Unlock()
		} else if writing += r.endWithin / looks; writing >= writeWithin {
			return true, false
		}
	}
}

// concludeBy has f note how the run ended, where the process gives up.
func (r *ranks) concludeBy(f func(reason error) error) {
	defer r.write()()
	if r != nil {
		r.conclude = f
	}
}

// write begins what is written to the folder of the run, until done is called.
func (r *ranks) write() (done func()) {
	if r == nil {
		return func() {}
	}
	r.disk.Lock()
	return r.disk.Unlock
}
