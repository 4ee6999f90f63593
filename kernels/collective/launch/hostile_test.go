package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mlpool/internal/must"
)

// The first messages of two ranks.
const (
	hello0 = `{"Kind":"met"}` + "\n" + `{"Kind":"hello","Process":"process 100 on gpu0","Size":2}` + "\n"
	hello1 = `{"Kind":"hello","Process":"process 101 on gpu1","Rank":1,"Size":2}` + "\n"
)

// another is the other end of a connection.
type another struct {
	says  io.Reader
	knows bool // the secret: it greets first, and seals each line
	stays bool // connected after its last line
}

// speak sends all that a says, and ignores what it receives.
func (a another) speak(conn net.Conn, caller bool) {
	p := newPeer(0, conn)
	if a.knows && p.greet(secret, caller) != nil { // it was too late
		_ = conn.Close()
		return
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	if a.knows { // the connection may be closed already
		to := &sealer{p: p}
		_, _ = io.Copy(to, a.says)
		_, _ = conn.Write(to.rest)
	} else {
		_, _ = io.Copy(conn, a.says)
	}
	if !a.stays {
		_ = conn.Close()
	}
}

// A sealer seals lines and sends them. It sends text longer than a message without a seal. rest is
// an incomplete line.
type sealer struct {
	p    *peer
	rest []byte
}

func (s *sealer) Write(text []byte) (int, error) {
	s.rest = append(s.rest, text...)
	for len(s.rest) > 0 {
		line, rest, whole := bytes.Cut(s.rest, []byte("\n"))
		switch {
		case whole:
			line = s.p.sent.put(line)
		case len(s.rest) <= maxMessage:
			return len(text), nil
		}
		if _, err := s.p.conn.Write(line); err != nil {
			return 0, err
		}
		s.rest = bytes.Clone(rest)
	}
	return len(text), nil
}

// among returns the error of a rank among others.
func among(rank int, others []another) error {
	l := newLobby()
	if rank != 0 {
		at, err := l.listen(context.Background(), "", true)
		if err != nil {
			return err
		}
		defer at[0].Close()
		go func() {
			if conn, err := at[0].Accept(); err == nil {
				others[0].speak(conn, false)
			}
		}()
	} else {
		for _, a := range others {
			go func() {
				if conn, err := l.await(); err == nil { // else it has given up
					a.speak(conn, true)
				}
			}()
		}
	}
	return meet(l, process(rank, 1+len(others)), func(w *World) error {
		return w.Agree("config", []Fact{{"train.bsz", "64"}}, "start all ranks with one config")
	})
}

// TestHostileRanks has a rank that has met rank 0 break the protocol.
func TestHostileRanks(t *testing.T) {
	const hangsUp = "hangs up"
	from := "rank 1, process 101 on gpu1: not a message of a rank: "
	for name, c := range map[string]struct {
		says io.Reader
		want string
	}{
		"no JSON":             {strings.NewReader("GET / HTTP/1.1\r\n"), from + "invalid character 'G' looking for beginning of value"},
		"another type":        {strings.NewReader(`{"Kind":1}` + "\n"), from + "json: cannot unmarshal number into Go struct field message.Kind of type string"},
		"another kind":        {strings.NewReader(`{"Kind":"he\u001bllo"}` + "\n"), from + `of the kind "he\x1bllo"`},
		"without an end":      {zeros{}, from + "it has more than 1048576 bytes"},
		hangsUp:               {strings.NewReader(`{"Kind":"bye"}`), "rank 1 is gone: process 101 on gpu1 ended without a word, or its host or network did"},
		"a cursor that moves": {strings.NewReader(`{"Kind":"fail","Reason":"\u001b[2J\r\nall is \u202ewell"}` + "\n"), " [2J  all is  well"},
		"another's config":    {strings.NewReader(`{"Kind":"data","What":"config","Data":"W3siS2V5IjoidHJhaW4uYnN6IiwiVmFsdWUiOiJcdTAwMWJcbiJ9XQ=="}` + "\n"), `train.bsz is    on rank 1, and 64 on rank 0: start all ranks with one config`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				err := among(0, []another{{io.MultiReader(strings.NewReader(hello1), c.says), true, name != hangsUp}})
				if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 16*maxMessage {
					t.Errorf("%d bytes allocated", after.TotalAlloc-before.TotalAlloc)
				}
				if err == nil || err.Error() != c.want {
					t.Errorf("rank 0 ends with %v, want %s", err, c.want)
				}
			})
		})
	}
}

