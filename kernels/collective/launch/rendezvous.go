package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxHello bounds what is read of one that may be no rank, in bytes.
const maxHello = 4096

// Silence is after how long a rank of which nothing is heard counts as lost, once all have met.
const Silence = 30 * time.Second

// howToMeet is what to do where ranks have not met in time.
const howToMeet = "start all ranks, set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port that is free there, or have them wait longer with " + TimeoutEnv + "=5m"

// Rendezvous connects the ranks, all of which must come within the time of the process. One of
// which nothing is heard for so long afterwards counts as lost.
func Rendezvous(ctx context.Context, p Process, silence time.Duration) (*World, error) {
	return rendezvous(ctx, p, silence, tcp{})
}

// A network is what ranks meet over.
type network interface {
	listen(ctx context.Context, address string) (net.Listener, error)
	dial(ctx context.Context, address string) (net.Conn, error)
}

type tcp struct{}

func (tcp) listen(ctx context.Context, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

func (tcp) dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

func rendezvous(ctx context.Context, p Process, silence time.Duration, over network) (*World, error) {
	w := &World{Process: p, over: over, ended: make(chan struct{})}
	if p.Size == 1 {
		return w, nil
	}
	limited, cancel := context.WithTimeout(ctx, p.Within)
	defer cancel()
	connect := w.dial
	if p.Rank == 0 {
		connect = w.accept
	}
	if err := connect(limited); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, errors.Join(err, w.close())
	}
	w.start(silence)
	return w, nil
}

// accept waits for all ranks.
func (w *World) accept(ctx context.Context) error {
	at, err := listenAt(w.Address)
	if err != nil {
		return err
	}
	l, err := w.over.listen(ctx, at)
	if err != nil {
		return fmt.Errorf("rank 0 cannot be met: %w: choose another port with MASTER_PORT", err)
	}
	come, done := acceptCallers(ctx, l)
	defer done() // ranks stay connected
	byRank := make([]*peer, w.Size-1)
	for len(w.peers) < w.Size-1 {
		var c caller
		select {
		case c = <-come:
		case <-ctx.Done():
			return w.failMissing(ctx, byRank)
		}
		p, reason := c.peer, ""
		switch hello := c.hello; {
		case c.err != nil:
			return c.err
		case hello.Kind != "hello" || hello.Program != program: // a stranger ends nothing
			_ = p.conn.Close()
			continue
		case hello.Job != w.Job: // which has its own rank 0
			_ = p.send(message{Kind: "other", Program: program}) // it may be gone itself
			_ = p.conn.Close()
			continue
		}
		p.rank, p.process = c.hello.Rank, c.hello.Process
		switch {
		case c.hello.Size != w.Size:
			reason = fmt.Sprintf("rank %d is one of %d, and rank 0 of %d: start all ranks with one command", p.rank, c.hello.Size, w.Size)
		case p.rank < 1 || p.rank >= w.Size:
			reason = fmt.Sprintf("rank %d came to rank 0, which waits for 1 to %d: start all ranks with one command", p.rank, w.Size-1)
		case byRank[p.rank-1] != nil:
			reason = fmt.Sprintf("there are two of rank %d: start all ranks with one command", p.rank)
		}
		w.peers = append(w.peers, p) // to be closed, whatever comes
		if reason != "" {
			w.sendFailure(w.peers, reason)
			return errors.New(reason)
		}
		byRank[p.rank-1] = p
	}
	w.peers = byRank
	for _, p := range w.peers {
		_ = p.send(w.hello()) // where one is gone, listen says so to all
	}
	return nil
}

// listenAt is where rank 0 listens to be met at an address: on all interfaces, since the name may
// be another one's here, unless nobody but this host is to come.
func listenAt(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && !isLoopback(host) {
		host = ""
	}
	return net.JoinHostPort(host, port), err
}

// failMissing has the ranks that have come end because others have not.
func (w *World) failMissing(ctx context.Context, byRank []*peer) error {
	var missing []string
	for i, p := range byRank {
		if p == nil {
			missing = append(missing, fmt.Sprint(i+1))
		}
	}
	if shown := 3; len(missing) > shown+1 { // a hello has no room for thousands
		missing = append(missing[:shown-1], fmt.Sprintf("%s and %d more", missing[shown-1], len(missing)-shown))
	}
	reason := fmt.Sprintf("rank %s of %d did not come to %s within %v: %s",
		strings.Join(missing, ", "), w.Size, w.Address, w.Within, howToMeet)
	if errors.Is(ctx.Err(), context.Canceled) {
		reason = "rank 0 was interrupted"
	}
	w.sendFailure(w.peers, reason)
	return errors.New(reason)
}

