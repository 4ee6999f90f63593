package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// A World is the ranks of a training that have met. Its methods may be called from any
// goroutine, Exchange from one.
type World struct {
	Place
	peers []*peer // of rank 0: the others, by rank - 1; of any other: rank 0

	mu    sync.Mutex
	err   error         // why the ranks end before their time
	ended chan struct{} // closed once err is set
	left  bool
}

// peer is a connection to another rank.
type peer struct {
	rank  int
	conn  net.Conn
	rest  io.Reader // of the connection, behind the hello
	in    chan message
	write sync.Mutex
	bye   chan struct{} // closed once it has said that it needs no more, or is gone
}

// A message is what ranks send each other, as JSON. Kinds: hello, which has Rank, Size and
// Program; data, which has What and Data; fail, which has Reason; bye.
type message struct {
	Kind    string
	Program string `json:",omitempty"`
	Rank    int    `json:",omitempty"`
	Size    int    `json:",omitempty"`
	What    string `json:",omitempty"`
	Data    []byte `json:",omitempty"`
	Reason  string `json:",omitempty"`
}

const program = "mlpool ranks 1"

// mostHello bounds what is read of one that may be no rank.
const mostHello = 4096

// ToldError is the end of a rank for a reason that rank 0 knows and prints.
type ToldError struct{ Reason string }

func (e *ToldError) Error() string { return e.Reason }

// Meet connects the ranks, all of which must come before the time is up.
func Meet(ctx context.Context, p Place, within time.Duration) (*World, error) {
	w := &World{Place: p, ended: make(chan struct{})}
	if p.Size == 1 {
		return w, nil
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	meet := w.dial
	if p.Rank == 0 {
		meet = w.accept
	}
	if err := meet(limited, within); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// keepAlive notices within some ten seconds that the host of a rank is gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// accept waits for all ranks.
func (w *World) accept(ctx context.Context, within time.Duration) error {
	host, port, err := net.SplitHostPort(w.Address)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		host = "" // the name may be another interface's here
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("rank 0 cannot be met: %w: choose another port with MASTER_PORT", err)
	}
	defer l.Close() // ranks stay connected
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	peers := make([]*peer, w.Size-1)
	for come := 0; come < w.Size-1; {
		conn, err := l.Accept()
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err != nil {
			var missing []string
			for i, p := range peers {
				if p == nil {
					missing = append(missing, fmt.Sprint(i+1))
				}
			}
			reason := fmt.Sprintf("rank %s of %d did not come to %s within %v: start all ranks, and set MASTER_ADDR to the host of rank 0",
				strings.Join(missing, ", "), w.Size, w.Address, within)
			if errors.Is(ctx.Err(), context.Canceled) {
				reason = "rank 0 was interrupted"
			}
			w.tell(peers, reason)
			return errors.New(reason)
		}
		hello, reason := greeted(conn)
		switch {
		case reason == "" && hello.Size != w.Size:
			reason = fmt.Sprintf("rank %d is one of %d, and rank 0 of %d: start all ranks with one command", hello.Rank, hello.Size, w.Size)
		case reason == "" && (hello.Rank < 1 || hello.Rank >= w.Size || peers[hello.Rank-1] != nil):
			reason = fmt.Sprintf("there are two of rank %d: start all ranks with one command", hello.Rank)
		}
		if hello.Program != program { // a stranger ends nothing
			_ = conn.Close()
			continue
		}
		p := newPeer(hello.Rank, conn)
		if reason != "" {
			w.tell(append(peers, p), reason)
			return errors.Join(errors.New(reason), conn.Close())
		}
		peers[hello.Rank-1] = p
		w.peers = append(w.peers, p) // to be closed, whatever comes
		come++
	}
	w.peers = peers
	for _, p := range peers {
		if err := p.send(message{Kind: "hello", Program: program}); err != nil {
			return err
		}
	}
	for _, p := range peers {
		go w.listen(p)
	}
	return nil
}

// greeted reads a hello.
func greeted(conn net.Conn) (hello message, reason string) {
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return hello, err.Error()
	}
	text := make([]byte, 0, mostHello)
	for len(text) < mostHello { // byte by byte: what comes behind it is for the listener
		one := text[len(text) : len(text)+1]
		if _, err := conn.Read(one); err != nil {
			return hello, err.Error()
		}
		text = text[:len(text)+1]
		if one[0] == '\n' {
			break
		}
	}
	if err := json.Unmarshal(text, &hello); err != nil {
		return message{}, err.Error()
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return hello, err.Error()
	}
	return hello, ""
}

// tell has the ranks that have come end for a reason.
func (w *World) tell(peers []*peer, reason string) {
	for _, p := range peers {
		if p == nil {
			continue
		}
		_ = p.send(message{Kind: "fail", Program: program, Reason: reason}) // it may be gone itself
	}
}

// dial connects to rank 0, which may come later.
func (w *World) dial(ctx context.Context, within time.Duration) error {
	dialer := net.Dialer{KeepAliveConfig: keepAlive}
	for {
		conn, err := dialer.DialContext(ctx, "tcp", w.Address)
		if err == nil {
			p := newPeer(0, conn)
			err = p.send(message{Kind: "hello", Program: program, Rank: w.Rank, Size: w.Size})
			if err == nil {
				return w.welcome(ctx, p, within)
			}
			_ = conn.Close()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("rank %d of %d found no rank 0 at %s within %v: start all ranks, and set MASTER_ADDR to the host of rank 0", w.Rank, w.Size, w.Address, within)
		}
	}
}