// zeros has no end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

const (
	agrees = `{"Kind":"data","What":"config","Data":"W3siS2V5IjoidHJhaW4uYnN6IiwiVmFsdWUiOiI2NCJ9XQ=="}` + "\n"
	byes   = `{"Kind":"bye"}` + "\n"
)

// FuzzRanks has two peers, who may know the secret, send anything to rank 0.
func FuzzRanks(f *testing.F) {
	of3 := strings.NewReplacer(`"Size":2`, `"Size":3`)
	first := of3.Replace(hello1)
	second := strings.Replace(first, `"Rank":1`, `"Rank":2`, 1)
	f.Add(first+agrees+byes, second+agrees+byes, true, true)
	f.Add(first+agrees+byes, second+`{"Kind":"alive"}`+"\n"+agrees, true, false)
	f.Add(first, second+`{"Kind":"data","What":"\n","Data":"AA=="}`+"\n", true, true)
	f.Add(first+`{"Kind":"fail","Reason":"\n"}`+"\n", second, true, true)
	f.Add(first, first, true, false)
	f.Add(second+`{"Kind":"data","What":"config","Data":"e30="}`+"\n", hello1, true, true)
	f.Add(greets+first, greets+strings.Repeat("0", 64)+" "+second, false, true)
	f.Add(greets+"\n", "GET / HTTP/1.1\r\n", false, false)
	f.Fuzz(func(t *testing.T, first, second string, know, stay bool) {
		checkAmong(t, 0, []string{first, second}, know, stay)
	})
}

// TestLongStrangers has a stranger greet rank 0, and then send a line without an end.
func TestLongStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLobby()
		rank0 := make(chan error, 1)
		go func() { rank0 <- meet(l, process(0, 2), leave) }()
		conn, err := l.await()
		must.OK(t, err)
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		n, _ := io.Copy(conn, io.MultiReader(strings.NewReader(greets), io.LimitReader(zeros{}, maxMessage)))
		if n > 4*maxHello {
			t.Errorf("rank 0 reads %d bytes", n)
		}
		if err := <-rank0; err == nil {
			t.Error("rank 0 has met it")
		}
	})
}

// greets is the greeting of a stranger.
const greets = `{"Program":"` + program + `","Nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}` + "\n"

// FuzzRank0 has the peer at rank 0's address send anything to rank 1.
func FuzzRank0(f *testing.F) {
	f.Add(hello0+agrees+byes, true, true)
	f.Add(hello0+`{"Kind":"fail","Reason":"\n"}`+"\n", true, false)
	f.Add(`{"Kind":"other"}`+"\n", true, false)
	f.Add(`{"Kind":"fail","Reason":"rank 1 of 3"}`+"\n", true, true)
	f.Add(greets+hello0, false, true)
	f.Add(`{"Data":""}`, true, true)
	f.Add("HTTP/1.1 400 Bad Request\r\n", false, false)
	f.Fuzz(func(t *testing.T, text string, knows, stay bool) {
		checkAmong(t, 1, []string{text}, knows, stay)
	})
}

// checkAmong wants a rank to end in time, with an error of one line, whatever the others send, and
// messages that it accepts to survive a round trip.
func checkAmong(t *testing.T, rank int, others []string, know, stay bool) {
	t.Helper()
	var all []another
	for _, text := range others {
		all = append(all, another{strings.NewReader(text), know, stay})
		checkMessage(t, text)
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := among(rank, all)
		if err != nil && err.Error() != printable(err.Error()) {
			t.Errorf("rank %d ends with %q", rank, err)
		}
		if !know && (err == nil || !strings.Contains(err.Error(), " within 1m0s")) {
			t.Errorf("rank %d ends with %v because of strangers", rank, err)
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("rank %d takes %v", rank, took)
		}
	})
}

func checkMessage(t *testing.T, text string) {
	t.Helper()
	read := func(text string) (message, error) {
		line, _, _ := strings.Cut(text, "\n")
		sealed := new(seal).put([]byte(line))
		return (&peer{text: bufio.NewReader(bytes.NewReader(sealed))}).read(maxMessage)
	}
	m, err := read(text)
	if err != nil {
		return
	}
	sent, err := json.Marshal(m)
	must.OK(t, err)
	again, err := read(string(sent))
	resent, err2 := json.Marshal(again)
	if err := errors.Join(err, err2); err != nil || !bytes.Equal(resent, sent) {
		t.Errorf("%+v is sent as %s and read as %+v, %v", m, sent, again, err)
	}
}
