//go:build cgo

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"mlpool/internal/must"
	"mlpool/kernels/nccl"
)

func TestAbort(t *testing.T) {
	if !with(t, "") {
		return
	}
	c := connected(t)
	gone := errors.New("rank 2 is gone")
	c.Abort(gone)
	c.Abort(errors.New("another reason"))
	if err := c.AllReduce(0, 0, 0); err != gone || c.Err() != gone {
		t.Errorf("%v and %v, want %v", err, c.Err(), gone)
	}
	must.OK(t, c.Close())
}

// TestAbortBesideWork aborts a communicator while an all-reduce is being queued, which may be
// slow, or wait for the GPU until the end. NCCL frees what it aborts.
func TestAbortBesideWork(t *testing.T) {
	for _, how := range []string{"slow", "waits"} {
		t.Run(how, func(t *testing.T) {
			if !with(t, how) {
				return
			}
			if how == "slow" {
				nccl.SetAbortAfter(time.Hour)
			}
			c := connected(t)
			work := startWork(c)
			gone := errors.New("rank 2 is gone")
			aborted := make(chan struct{})
			go func() {
				c.Abort(gone)
				close(aborted)
			}()
			for c.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			work.goOn()
			if err := <-work.ended; err != gone {
				t.Errorf("%v, want %v", err, gone)
			}
			<-aborted
			must.OK(t, c.Close())
		})
	}
}

// TestCloseAlone closes a communicator whose other ranks are gone, for which NCCL waits.
func TestCloseAlone(t *testing.T) {
	if !with(t, "alone") {
		return
	}
	nccl.SetCloseWithin(100 * time.Millisecond)
	must.OK(t, connected(t).Close())
}

// TestGone uses a communicator that was aborted, or closed.
func TestGone(t *testing.T) {
	if !with(t, "", "-DREGISTERS") {
		return
	}
	for _, end := range []func(*nccl.Comm) error{
		func(c *nccl.Comm) error { c.Abort(errors.New("rank 2 is gone")); return nil },
		(*nccl.Comm).Close,
	} {
		c := connected(t)
		deregister, errR := c.Register(1<<20, 4096)
		closeWindow, errW := c.RegisterWindow(1<<21, 4096)
		must.OK(t, errR, errW, end(c))
		_, errR = c.Register(1<<20, 4096)
		_, errW = c.RegisterWindow(1<<20, 4096)
		for _, err := range []error{errR, errW, deregister(), closeWindow(), c.AllReduce(0, 0, 0)} {
			if err == nil {
				t.Error("it works without an error")
			}
		}
	}
}

// TestConnect ends the ranks while they connect, and after.
func TestConnect(t *testing.T) {
	gone := errors.New("rank 2 is gone")
	for _, c := range []struct {
		how, want string
		within    time.Duration
		ends      bool
	}{
		{"never", "NCCL_DEBUG=INFO says more", 100 * time.Millisecond, false},
		{"never", gone.Error(), time.Minute, true},
		{"waits", gone.Error(), time.Minute, false},
	} {
		t.Run(fmt.Sprint(c.how, c.ends), func(t *testing.T) {
			if !with(t, c.how) {
				return
			}
			ranks := met{make(chan error, 1)}
			if c.ends {
				ranks.end <- gone
			}
			comm, err := nccl.Connect(context.Background(), ranks, 1, 3, c.within)
			if err == nil {
				work := startWork(comm)
				ranks.end <- gone
				err = errors.Join(<-work.ended, comm.Close())
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestEndsAll makes NCCL find an error between calls. All ranks are told, even where NCCL
// cannot abort the communicator yet.
func TestEndsAll(t *testing.T) {
	for _, how := range []string{"fails", "stuck"} {
		t.Run(how, func(t *testing.T) {
			if !with(t, how) {
				return
			}
			ranks := ending{reasons: make(chan error, 1)}
			c, err := nccl.Connect(context.Background(), ranks, 1, 3, time.Minute)
			must.OK(t, err)
			reason := <-ranks.reasons
			if want := "nccl: asynchronous error: unhandled system error (NCCL error 2)"; reason.Error() != want {
				t.Errorf("%v, want %s", reason, want)
			}
			if how == "stuck" {
				return // and so would be Close
			}
			if err := c.Close(); err != nil || c.Err() == nil {
				t.Errorf("%v, the communicator ended with %v", err, c.Err())
			}
		})
	}
}
