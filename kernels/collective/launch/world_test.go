package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"mlpool/internal/must"
)

// freeAddress returns an address of this host with a free port.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer l.Close()
	return l.Addr().String()
}

// meet connects a rank with the others, and leaves them after f.
func meet(over network, p Process, f func(*World) error) error {
	w, err := rendezvous(context.Background(), p, Silence, over)
	if err != nil {
		return err
	}
	return w.Leave(f(w))
}

// leave is for ranks that meet and do no more.
func leave(*World) error { return nil }

// ranks runs f on p.Size ranks that meet over a network, without the missing ones, and returns the
// errors of Leave.
func ranks(over network, p Process, missing map[int]bool, f func(*World) error) []error {
	errs := make([]error, p.Size)
	var all sync.WaitGroup
	for rank := range p.Size {
		if missing[rank] {
			continue
		}
		all.Go(func() {
			p := p
			p.Rank, p.Local = rank, rank
			errs[rank] = meet(over, p, f)
		})
	}
	all.Wait()
	return errs
}

// reported reports whether rank 0 prints the error.
func reported(err error) bool { return errors.As(err, new(*ReportedError)) }

// TestEnds ends ranks early in every way. All end with the same reason, which only rank 0 prints.
func TestEnds(t *testing.T) {
	same := []Fact{{"train.bsz", "64"}, {"train.seed", "1"}}
	for _, c := range []struct {
		name string
		f    func(*World) error
		want string
	}{
		{"another config", func(w *World) error {
			mine := same
			if w.Rank == 2 {
				mine = []Fact{{"train.bsz", "32"}, {"train.seed", "1"}}
			}
			return w.Agree("config", mine, "start all ranks with one config")
		}, "train.bsz is 32 on rank 2, and 64 on rank 0: start all ranks with one config"},
		{"another version", func(w *World) error { return w.Agree("config", same[:1+w.Rank/2], "use one program") }, "rank 2 is another version of the program: use one program"},
		{"one GPU for two", func(w *World) error { return w.AllDistinct("GPU", fmt.Sprint(w.Rank/2), "start one rank a GPU") }, "rank 0 and rank 1 are both on the GPU 0: start one rank a GPU"},
		{"rank 0 fails", func(w *World) error {
			if w.Rank == 0 {
				return errors.New("no such config\nand more")
			}
			<-w.Ended()
			return w.Err()
		}, "no such config"},
		{"rank 1 fails", func(w *World) error {
			if w.Rank == 1 {
				return errors.New("NCCL: unhandled system error")
			}
			return w.Agree("weights", nil, "")
		}, "rank 1: NCCL: unhandled system error"},
		{"rank 2 dies", func(w *World) error {
			if w.Rank == 2 {
				return w.peers[0].conn.Close()
			}
			<-w.Ended()
			return errors.New("the all-reduce was aborted")
		}, "rank 2 is gone"},
		{"rank 1 ends early", func(w *World) error {
			if w.Rank == 1 {
				return nil
			}
			return w.Agree("weights", nil, "")
		}, "rank 1 has ended, and rank 0 has come to the weights"},
		{"not the same program", func(w *World) error { return w.Agree(fmt.Sprint("part ", w.Rank), nil, "") }, "the ranks do not run the same program"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for rank, err := range ranks(tcp{}, Process{Size: 3, Address: freeAddress(t), Secret: secret, Within: time.Minute}, nil, c.f) {
				dead := c.name == "rank 2 dies" && rank == 2 || c.name == "rank 1 ends early" && rank == 1
				if !dead && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("rank %d ends with %v, want %q", rank, err, c.want)
				}
				if !dead && reported(err) != (rank != 0) {
					t.Errorf("rank %d: %v; only rank 0 should print it", rank, err)
				}
			}
		})
	}
}
