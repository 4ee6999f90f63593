package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
)

// peer is a connection to another rank.
type peer struct {
	rank     int
	process  string // and its host, in words
	conn     net.Conn
	text     *bufio.Reader // what comes
	received seal
	in       chan message
	write    sync.Mutex // guards sent
	sent     seal
	missed   atomic.Int32  // beats of this rank since it was last heard
	bye      chan struct{} // closed once it has said that it needs no more, or is gone

	// While others are awaited:
	gone    chan struct{} // closed once it has hung up
	watched chan struct{} // closed when nobody looks any more
}

// A message is what ranks send each other, as a line of JSON behind its seal. Kinds: hello, which has
// Job, Rank, Size and Process, and is the first of a rank and rank 0's when all have come; met, which
// rank 0 says to one that has come; other, to one of another job; alive; data, which has What and
// Data; fail, which has Reason; bye, behind which nothing is read.
type message struct {
	Kind    string
	Process string `json:",omitempty"`
	Job     string `json:",omitempty"`
	Rank    int    `json:",omitempty"`
	Size    int    `json:",omitempty"`
	What    string `json:",omitempty"`
	Data    []byte `json:",omitempty"`
	Reason  string `json:",omitempty"`
}

// program is what this is, and the version of what ranks say to each other.
const program = "mlpool ranks 3"

func newPeer(rank int, conn net.Conn) *peer {
	return &peer{rank: rank, conn: conn, text: bufio.NewReader(conn), in: make(chan message, 4), bye: make(chan struct{})}
}

func (p *peer) send(m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	p.write.Lock()
	defer p.write.Unlock()
	if err := p.conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err = p.conn.Write(p.sent.put(text))
	return err
}

// maxMessage bounds what is read of a rank at once, in bytes, and maxHello what is read of one that
// may be none. All facts of a config take a few thousand.
const (
	maxMessage = 1 << 20
	maxHello   = 4096
)

var (
	errNothing   = errors.New("nothing came")
	errNoMessage = errors.New("what came is no message of a rank")
	errSeal      = fmt.Errorf("%w that knows the secret", errNoMessage)
)

// read reads a message, a line of at most most bytes. In its words a space replaces each
// character that cannot be printed.
func (p *peer) read(most int) (m message, err error) {
	line, err := p.readLine(most)
	if err != nil {
		return m, err
	}
	text, err := p.received.take(line)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errNoMessage, err)
	}
	m.Process, m.What, m.Reason = printable(m.Process), printable(m.What), printable(m.Reason)
	return m, nil
}

func (p *peer) readLine(most int) (line []byte, err error) {
	for {
		part, err := p.text.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > most:
			return nil, fmt.Errorf("%w: it has more than %d bytes", errNoMessage, most)
		case err == nil:
			return line, nil
		case len(line) == 0:
			return nil, fmt.Errorf("%w: %w", errNothing, err)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// watch notes in gone that the peer hangs up, until unwatch. Meanwhile nothing else reads.
func (p *peer) watch() {
	p.gone, p.watched = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(p.watched)
		if _, err := p.text.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			close(p.gone)
		}
	}()
}

func (p *peer) unwatch() {
	_ = p.conn.SetReadDeadline(time.Now()) // of a connection that is closed, Read says so
	<-p.watched
	_ = p.conn.SetReadDeadline(time.Time{})
}

// isGone says whether a peer has hung up, as far as watch knows.
func (p *peer) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}