// welcome waits until all ranks have come.
func (w *World) welcome(ctx context.Context, p *peer, within time.Duration) error {
	w.peers = []*peer{p}
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Now().Add(2 * time.Second)) }) // rank 0 says why first
	defer stop()
	text := json.NewDecoder(io.LimitReader(p.conn, mostHello))
	var hello message
	if err := text.Decode(&hello); err != nil || hello.Program != program {
		return fmt.Errorf("rank %d found something else than rank 0 at %s, or it ended: choose another port with MASTER_PORT", w.Rank, w.Address)
	}
	if hello.Kind == "fail" {
		return &ToldError{hello.Reason}
	}
	if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	p.rest = io.MultiReader(text.Buffered(), p.conn)
	go w.listen(p)
	return nil
}

func newPeer(rank int, conn net.Conn) *peer {
	return &peer{rank: rank, conn: conn, rest: conn, in: make(chan message, 4), bye: make(chan struct{})}
}

func (p *peer) send(m message) error {
	p.write.Lock()
	defer p.write.Unlock()
	if err := p.conn.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	return json.NewEncoder(p.conn).Encode(m)
}

// listen takes what a peer sends, until it needs no more or is gone.
func (w *World) listen(p *peer) {
	defer close(p.bye)
	text := json.NewDecoder(p.rest)
	for {
		var m message
		err := text.Decode(&m)
		switch {
		case err != nil:
			w.end(fmt.Errorf("rank %d is gone: it ended without a word, or its host or network did", p.rank), p)
			return
		case m.Kind == "bye":
			return
		case m.Kind == "fail" && w.Rank == 0:
			w.end(errors.New(m.Reason), p)
			return
		case m.Kind == "fail":
			w.end(&ToldError{m.Reason}, p)
			return
		default:
			select {
			case p.in <- m:
			case <-w.ended:
				return
			}
		}
	}
}

// end is the end of all ranks for a reason that came from one; nil: from this one.
func (w *World) end(reason error, from *peer) {
	w.mu.Lock()
	if w.err != nil || w.left {
		w.mu.Unlock()
		return
	}
	w.err = reason
	close(w.ended)
	w.mu.Unlock()
	for _, p := range w.peers {
		if p != from {
			_ = p.send(message{Kind: "fail", Reason: oneLine(reason)}) // it may be gone itself
		}
	}
}

// oneLine is an error's text with the errors joined in it side by side.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Ended is closed when the ranks end before their time: Err says why.
func (w *World) Ended() <-chan struct{} { return w.ended }

// Err is why the ranks end before their time, or nil.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Exchange gives rank 0 what each rank has to say, by rank, and returns on all of them what
// it decides, or an error there that ends all ranks. All ranks call it with the same what.
func (w *World) Exchange(what string, mine []byte, decide func(all [][]byte) ([]byte, error)) ([]byte, error) {
	if w.Rank != 0 {
		if err := w.peers[0].send(message{Kind: "data", What: what, Data: mine}); err != nil {
			w.end(fmt.Errorf("rank 0 is gone: %w", err), nil)
		}
		return w.receive(w.peers[0], what)
	}
	all := [][]byte{mine}
	for _, p := range w.peers {
		theirs, err := w.receive(p, what)
		if err != nil {
			return nil, err
		}
		all = append(all, theirs)
	}
	answer, err := decide(all)
	if err != nil {
		w.end(err, nil)
		return nil, err
	}
	for _, p := range w.peers {
		if err := p.send(message{Kind: "data", What: what, Data: answer}); err != nil {
			w.end(fmt.Errorf("rank %d is gone: %w", p.rank, err), nil)
			return nil, w.Err()
		}
	}
	return answer, nil
}

// receive waits for what a peer says in an Exchange.
func (w *World) receive(p *peer, what string) ([]byte, error) {
	select {
	case m := <-p.in:
		return w.checked(p, m, what)
	case <-p.bye:
	case <-w.ended:
	}
	select { // what came before the end counts
	case m := <-p.in:
		return w.checked(p, m, what)
	default:
	}
	w.end(fmt.Errorf("rank %d has ended, and rank %d has come to the %s", p.rank, w.Rank, what), nil)
	return nil, w.Err()
}

func (w *World) checked(p *peer, m message, what string) ([]byte, error) {
	if m.What != what {
		w.end(fmt.Errorf("rank %d has come to the %s, and rank %d to the %s: the ranks do not run the same program", p.rank, m.What, w.Rank, what), nil)
		return nil, w.Err()
	}
	return m.Data, nil
}

// Leave parts with the other ranks. With an error, which ends all of them, it returns what
// is to be said of it here: nothing, an error of type [ToldError], where rank 0 says it.
// Without, it waits until all are done.
func (w *World) Leave(err error) error {
	if w.Size == 1 {
		return err
	}
	if err != nil {
		if told := new(ToldError); w.Rank == 0 && errors.As(err, &told) {
			err = errors.New(told.Reason) // as a collective of goroutines has it of another rank
		}
		first := w.Err()
		if first == nil && w.Rank != 0 {
			err = &ToldError{fmt.Sprintf("rank %d: %s", w.Rank, oneLine(err))}
		}
		w.end(err, nil)
		if first == nil || !strings.HasSuffix(first.Error(), ": "+oneLine(err)) { // else it is the same here
			err = w.Err() // what came of it here is not the reason
		}
	} else {
		for _, p := range w.peers {
			_ = p.send(message{Kind: "bye"}) // it may be done sooner
		}
	}
	deadline := time.After(5 * time.Second)
	for _, p := range w.peers {
		select {
		case <-p.bye:
		case <-deadline:
		}
	}
	w.mu.Lock()
	w.left = true
	if err == nil {
		err = w.err
	}
	w.mu.Unlock()
	return errors.Join(err, w.close())
}

func (w *World) close() error {
	var errs []error
	for _, p := range w.peers {
		errs = append(errs, p.conn.Close())
	}
	return errors.Join(errs...)
}
