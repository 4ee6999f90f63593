package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What ranks of a training of two say first.
const (
	hello0 = `{"Kind":"hello","Program":"` + program + `","Process":"process 100 on gpu0","Size":2}` + "\n"
	hello1 = `{"Kind":"hello","Program":"` + program + `","Process":"process 101 on gpu1","Rank":1,"Size":2}` + "\n"
)

// among returns how a rank ends among others that say something, whatever they are told, and
// then stay, or hang up.
func among(rank int, others []io.Reader, stay bool) error {
	l := newLobby()
	say := func(says io.Reader, conn net.Conn, err error) {
		if err != nil { // it has given up
			return
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		_, _ = io.Copy(conn, says) // nobody may listen any more
		if !stay {
			_ = conn.Close()
		}
	}
	if rank != 0 {
		at, err := l.listen(context.Background(), "")
		if err != nil {
			return err
		}
		defer at.Close()
		go func() {
			conn, err := at.Accept()
			say(others[0], conn, err)
		}()
	} else {
		for _, says := range others {
			go func() {
				conn, err := l.await()
				say(says, conn, err)
			}()
		}
	}
	w, err := rendezvous(context.Background(), process(rank, 1+len(others)), Silence, l)
	if err != nil {
		return err
	}
	return w.Leave(w.Agree("config", []Fact{{"train.bsz", "64"}}, "start all ranks with one config"))
}

// TestHostileRanks has a rank send what none does, once it has met rank 0.
func TestHostileRanks(t *testing.T) {
	const hangsUp = "hangs up"
	from := "rank 1, process 101 on gpu1: what came is no message of a rank: "
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
				var err error
				if n := allocated(func() {
					err = among(0, []io.Reader{io.MultiReader(strings.NewReader(hello1), c.says)}, name != hangsUp)
				}); n > 16*maxMessage {
					t.Errorf("%d bytes allocated", n)
				}
				if err == nil || err.Error() != c.want {
					t.Errorf("rank 0 ends with %v, want %s", err, c.want)
				}
			})
		})
	}
}

// zeros are without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// allocated returns the bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const (
	agrees = `{"Kind":"data","What":"config","Data":"W3siS2V5IjoidHJhaW4uYnN6IiwiVmFsdWUiOiI2NCJ9XQ=="}` + "\n"
	byes   = `{"Kind":"bye"}` + "\n"
)

// FuzzRanks takes anything of two who connect to rank 0.
func FuzzRanks(f *testing.F) {
	of3 := strings.NewReplacer(`"Size":2`, `"Size":3`)
	first := of3.Replace(hello1)
	second := strings.Replace(first, `"Rank":1`, `"Rank":2`, 1)
	f.Add(first+agrees+byes, second+agrees+byes, true)
	f.Add(first+agrees+byes, second+`{"Kind":"alive"}`+"\n"+agrees, false)
	f.Add(first, second+`{"Kind":"data","What":"\n","Data":"AA=="}`+"\n", true)
	f.Add(first+`{"Kind":"fail","Reason":"\n"}`+"\n", second, true)
	f.Add(first, first, false)
	f.Add(second+`{"Kind":"data","What":"config","Data":"e30="}`+"\n", hello1, true)
	f.Fuzz(func(t *testing.T, first, second string, stay bool) {
		checkAmong(t, 0, []string{first, second}, stay)
	})
}

// FuzzRank0 takes anything of who is met where rank 0 should be.
func FuzzRank0(f *testing.F) {
	f.Add(hello0+agrees+byes, true)
	f.Add(hello0+`{"Kind":"fail","Reason":"\n"}`+"\n", false)
	f.Add(`{"Kind":"other","Program":"`+program+`"}`+"\n", false)
	f.Add(`{"Kind":"fail","Program":"`+program+`","Reason":"rank 1 of 3"}`+"\n", true)
	f.Add("HTTP/1.1 400 Bad Request\r\n", false)
	f.Fuzz(func(t *testing.T, text string, stay bool) {
		checkAmong(t, 1, []string{text}, stay)
	})
}

// checkAmong wants a rank to end in time, for a reason of one line, whatever the others say. What
// it takes for a message is one that can be sent.
func checkAmong(t *testing.T, rank int, others []string, stay bool) {
	t.Helper()
	var says []io.Reader
	for _, text := range others {
		says = append(says, strings.NewReader(text))
		checkMessage(t, text)
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if err := among(rank, says, stay); err != nil && err.Error() != printable(err.Error()) {
			t.Errorf("rank %d ends with %q", rank, err)
		}
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("rank %d takes %v", rank, took)
		}
	})
}

func checkMessage(t *testing.T, text string) {
	t.Helper()
	read := func(text string) (message, error) {
		return (&peer{text: bufio.NewReader(strings.NewReader(text))}).read(maxMessage)
	}
	m, err := read(text)
	if err != nil {
		return
	}
	sent, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := read(string(sent) + "\n"); err != nil || !reflect.DeepEqual(again, m) {
		t.Errorf("%+v is sent as %s and read as %+v, %v", m, sent, again, err)
	}
}
