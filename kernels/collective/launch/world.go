package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"mlpool/internal/text"
)

// A World is the ranks of a training that have met. Its methods may be called from any
// goroutine, Exchange from one.
type World struct {
	Process
	over     network // on which they met
	noSecret error   // why there is none; nil: none was looked for, or there is one
	peers    []*peer // of rank 0: the others, by rank - 1; of any other: rank 0

	mu    sync.Mutex
	err   error         // why the ranks end before their time
	ended chan struct{} // closed once err is set
	left  bool

	quiet func() // ends the beats
}

// ReportedError is an error that rank 0 prints, so that this rank prints nothing.
type ReportedError struct{ Reason string }

func (e *ReportedError) Error() string { return e.Reason }

// hello is what this rank says first.
func (w *World) hello() message {
	process := fmt.Sprintf("process %d", os.Getpid())
	if host, err := os.Hostname(); err == nil {
		process += " on " + host
	}
	return message{Kind: "hello", Process: process, Job: w.Job, Rank: w.Rank, Size: w.Size}
}

// listen takes what a peer sends, until it needs no more or is gone.
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
			_ = p.send(message{Kind: "fail", Reason: text.OneLine(reason.Error())}) // it may be gone itself
		}
	}
}

// Ended is closed when the ranks end before their time: Err says why.
func (w *World) Ended() <-chan struct{} { return w.ended }

// OnEnd calls f, in a goroutine of its own, when the ranks end before their time, unless
// stop is called before.
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

// End makes all ranks end because of err. It returns the earlier reason where they were
// ending already.
func (w *World) End(err error) (first error) {
	if first = w.Err(); first != nil {
		return first
	}
	reported := new(ReportedError)
	switch another := errors.As(err, &reported); { // as a collective of goroutines has it of another rank
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

// Leave ends this rank's part, and waits up to 5 s for the others to end theirs. With an error
// it ends all ranks, and returns a [ReportedError] where rank 0 prints it; without, it returns
// why they ended before their time, if they did.
func (w *World) Leave(err error) error {
	if w.Size == 1 {
		return err
	}
	w.quiet()
	if err != nil {
		// What came of it here is not the reason, unless it is the same on rank 0.
		if first := w.End(err); w.Rank != 0 || first == nil || !strings.HasSuffix(first.Error(), ": "+text.OneLine(err.Error())) {
			err = w.Err()
		}
	} else {
		for _, p := range w.peers {
			_ = p.send(message{Kind: "bye"}) // it may be done sooner
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
