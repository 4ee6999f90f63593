package launch

import (
	"context"
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

	"mlpool/internal/must"
)

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
					t.Errorf("rank %d: %v; only rank 0 should print it", rank, err)
				}
			}
		})
	}
}

// TestWrongHellos connects ranks of another launch that know the secret.
func TestWrongHellos(t *testing.T) {
	hello := func(rank, size int) string {
		return fmt.Sprintf(`{"Kind":"hello","Rank":%d,"Size":%d}`+"\n", rank, size)
	}
	for _, c := range []struct {
		hellos []string
		want   string
	}{
		{[]string{hello(1, 3)}, "rank 1 is one of 3, and rank 0 of 2: start all ranks with one command"},
		{[]string{hello(99, 2)}, "rank 99 came to rank 0, which waits for 1 to 1: start all ranks with one command"},
		{[]string{hello(0, 2)}, "rank 0 came to rank 0, which waits for 1 to 1"},
		{[]string{hello(1, 3), hello(1, 3)}, "there are two of rank 1: start all ranks with one command"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var others []another
			for _, text := range c.hellos {
				others = append(others, another{strings.NewReader(text), true, true})
			}
			if err := among(0, others); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("after %q: %v, want %q", c.hellos, err, c.want)
			}
		})
	}
}

// TestVersions has another version of the program at one end. Both ends name the versions, and print nothing
// else that has no seal.
func TestVersions(t *testing.T) {
	for version, named := range map[string]string{
		"2": "2", "65535": "65535", "007": "7", "2\u001b[2J": "", "-2": "", "99999999999999999999": "", "": "", "2 ": "",
	} {
		greeting := strings.Replace(greets, program, programs+version, 1)
		for rank, want := range []string{", and another version of this program (protocol %s, and here 3) came", "(another version of this program (protocol %s, and here 3) listens there: start all ranks from one build)"} {
			synctest.Test(t, func(t *testing.T) {
				err := among(rank, []another{{strings.NewReader(greeting), false, true}})
				if err == nil || strings.Contains(err.Error(), fmt.Sprintf(want, named)) != (named != "") || strings.ContainsAny(err.Error(), "\x1b\n") {
					t.Errorf("version %q: rank %d: %v", version, rank, err)
				}
			})
		}
	}
	// Rank 0 greets another version, and then hangs up.
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() { _, _ = io.WriteString(there, strings.Replace(greets, program, programs+"4", 1)) }()
		go func() {
			_ = newPeer(0, here).greet(secret, false)
			_ = here.Close()
		}()
		if said, err := io.ReadAll(there); err != nil || !strings.Contains(string(said), program) {
			t.Errorf("rank 0 says %q, %v", said, err)
		}
	})
}

// TestStrangers has strangers that do not know the secret connect to rank 0, and listen at its address
// before it starts. The ranks meet all the same, at once if strangers only connect.
func TestStrangers(t *testing.T) {
	for _, says := range []string{
		"", "\n", "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", `{"Kind":`,
		hello1, hello0, greets, greets + hello1, greets + strings.Repeat("0", 64) + " " + hello1,
		`{"Kind":"fail","Reason":"ALL IS LOST"}` + "\n", strings.Repeat("a", maxMessage),
	} {
		for _, stays := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				stranger := func() another { return another{strings.NewReader(says), false, stays} }
				l := newLobby()
				start := time.Now()
				go func() {
					for range 8 {
						if conn, err := l.await(); err == nil {
							go stranger().speak(conn, true)
						}
					}
				}()
				for rank, err := range ranks(l, process(0, 2), nil, leave) {
					if err != nil {
						t.Errorf("rank %d after %q: %v", rank, says, err)
					}
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("after %q they met in %v", says, took)
				}

				instead, later := newLobby(), newLobby()
				at, err := instead.listen(t.Context(), "", true)
				must.OK(t, err)
				met := make(chan error, 1)
				go func() { met <- meet(replaced{instead, later}, process(1, 2), leave) }()
				conn, err := at[0].Accept()
				must.OK(t, err)
				go stranger().speak(conn, false)
				synctest.Wait()
				must.OK(t, at[0].Close())
				if err := errors.Join(meet(later, process(0, 2), leave), <-met); err != nil {
					t.Errorf("after %q in place of rank 0: %v", says, err)
				}
			})
		}
	}
}

// replaced dials first until that is closed, and then its successor.
type replaced struct{ first, then *lobby }

func (r replaced) listen(ctx context.Context, address string, oneHost bool) ([]net.Listener, error) {
	return r.then.listen(ctx, address, oneHost)
}

func (r replaced) dial(ctx context.Context, address string) (net.Conn, error) {
	if conn, err := r.first.dial(ctx, address); err == nil {
		return conn, nil
	}
	return r.then.dial(ctx, address)
}

