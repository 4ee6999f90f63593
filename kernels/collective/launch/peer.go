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
	process  string // and its host, for errors
	conn     net.Conn
	text     *bufio.Reader
	received seal
	in       chan message
	write    sync.Mutex // guards sent
	sent     seal
	missed   atomic.Int32  // beats of this rank since the last message
	bye      chan struct{} // closed once the peer has said bye or is gone

	// While rank 0 waits for other ranks:
	gone    chan struct{} // closed once the peer has hung up
	watched chan struct{} // closed when watch ends
}

// A message is a line of JSON after its seal. Kinds:
//
//	hello  the first of a rank, with Job, Rank, Size and Process; rank 0 sends its own once all have come
//	met    rank 0 to a rank that has come
//	other  rank 0 to a rank of another job
//	alive  a heartbeat
//	data   a part of an Exchange, with What and Data
//	fail   the end of all ranks, with Reason
//	bye    the sender's last message
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

// protocol is the version of the protocol. program names both.
const (
	protocol = "3"
	program  = programs + protocol
	programs = "mlpool ranks "
)

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

// maxMessage is the longest message of a rank in bytes; a config takes a few thousand. maxHello is
// the longest before the sender is known to be a rank.
const (
	maxMessage = 1 << 20
	maxHello   = 4096
)

var (
	errNothing   = errors.New("nothing came")
	errNoMessage = errors.New("not a message of a rank")
	errSeal      = fmt.Errorf("%w that knows the secret", errNoMessage)
)

// read reads a message of at most most bytes. In its text a space replaces each character that
// cannot be printed.
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

// watch closes gone if the peer hangs up, until unwatch. Meanwhile nothing else may read.
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
	_ = p.conn.SetReadDeadline(time.Now()) // if the connection is closed, Read reports it
	<-p.watched
	_ = p.conn.SetReadDeadline(time.Time{})
}

// isGone reports whether watch has seen the peer hang up.
func (p *peer) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}
