package launch

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestMissing(t *testing.T) {
	const within = 500 * time.Millisecond
	for _, c := range []struct {
		missing map[int]bool
		want    string
	}{
		{map[int]bool{2: true}, "rank 2 of 4 did not come"},
		{map[int]bool{1: true, 3: true}, "rank 1, 3 of 4 did not come"},
		{map[int]bool{0: true}, "found no rank 0"},
	} {
		for rank, err := range ranks(t, 4, within, c.missing, func(*World) error { return errors.New("they have met") }) {
			if !c.missing[rank] && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("without %v rank %d ends with %v, want %q", c.missing, rank, err, c.want)
			}
			if !c.missing[0] && !c.missing[rank] && reported(err) != (rank != 0) {
				t.Errorf("rank %d: %v; rank 0 is to say it, and no other", rank, err)
			}
		}
	}
}

// TestStrangers has others connect to where rank 0 is met, and ranks of other launches.
func TestStrangers(t *testing.T) {
	for _, c := range []struct{ hello, want string }{
		{"GET / HTTP/1.1\r\n\r\n", ""},
		{"", ""},
		{`{"Kind":"hello","Program":"` + program + `","Rank":1,"Size":3}` + "\n", "rank 1 is one of 3, and rank 0 of 2: start all ranks with one command"},
		{`{"Kind":"hello","Program":"` + program + `","Rank":2,"Size":2}` + "\n", "two of rank 2"},
	} {
		address := freeAddress(t)
		result := make(chan error, 1)
		go func() {
			w, err := Rendezvous(context.Background(), Process{Size: 2, Address: address}, 10*time.Second)
			if err == nil {
				err = w.Leave(nil)
			}
			result <- err
		}()
		var conn net.Conn
		for conn == nil {
			conn, _ = net.Dial("tcp", address) // until it listens
		}
		if _, err := conn.Write([]byte(c.hello)); err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			w, err := Rendezvous(context.Background(), Process{Rank: 1, Size: 2, Address: address}, 10*time.Second)
			if err == nil {
				err = w.Leave(nil)
			}
			if err = errors.Join(err, <-result); err != nil {
				t.Errorf("after %q: %v", c.hello, err)
			}
			continue
		}
		if err := <-result; err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %q: %v, want %q", c.hello, err, c.want)
		}
		_ = conn.Close() // rank 0 may have been faster
	}
}

// TestSilentStrangers has others connect who say nothing and stay: ranks come past them.
func TestSilentStrangers(t *testing.T) {
	process := Process{Size: 2, Address: freeAddress(t)}
	result := make(chan error, 1)
	go func() {
		w, err := Rendezvous(context.Background(), process, 4*time.Second)
		if err == nil {
			err = w.Leave(nil)
		}
		result <- err
	}()
	for range 8 {
		var conn net.Conn
		for conn == nil {
			conn, _ = net.Dial("tcp", process.Address) // until it listens
		}
		defer conn.Close()
	}
	w, err := Rendezvous(context.Background(), Process{Rank: 1, Size: 2, Address: process.Address}, 4*time.Second)
	if err == nil {
		err = w.Leave(nil)
	}
	if err = errors.Join(err, <-result); err != nil {
		t.Error(err)
	}
}

// TestTwoLaunches has the ranks of two launches meet at one port, one after the other.
func TestTwoLaunches(t *testing.T) {
	const within = 10 * time.Second
	address := freeAddress(t)
	process := func(job string, rank int) Process {
		return Process{Rank: rank, Size: 2, Address: address, Job: job}
	}
	meet := func(p Process) error {
		w, err := Rendezvous(context.Background(), p, within)
		if err == nil {
			err = w.Leave(nil)
		}
		return err
	}
	errs := make(chan error, 4)
	go func() { errs <- meet(process("b", 1)) }() // it tries again as long as it finds another launch
	go func() { errs <- meet(process("a", 0)) }()
	time.Sleep(300 * time.Millisecond) // rank 1 of b finds rank 0 of a
	if err := meet(process("b", 0)); err == nil || !strings.Contains(err.Error(), "choose another port with MASTER_PORT") {
		t.Errorf("rank 0 of b: %v", err)
	}
	go func() { errs <- meet(process("a", 1)) }()
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Errorf("launch a: %v", err)
	}
	if err := errors.Join(meet(process("b", 0)), <-errs); err != nil {
		t.Errorf("launch b: %v", err)
	}
}

// TestGoneBeforeAllCame has a rank die while rank 0 waits for the last one.
func TestGoneBeforeAllCame(t *testing.T) {
	address := freeAddress(t)
	var errs [3]error
	var all sync.WaitGroup
	run := func(rank int) {
		all.Go(func() {
			w, err := Rendezvous(context.Background(), Process{Rank: rank, Size: 3, Address: address}, 10*time.Second)
			if err == nil {
				<-w.Ended()
				err = w.Leave(w.Err())
			}
			errs[rank] = err
		})
	}
	run(0)
	var conn net.Conn
	for conn == nil {
		conn, _ = net.Dial("tcp", address) // until it listens
	}
	if _, err := conn.Write([]byte(`{"Kind":"hello","Program":"` + program + `","Rank":1,"Size":3}` + "\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // the end is a reset
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // until rank 0 has read it
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	run(2)
	all.Wait()
	for _, rank := range []int{0, 2} {
		if err := errs[rank]; err == nil || !strings.Contains(err.Error(), "rank 1 is gone") || reported(err) != (rank != 0) {
			t.Errorf("rank %d ends with %v", rank, err)
		}
	}
}

func TestMeetIsInterrupted(t *testing.T) {
	for rank := range 2 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, err := Rendezvous(ctx, Process{Rank: rank, Size: 2, Address: freeAddress(t)}, time.Minute); !errors.Is(err, context.Canceled) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}