// TestSecrets connects two ranks with equal, different or missing secrets.
func TestSecrets(t *testing.T) {
	const same = "a secret of all the ranks"
	wants := []string{", and connections with another RENDEZVOUS_SECRET or none came (", "(it hangs up, as if RENDEZVOUS_SECRET were not the same)"}
	for _, secrets := range [][2]string{{same, same}, {}, {same, "another secret"}, {same, ""}, {"", same}} {
		synctest.Test(t, func(t *testing.T) {
			l := newLobby()
			errs := make([]error, 2)
			var all sync.WaitGroup
			for rank := range errs {
				p := process(rank, 2)
				p.Secret = secrets[rank]
				all.Go(func() {
					errs[rank] = meet(l, p, func(w *World) error {
						if warns := w.Warning() != ""; warns != (p.Secret == "") {
							t.Errorf("with the secret %q it warns: %v", p.Secret, warns)
						}
						return nil
					})
				})
			}
			all.Wait()
			for rank, err := range errs {
				if differ := secrets[0] != secrets[1]; (err != nil) != differ || differ && !strings.Contains(err.Error(), wants[rank]) {
					t.Errorf("%q: rank %d: %v", secrets, rank, err)
				}
			}
		})
	}
}

// TestTwoLaunches starts two launches with the same port, which meet one after the other.
func TestTwoLaunches(t *testing.T) {
	address := freeAddress(t)
	meets := func(job string, rank int) error {
		return meet(tcp{}, Process{Rank: rank, Size: 2, Address: address, Secret: secret, Job: job, Within: 10 * time.Second}, leave)
	}
	errs := make(chan error, 4)
	go func() { errs <- meets("b", 1) }() // tries again while it finds another launch
	go func() { errs <- meets("a", 0) }()
	for conn := net.Conn(nil); conn == nil; {
		if conn, _ = net.Dial("tcp", address); conn != nil { // rank 0 of a listens
			conn.Close()
		}
	}
	if err := meets("b", 0); err == nil || !strings.Contains(err.Error(), "choose another port with MASTER_PORT") {
		t.Errorf("rank 0 of b: %v", err)
	}
	go func() { errs <- meets("a", 1) }()
	if err := errors.Join(<-errs, <-errs); err != nil {
		t.Errorf("launch a: %v", err)
	}
	if err := errors.Join(meets("b", 0), <-errs); err != nil {
		t.Errorf("launch b: %v", err)
	}
}

// TestComesAgain has a rank die while rank 0 waits for another one. It may come again before or
// after the other one, or a little before rank 0 notices that it died.
func TestComesAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		dies  int
		order []int
		comes time.Duration // rank 0 notices after a second that the rank died
		want  string
	}{
		{"before", 1, []int{1, 2}, 2 * time.Second, ""},
		{"after", 1, []int{2, 1}, 2 * time.Second, ""},
		{"early", 1, []int{1, 2}, time.Second / 2, ""},
		{"never", 1, []int{2}, 2 * time.Second, "rank 1 of 3 did not come to lobby:9 within 1m0s"},
		{"the last rank never", 2, []int{1}, 2 * time.Second, "rank 2 of 3 did not come to lobby:9 within 1m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLobby()
				var errs [3]error
				var all sync.WaitGroup
				run := func(rank int) {
					all.Go(func() { errs[rank] = meet(l, process(rank, 3), leave) })
				}
				run(0)
				conn, err := l.await()
				must.OK(t, err)
				hello := strings.NewReplacer(`"Size":2`, `"Size":3`, `"Rank":1`, fmt.Sprintf(`"Rank":%d`, c.dies)).Replace(hello1)
				go another{strings.NewReader(hello), true, true}.speak(conn, true)
				synctest.Wait() // rank 0 has read it
				time.AfterFunc(time.Second, func() { _ = conn.Close() })
				time.Sleep(c.comes)
				for _, rank := range c.order {
					run(rank)
					synctest.Wait()
				}
				all.Wait()
				for rank, err := range errs {
					if came := rank == 0 || slices.Contains(c.order, rank); came && ((err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want)) {
						t.Errorf("rank %d ends with %v, want %q", rank, err, c.want)
					}
				}
			})
		})
	}
}

// TestMeetIsInterrupted has the user press Ctrl-C while a rank waits for others. It ends at once, or
// once rank 0 had time to give a reason.
func TestMeetIsInterrupted(t *testing.T) {
	for _, c := range []struct {
		rank int
		met  bool
		took time.Duration
	}{{0, false, 0}, {1, false, 0}, {1, true, 2 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			l := newLobby()
			if c.met {
				at, err := l.listen(t.Context(), "", true)
				must.OK(t, err)
				defer at[0].Close()
				go func() {
					conn, err := at[0].Accept()
					if err != nil {
						t.Error(err)
						return
					}
					another{strings.NewReader(`{"Kind":"met"}` + "\n"), true, true}.speak(conn, false)
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
