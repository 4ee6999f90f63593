package launch

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// meet has a rank meet the others, and part from them.
func meet(p Process) error {
	w, err := Rendezvous(context.Background(), p, Silence)
	if err == nil {
		err = w.Leave(nil)
	}
	return err
}

func TestMissing(t *testing.T) {
	most := map[int]bool{}
	for rank := 2; rank < 1500; rank++ {
		most[rank] = true
	}
	for _, c := range []struct {
		size    int
		missing map[int]bool
		want    string
	}{
		{4, map[int]bool{2: true}, "rank 2 of 4 did not come to lobby:9 within 1m0s: start all ranks, set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port that is free there, or have them wait longer with RENDEZVOUS_TIMEOUT=5m"},
		{4, map[int]bool{1: true, 3: true}, "rank 1, 3 of 4 did not come"},
		{6, map[int]bool{1: true, 2: true, 3: true, 5: true}, "rank 1, 2, 3, 5 of 6 did not come"},
		{1500, most, "rank 2, 3, 4 and 1495 more of 1500 did not come"},
		{4, map[int]bool{0: true}, " of 4 found no rank 0 at lobby:9 within 1m0s (nobody listens): start all ranks, set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port"},
	} {
		synctest.Test(t, func(t *testing.T) {
			for rank, err := range ranks(newLobby(), process(0, c.size), c.missing, func(*World) error { return errors.New("they have met") }) {
				if !c.missing[rank] && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("without %v rank %d ends with %v, want %q", c.missing, rank, err, c.want)
				}
				if !c.missing[0] && !c.missing[rank] && reported(err) != (rank != 0) {
					t.Errorf("rank %d: %v; rank 0 is to say it, and no other", rank, err)
				}
			}
		})
	}
}

// TestStrangers has others connect to where rank 0 is met, and ranks of other launches.
func TestStrangers(t *testing.T) {
	for _, c := range []struct {
		size   int
		hellos []string
		want   string
	}{
		{2, []string{"GET / HTTP/1.1\r\n\r\n"}, ""},
		{2, []string{""}, ""},
		{2, []string{`{"Kind":"hello","Program":"` + program + `","Rank":1,"Size":3}` + "\n"}, "rank 1 is one of 3, and rank 0 of 2: start all ranks with one command"},
		{2, []string{`{"Kind":"hello","Program":"` + program + `","Rank":99,"Size":2}` + "\n"}, "rank 99 came to rank 0, which waits for 1 to 1: start all ranks with one command"},
		{2, []string{`{"Kind":"hello","Program":"` + program + `","Rank":0,"Size":2}` + "\n"}, "rank 0 came to rank 0, which waits for 1 to 1"},
		{3, slices.Repeat([]string{`{"Kind":"hello","Program":"` + program + `","Rank":1,"Size":3}` + "\n"}, 2), "there are two of rank 1: start all ranks with one command"},
	} {
		process := Process{Size: c.size, Address: freeAddress(t), Within: 10 * time.Second}
		result := make(chan error, 1)
		go func(p Process) { result <- meet(p) }(process)
		var conns []net.Conn
		for _, hello := range c.hellos {
			var conn net.Conn
			for conn == nil {
				conn, _ = net.Dial("tcp", process.Address) // until it listens
			}
			if _, err := conn.Write([]byte(hello)); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		if c.want == "" {
			if err := conns[0].Close(); err != nil {
				t.Fatal(err)
			}
			process.Rank = 1
			if err := errors.Join(meet(process), <-result); err != nil {
				t.Errorf("after %q: %v", c.hellos, err)
			}
			continue
		}
		if err := <-result; err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %q: %v, want %q", c.hellos, err, c.want)
		}
		for _, conn := range conns {
			_ = conn.Close() // rank 0 may have been faster
		}
	}
}