// A caller has connected to rank 0, and said hello if it is a rank.
type caller struct {
	peer  *peer
	hello message
	err   error // that ends the listening
}

// acceptCallers gives those who connect, until done is called. Each is listened to by itself,
// so that one who says nothing keeps nobody.
func acceptCallers(ctx context.Context, l net.Listener) (come <-chan caller, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	callers := make(chan caller)
	var all sync.WaitGroup
	give := func(c caller) {
		select {
		case callers <- c:
		case <-ctx.Done():
			if c.peer != nil {
				_ = c.peer.conn.Close()
			}
		}
	}
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				give(caller{err: err})
				return
			}
			p := newPeer(0, conn) // its rank is in its hello
			all.Go(func() { give(caller{peer: p, hello: p.readHello(ctx)}) })
		}
	})
	return callers, func() {
		cancel()
		_ = l.Close()
		all.Wait()
	}
}

// readHello reads a hello; of one who says something else, or nothing for long, there is none.
func (p *peer) readHello(ctx context.Context) message {
	_ = p.conn.SetReadDeadline(time.Now().Add(5 * time.Second)) // of a connection that is closed, Read says so
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	hello, err := p.read(maxHello)
	if err != nil || !stop() || p.conn.SetReadDeadline(time.Time{}) != nil {
		return message{}
	}
	return hello
}

// sendFailure has the ranks that have come end for a reason.
func (w *World) sendFailure(peers []*peer, reason string) {
	for _, p := range peers {
		_ = p.send(message{Kind: "fail", Program: program, Reason: reason}) // it may be gone itself
	}
}

// dial connects to rank 0, which may come later.
func (w *World) dial(ctx context.Context) error {
	var last error
	for {
		err := w.dialOnce(ctx)
		if err == nil || !errors.As(err, new(*notThereError)) {
			return err
		}
		if last == nil || ctx.Err() == nil { // else it is only that the time is up
			last = err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("rank %d of %d found no rank 0 at %s within %v (%v): %s", w.Rank, w.Size, w.Address, w.Within, last, howToMeet)
		}
	}
}

// notThereError is why rank 0 was not found where it may be found later.
type notThereError struct{ error }

// dialOnce connects to rank 0, and waits until all ranks have come.
func (w *World) dialOnce(ctx context.Context) error {
	conn, err := w.over.dial(ctx, w.Address)
	if err != nil {
		return &notThereError{err}
	}
	p := newPeer(0, conn)
	if err = p.send(w.hello()); err != nil {
		err = &notThereError{err}
	} else {
		err = w.welcome(ctx, p)
	}
	if errors.As(err, new(*notThereError)) {
		w.peers = nil
		_ = conn.Close()
	}
	return err
}

// welcome waits until all ranks have come.
func (w *World) welcome(ctx context.Context, p *peer) error {
	w.peers = []*peer{p}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = p.conn.SetReadDeadline(time.Now().Add(2 * time.Second)) // rank 0 says why first
	})
	defer stop()
	hello, err := p.read(maxHello)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("rank %d of %d has met rank 0 at %s, which still waits for others: start all ranks", w.Rank, w.Size, w.Address)
	case errors.Is(err, errNothing): // as of one that passes connections on to where nobody listens yet
		return &notThereError{errors.New("who listens there hangs up")}
	case err != nil || hello.Program != program || !slices.Contains([]string{"hello", "fail", "other"}, hello.Kind):
		return fmt.Errorf("rank %d found something else than rank 0 at %s, or it ended: choose another port with MASTER_PORT", w.Rank, w.Address)
	case hello.Kind == "other":
		return &notThereError{errors.New("another launch meets there")}
	}
	if hello.Kind == "fail" {
		return &ReportedError{hello.Reason}
	}
	if !stop() {
		<-hurried // before the deadline is taken back
	}
	if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	p.process = hello.Process
	return nil
}
