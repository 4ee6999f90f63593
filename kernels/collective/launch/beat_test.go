package launch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// wire is a connection that keeps the last text written to it.
type wire struct {
	net.Conn
	last string
}

func (c *wire) Write(text []byte) (int, error) {
	c.last = string(text)
	return c.Conn.Write(text)
}

// nobody is not a rank.
const nobody = -1

// piped returns ranks that have met over pipes, so that synctest controls the time. Of a stopped rank
// only the kernel runs, which still receives.
func piped(size, stopped int, within time.Duration) []*World {
	worlds := make([]*World, size)
	for rank := range worlds {
		worlds[rank] = &World{Process: Process{Rank: rank, Size: size}, ended: make(chan struct{})}
		if rank == 0 {
			continue
		}
		here, there := net.Pipe()
		for _, end := range []struct {
			of   *World
			rank int
			conn net.Conn
		}{{worlds[0], rank, here}, {worlds[rank], 0, there}} {
			p := newPeer(end.rank, &wire{Conn: end.conn})
			p.process = fmt.Sprintf("process %d on gpu%d", 100+end.rank, end.rank)
			if err := p.seal(secret, nil, nil, end.rank == 0); err != nil {
				panic(err)
			}
			end.of.peers = append(end.of.peers, p)
		}
	}
	for rank, w := range worlds {
		if rank != stopped {
			w.start(within)
			continue
		}
		for _, p := range w.peers {
			go io.Copy(io.Discard, p.conn)
		}
	}
	return worlds
}

// TestBeats wants a stopped rank to end all after 30 seconds, and a rank that only computes for an
// hour to end none. synctest also checks that no goroutine is left.
func TestBeats(t *testing.T) {
	const within = 30 * time.Second
	exchange := func(w *World) error { return w.Agree("weights", nil, "") }
	aborted := func(w *World) error {
		<-w.Ended()
		return errors.New("the all-reduce was aborted")
	}
	late := func(then func(*World) error, ranks ...int) func(*World) error {
		return func(w *World) error {
			if slices.Contains(ranks, w.Rank) {
				time.Sleep(time.Hour)
			}
			return then(w)
		}
	}
	type ending struct {
		name    string
		ranks   int
		stopped int
		f       func(*World) error
		want    string // "": all ends well
		timed   int
		took    time.Duration // until the timed rank has ended
	}
	cases := []ending{
		{"rank 0 is slow", 3, nobody, late(exchange, 0), "", 1, time.Hour},
		{"rank 1 is slow", 3, nobody, late(exchange, 1), "", 1, time.Hour},
		{"all end at once", 3, nobody, leave, "", 1, 0},
		{"rank 0 ends long after the others", 3, nobody, late(leave, 0), "", 1, 5 * time.Second},
		{"rank 1 ends long after the others", 3, nobody, late(leave, 1), "", 1, time.Hour},
		{"rank 0 ends long before the others", 3, nobody, late(leave, 1, 2), "", 0, 5 * time.Second},
	}
	for _, ranks := range []int{2, 3, 4, 5, 8} {
		for stopped := range ranks {
			want := fmt.Sprintf("rank %d is silent: nothing came from process %d on gpu%[1]d for 30s: see whether it is stopped", stopped, 100+stopped)
			cases = append(cases, ending{fmt.Sprintf("rank %d of %d is stopped", stopped, ranks), ranks, stopped, aborted, want, (stopped + 1) % ranks, within})
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				worlds := piped(c.ranks, c.stopped, within)
				errs, took := make([]error, len(worlds)), make([]time.Duration, len(worlds))
				var all sync.WaitGroup
				for rank, w := range worlds {
					if rank == c.stopped {
						continue
					}
					all.Go(func() {
						errs[rank] = w.Leave(c.f(w))
						took[rank] = time.Since(start)
					})
				}
				all.Wait()
				for rank, err := range errs {
					if rank == c.stopped {
						continue
					}
					if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
						t.Errorf("rank %d ends with %v, want %q", rank, err, c.want)
					}
					if c.stopped > 0 && reported(err) != (rank != 0) {
						t.Errorf("rank %d: %v; only rank 0 should print it", rank, err)
					}
				}
				if got := took[c.timed]; got < c.took || got > c.took+2*within/beats {
					t.Errorf("rank %d took %v, want %v", c.timed, got, c.took)
				}
				for rank, w := range worlds {
					for _, p := range w.peers {
						if last := p.conn.(*wire).last; c.want == "" && strings.Contains(last, "alive") {
							t.Errorf("rank %d sends to rank %d after its bye %q", rank, p.rank, last)
						}
					}
				}
			})
		})
	}
}