// TestNotRank0 has somebody else where rank 0 is to be met. Who hangs up without a word may pass
// connections on to where rank 0 comes later.
func TestNotRank0(t *testing.T) {
	for _, c := range []struct {
		says  string
		reset bool
		want  string // "": it meets rank 0 later
	}{
		{"", false, ""},
		{"", true, ""},
		{"HTTP/1.1 400 Bad Request\r\n", false, "rank 1 found something else than rank 0"},
		{`{"Kind":`, false, "rank 1 found something else than rank 0"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		process := Process{Rank: 1, Size: 2, Address: l.Addr().String(), Within: 10 * time.Second}
		result := make(chan error, 1)
		go func(p Process) { result <- meet(p) }(process)
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil { // what is not read makes the end a reset
			t.Fatal(err)
		}
		if c.reset {
			err = conn.(*net.TCPConn).SetLinger(0)
		}
		_, errW := conn.Write([]byte(c.says))
		if err := errors.Join(err, errW, conn.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			process.Rank = 0
			if err := meet(process); err != nil {
				t.Errorf("rank 0 after %+v: %v", c, err)
			}
		}
		if err := <-result; (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: rank 1 ends with %v", c, err)
		}
	}
}

func TestListenAt(t *testing.T) {
	for address, want := range map[string]string{
		"node:9": ":9", "10.0.0.1:9": ":9", "[fe80::1%eth0]:9": ":9",
		"localhost:9": "localhost:9", "127.0.0.1:9": "127.0.0.1:9", "[::1]:9": "[::1]:9",
	} {
		if got, err := listenAt(address); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", address, got, err, want)
		}
	}
}

// TestSilentStrangers has others connect who say nothing and stay: ranks come past them.
func TestSilentStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby()
		start := time.Now()
		go func() {
			for range 8 {
				_, _ = l.await() // none may get in behind the last rank
			}
		}()
		for rank, err := range ranks(l, process(0, 2), nil, func(*World) error { return nil }) {
			if err != nil {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("they met after %v", took)
		}
	})
}

// TestTwoLaunches has the ranks of two launches meet at one port, one after the other.
func TestTwoLaunches(t *testing.T) {
	address := freeAddress(t)
	process := func(job string, rank int) Process {
		return Process{Rank: rank, Size: 2, Address: address, Job: job, Within: 10 * time.Second}
	}
	errs := make(chan error, 4)
	go func() { errs <- meet(process("b", 1)) }() // it tries again as long as it finds another launch
	go func() { errs <- meet(process("a", 0)) }()
	for conn := net.Conn(nil); conn == nil; {
		if conn, _ = net.Dial("tcp", address); conn != nil { // rank 0 of a listens
			conn.Close()
		}
	}
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
	synctest.Test(t, func(t *testing.T) {
		l := newLobby()
		var errs [3]error
		var all sync.WaitGroup
		run := func(rank int) {
			all.Go(func() {
				w, err := rendezvous(context.Background(), process(rank, 3), Silence, l)
				if err == nil {
					<-w.Ended()
					err = w.Leave(w.Err())
				}
				errs[rank] = err
			})
		}
		run(0)
		conn, err := l.await()
		if err == nil {
			_, err = io.WriteString(conn, strings.Replace(hello1, `"Size":2`, `"Size":3`, 1))
		}
		synctest.Wait() // rank 0 has read it
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Fatal(err)
		}
		run(2)
		all.Wait()
		for _, rank := range []int{0, 2} {
			if err := errs[rank]; err == nil || !strings.Contains(err.Error(), "rank 1 is gone") || reported(err) != (rank != 0) {
				t.Errorf("rank %d ends with %v", rank, err)
			}
		}
	})
}

// TestMeetIsInterrupted has the user press Ctrl-C while a rank waits for another one: at once, and
// rank 1 also when it has met rank 0, which may say why first.
func TestMeetIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		rank int
		met  bool
		took time.Duration
	}{{0, false, 0}, {1, false, 0}, {1, true, 2 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			l := newLobby()
			if c.met {
				at, err := l.listen(t.Context(), "")
				if err != nil {
					t.Fatal(err)
				}
				defer at.Close()
				go func() {
					conn, err := at.Accept()
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, conn)
				}()
			}
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(time.Second, cancel)
			start := time.Now()
			if _, err := rendezvous(ctx, process(c.rank, 2), Silence, l); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v: %v", c, err)
			}
			if took := time.Since(start); took != time.Second+c.took {
				t.Errorf("%+v: ended after %v", c, took)
			}
		})
	}
}
