package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"mlpool/internal/text"
)

// A World is a rank's connection to the other ranks of a launch. Its methods may be called from any
// goroutine, but Exchange from one at a time.
type World struct {
	Process
	over     network
	noSecret error   // why the user's secret could not be read
	peers    []*peer // rank 0 has the others, by rank - 1; any other rank has rank 0

	mu    sync.Mutex
	err   error         // why the ranks ended early
	ended chan struct{} // closed once err is set
	left  bool

	quiet func() // ends the beats
}

// ReportedError is an error that rank 0 prints, so that other ranks need not.
type ReportedError struct{ Reason string }

func (e *ReportedError) Error() string { return e.Reason }

// hello returns this rank's first message.
func (w *World) hello() message {
	process := fmt.Sprintf("process %d", os.Getpid())
	if host, err := os.Hostname(); err == nil {
		process += " on " + host
	}
	return message{Kind: "hello", Process: process, Job: w.Job, Rank: w.Rank, Size: w.Size}
}

// listen receives messages of a peer until it says bye or is gone.
func (w *World) listen(p *peer) {
	defer close(p.bye)
	for {
		m, err := p.read(maxMessage)
		p.missed.Store(0)
		switch {
		case errors.Is(err, errNoMessage):
			w.end(fmt.Errorf("rank %d, %s: %w", p.rank, p.process, err), nil)
			return
		case err != nil:
			w.end(fmt.Errorf("rank %d is gone: %s ended without a word, or its host or network did", p.rank, p.process), p)
			return
		case m.Kind == "alive":
		case m.Kind == "bye":
			return
		case m.Kind == "fail" && w.Rank == 0:
			w.end(errors.New(m.Reason), p)
			return
		case m.Kind == "fail":
			w.end(&ReportedError{m.Reason}, p)
			return
		case m.Kind == "data":
			select {
			case p.in <- m:
			case <-w.ended:
				return
			}
		default:
			w.end(fmt.Errorf("rank %d, %s: %w: of the kind %q", p.rank, p.process, errNoMessage, m.Kind), nil)
			return
		}
	}
}

// end ends all ranks. from is the peer that sent the reason, or nil if the reason is this rank's.
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
			_ = p.send(message{Kind: "fail", Reason: text.OneLine(reason.Error())}) // it may be gone
		}
	}
}

// Ended returns a channel that is closed when the ranks end early. Err then says why.
func (w *World) Ended() <-chan struct{} { return w.ended }

// OnEnd calls f in its own goroutine if the ranks end early, unless stop is called before.
func (w *World) OnEnd(f func(reason error)) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-w.ended:
			f(w.Err())
		case <-stopped:
		}
	}()
	return sync.OnceFunc(func() { close(stopped) })
}

// Err returns why the ranks ended early, or nil.
func (w *World) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Exchange passes mine of each rank, by rank, to decide on rank 0, and returns its result on all
// ranks. An error of decide ends all ranks. All ranks call it with the same what.
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

// receive waits for a peer's data of an Exchange.
func (w *World) receive(p *peer, what string) ([]byte, error) {
	select {
	case m := <-p.in:
		return w.checked(p, m, what)
	case <-p.bye:
	case <-w.ended:
	}
	select { // data that came before the end counts
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

// End ends all ranks with err. If they have ended already, it returns the first reason.
func (w *World) End(err error) (first error) {
	if first = w.Err(); first != nil {
		return first
	}
	reported := new(ReportedError)
	switch another := errors.As(err, &reported); { // ranks in one process pass on another's error
	case another && w.Rank == 0:
		err = errors.New(reported.Reason)
	case another:
		err = reported
	case w.Rank != 0:
		err = &ReportedError{fmt.Sprintf("rank %d: %s", w.Rank, text.OneLine(err.Error()))}
	}
	w.end(err, nil)
	return nil
}

// Leave ends this rank's part, and waits up to 5 s for the others. If err is not nil it ends all
// ranks, and returns a [*ReportedError] if rank 0 prints it. Otherwise it returns why the ranks ended
// early, if they did.
func (w *World) Leave(err error) error {
	if w.Size == 1 {
		return err
	}
	w.quiet()
	if err != nil {
		// err may be a consequence of the first reason, unless rank 0 has the same.
		if first := w.End(err); w.Rank != 0 || first == nil || !strings.HasSuffix(first.Error(), ": "+text.OneLine(err.Error())) {
			err = w.Err()
		}
	} else {
		for _, p := range w.peers {
			_ = p.send(message{Kind: "bye"}) // it may have left
		}
	}
	patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, p := range w.peers {
		select {
		case <-p.bye:
		case <-patience.Done():
		}
	}
	w.mu.Lock()
	w.left = true
	err = cmp.Or(err, w.err)
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
