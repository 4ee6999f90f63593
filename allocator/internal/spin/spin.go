// Package spin has a lock for short critical sections that many threads contend for.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// A Mutex guards a few dozen instructions that many threads want. A thread that finds it held looks
// again after a pause that grows, instead of queueing as with a sync.Mutex. So a thread that has the
// lock, and the memory behind it in its cache, may take it many times in a row while the others pause.
// Many threads on one heap then have a higher throughput than with a fair lock, at the price of
// fairness; allocator/TUNING.md has the figures. If the lock stays held, waiters yield to the scheduler
// and then sleep.
type Mutex struct{ held atomic.Uint32 }

const (
	// The first pause is a third of a microsecond, the longest 20 of them: with shorter ones the lock,
	// and all that it guards, goes from core to core at every call.
	shortest = 1 << 10 // turns of an empty loop before the second look
	longest  = 1 << 16
	growth   = 8
	looks    = 4  // looks before the thread yields
	yields   = 16 // times it yields, and pauses, before it sleeps
	sleep    = 20 * time.Microsecond
)

// longestPause is longest, but on two cores or fewer a long pause only keeps the holder from running.
var longestPause = func() int {
	if runtime.GOMAXPROCS(0) <= 2 {
		return shortest
	}
	return longest
}()

func (m *Mutex) Lock() {
	if !m.held.CompareAndSwap(0, 1) {
		m.wait()
	}
}

// TryLock takes the lock if no thread holds it, and reports whether it did. It never waits.
func (m *Mutex) TryLock() bool { return m.held.CompareAndSwap(0, 1) }

func (m *Mutex) Unlock() { m.held.Store(0) }

// wait takes the lock when it becomes free.
func (m *Mutex) wait() {
	pause := shortest
	for look := 1; ; look++ {
		switch {
		case look <= looks:
			idle(pause)
			pause = min(growth*pause, longestPause)
		case look <= looks+yields:
			runtime.Gosched()
			idle(pause)
		default:
			time.Sleep(sleep)
		}
		if m.held.Load() == 0 && m.held.CompareAndSwap(0, 1) {
			return
		}
	}
}

// idle does nothing for a number of turns.
//
//go:noinline
func idle(turns int) {
	for range turns {
	}
}
