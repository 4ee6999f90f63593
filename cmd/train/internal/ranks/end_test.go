package ranks

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mlpool/internal/must"
	"mlpool/kernels/collective/launch"
)

// TestOverdue writes to the folder of a run after the ranks have ended, which extends the time that
// the run has to end. The clock is that of the bubble.
func TestOverdue(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, c := range []struct {
		name            string
		from, to        time.Duration // it writes meanwhile
		done            time.Duration // 0: never
		overdue, locked bool
		want            time.Duration
	}{
		{"it writes nothing", 0, 0, 0, true, true, endWithin},
		{"it writes", ms(1050), ms(60050), 0, true, true, endWithin + 59*time.Second},
		{"it writes for ever", 0, 24 * time.Hour, 0, true, false, writeWithin},
		{"it ends", 0, 0, 2 * time.Second, false, false, 2 * time.Second},
		{"it writes and ends", ms(1050), ms(60050), 62 * time.Second, false, false, 62 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &Ranks{EndWithin: endWithin}
				done := make(chan struct{})
				if c.done > 0 {
					time.AfterFunc(c.done, func() { close(done) })
				}
				var writer sync.WaitGroup
				if c.to > 0 {
					writer.Go(func() {
						time.Sleep(c.from)
						defer r.Write()()
						time.Sleep(c.to - c.from)
					})
				}
				start := time.Now()
				overdue, locked := r.overdue(done)
				if took := time.Since(start); overdue != c.overdue || locked != c.locked || took < c.want || took > c.want+time.Second {
					t.Errorf("overdue %t, locked %t, after %v, want %t, %t and %v", overdue, locked, took, c.overdue, c.locked, c.want)
				}
				if locked {
					r.disk.Unlock()
				}
				writer.Wait()
			})
		})
	}
}

// TestConclude has another rank end while this one's run hangs. What notes the end may take long.
func TestConclude(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := launch.Rendezvous(t.Context(), launch.Process{Size: 1}, time.Second)
		must.OK(t, err)
		gaveUp, concluded := make(chan struct{}), false
		r := &Ranks{World: w, EndWithin: endWithin, GiveUp: sync.OnceFunc(func() { close(gaveUp) })}
		r.ConcludeBy(func(error) error {
			time.Sleep(writeWithin - time.Second)
			concluded = true
			return nil
		})
		must.OK(t, w.End(errors.New("rank 1 is gone")))
		go r.ended(nil, io.Discard)
		<-gaveUp
		if !concluded {
			t.Error("the process gives up while it notes the end")
		}
		synctest.Wait()
	})
}

func TestRanksNeedGPUs(t *testing.T) {
	r := Processes()
	r.Ready = func(launch.Process) error { return nil }
	if err := r.NeedGPU(errors.New("none")); err != nil {
		t.Errorf("alone: %v", err)
	}
	r.World = &launch.World{Process: launch.Process{Size: 2, Local: 1}}
	if err := r.NeedGPU(errors.New("none")); err == nil || !strings.HasPrefix(err.Error(), "number 1 on its host has no GPU") {
		t.Error(err)
	}
}
