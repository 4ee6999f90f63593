package ranks

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"mlpool/internal/text"
	"mlpool/kernels/collective/launch"
)

const (
	// endWithin is how long a rank may take to end after another one has. It may never end by itself: memory
	// of a rank that is gone may be an error on the GPU, or NCCL may wait.
	endWithin = 5 * time.Second
	// writeWithin is how long it may also write to the folder of the run.
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
		defer r.disk.unlock()
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

// overdue gives a run EndWithin to end. Time spent writing to its folder, up to writeWithin, does
// not count. overdue reports whether the run did not end in time, and whether it locked r.disk.
func (r *Ranks) overdue(done <-chan struct{}) (overdue, locked bool) {
	idle, writing := r.EndWithin, writeWithin // what is left of each
	for {
		busy, changed := r.disk.state()
		left := &idle
		if busy {
			left = &writing
		}
		start := time.Now()
		timer := time.NewTimer(*left)
		select {
		case <-done:
			timer.Stop()
			return false, false
		case <-changed:
			timer.Stop()
		case <-timer.C:
			if busy {
				return true, false
			}
			if r.disk.tryLock() {
				return true, true
			}
		}
		*left -= time.Since(start)
	}
}

// ConcludeBy sets the function that notes how the run ended if the process gives up.
func (r *Ranks) ConcludeBy(f func(reason error) error) {
	defer r.Write()()
	if r != nil {
		r.conclude = f
	}
}

// Write begins a write to the folder of the run, until done is called.
func (r *Ranks) Write() (done func()) {
	if r == nil {
		return func() {}
	}
	r.disk.lock()
	return r.disk.unlock
}

// Writing reports whether the run is writing to its folder.
func (r *Ranks) Writing() bool {
	busy, _ := r.disk.state()
	return busy
}

// A watchedLock is a mutex whose state others can wait for. The zero watchedLock is unlocked.
type watchedLock struct {
	mu      sync.Mutex
	locked  bool
	changed chan struct{} // closed at the next change; nil: nobody asked for it
}

// state reports whether l is locked. changed is closed when that changes.
func (l *watchedLock) state() (locked bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.locked, l.changed
}

func (l *watchedLock) lock() {
	for !l.tryLock() {
		if locked, changed := l.state(); locked {
			<-changed
		}
	}
}

func (l *watchedLock) tryLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locked {
		return false
	}
	l.set(true)
	return true
}

func (l *watchedLock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set(false)
}

func (l *watchedLock) set(locked bool) {
	l.locked = locked
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
