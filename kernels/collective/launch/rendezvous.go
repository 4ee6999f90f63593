package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"mlpool/internal/text"
)

// Silence is the time after which a silent rank counts as lost, once all have met.
const Silence = 30 * time.Second

// howToMeet is the remedy for ranks that have not met in time.
const howToMeet = "start all ranks, set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a port that is free there, or have them wait longer with " + TimeoutEnv + "=5m"

// Rendezvous connects the ranks, all of which must come within p.Within. Afterwards a rank that is
// silent for the time silence counts as lost.
func Rendezvous(ctx context.Context, p Process, silence time.Duration) (*World, error) {
	var noSecret error
	if p.Size > 1 && p.Secret == "" && p.OneHost {
		p.Secret, noSecret = userSecret()
	}
	w, err := rendezvous(ctx, p, silence, tcp{})
	if err == nil {
		w.noSecret = noSecret
	}
	return w, err
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
		return nil, errors.Join(cmp.Or(ctx.Err(), err), w.close())
	}
	w.start(silence)
	return w, nil
}

// Warning returns a line that says that others can join the ranks, and what to do about it; empty if
// they cannot.
func (w *World) Warning() string {
	if w.Size == 1 || w.Secret != "" {
		return ""
	}
	why := ""
	if w.noSecret != nil {
		why = fmt.Sprintf(" (%s)", text.OneLine(w.noSecret.Error()))
	}
	return fmt.Sprintf("the ranks have no secret%s: anyone who reaches %s can join them: %s", why, w.Address, howToShare)
}

// accept waits for all ranks. A rank that dies meanwhile may come again.
func (w *World) accept(ctx context.Context) error {
	d, err := w.openDoor(ctx)
	if err != nil {
		return fmt.Errorf("rank 0 cannot listen: %w: choose another port with MASTER_PORT", err)
	}
	defer d.close()
	seats := make([]*peer, w.Size-1)
	for slices.Contains(seats, nil) {
		reason := ""
		select {
		case c := <-d.come:
			reason = w.seat(ctx, seats, c)
		case <-ctx.Done():
			reason = w.whoIsMissing(seats) + d.trouble() + ": " + howToMeet
		}
		w.peers = slices.DeleteFunc(slices.Clone(seats), func(p *peer) bool { return p == nil }) // for close
		if reason != "" {
			if errors.Is(ctx.Err(), context.Canceled) {
				reason = "rank 0 was interrupted"
			}
			sendFailure(w.peers, reason)
			return errors.New(reason)
		}
	}
	for _, p := range w.peers {
		p.unwatch()
		_ = p.send(w.hello()) // if it is gone, listen reports it
	}
	return nil
}

// seat gives a rank its seat, or returns the reason why all ranks must end.
func (w *World) seat(ctx context.Context, seats []*peer, c caller) (reason string) {
	free := func(i int) {
		_ = seats[i].conn.Close()
		seats[i] = nil
	}
	for i, p := range seats {
		if p != nil && p.isGone() {
			free(i)
		}
	}
	p, hello := c.peer, c.hello
	p.rank, p.process = hello.Rank, hello.Process
	switch {
	case hello.Job != w.Job: // that job has its own rank 0
		_ = p.send(message{Kind: "other"}) // it may be gone
		_ = p.conn.Close()
		return ""
	case hello.Size != w.Size:
		reason = fmt.Sprintf("rank %d is one of %d, and rank 0 of %d: start all ranks with one command", p.rank, hello.Size, w.Size)
	case p.rank < 1 || p.rank >= w.Size:
		reason = fmt.Sprintf("rank %d came to rank 0, which waits for 1 to %d: start all ranks with one command", p.rank, w.Size-1)
	case seats[p.rank-1] != nil:
		select {
		case <-seats[p.rank-1].gone: // watch may notice a little later
			free(p.rank - 1)
		case <-time.After(time.Second):
			reason = fmt.Sprintf("there are two of rank %d: start all ranks with one command", p.rank)
		case <-ctx.Done():
			_ = p.conn.Close()
			return ""
		}
	}
	if reason != "" {
		sendFailure([]*peer{p}, reason)
		_ = p.conn.Close()
		return reason
	}
	seats[p.rank-1] = p
	_ = p.send(message{Kind: "met"})
	p.watch()
	return ""
}

// whoIsMissing describes the ranks that did not come in time.
func (w *World) whoIsMissing(seats []*peer) string {
	var missing []string
	for i, p := range seats {
		if p == nil || p.isGone() {
			missing = append(missing, fmt.Sprint(i+1))
		}
	}
	if shown := 3; len(missing) > shown+1 { // thousands would exceed maxHello
		missing = append(missing[:shown-1], fmt.Sprintf("%s and %d more", missing[shown-1], len(missing)-shown))
	}
	return fmt.Sprintf("rank %s of %d did not come to %s within %v", strings.Join(missing, ", "), w.Size, w.Address, w.Within)
}

// sendFailure ends the ranks that have come.
func sendFailure(peers []*peer, reason string) {
	for _, p := range peers {
		_ = p.send(message{Kind: "fail", Reason: reason}) // it may be gone
	}
}

// dial connects to rank 0, which may start later.
func (w *World) dial(ctx context.Context) error {
	var last *notThereError
	for {
		err := w.dialOnce(ctx)
		now := new(notThereError)
		if err == nil || !errors.As(err, &now) {
			return err
		}
		if last == nil || now.said || ctx.Err() == nil && !last.said { // else the error may only be that the time is up
			last = now
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("rank %d of %d found no rank 0 at %s within %v (%v): %s", w.Rank, w.Size, w.Address, w.Within, last, howToMeet)
		}
	}
}

// notThereError is why rank 0 was not found at its address, where it may be later.
type notThereError struct {
	error
	said bool // the other end gave the reason
}

// dialOnce connects to rank 0, and waits until all ranks have come.
func (w *World) dialOnce(ctx context.Context) error {
	conn, err := w.over.dial(ctx, w.Address)
	if err != nil {
		return &notThereError{err, false}
	}
	p := newPeer(0, conn)
	w.peers = []*peer{p}
	if err = w.meet(ctx, p); err == nil {
		err = w.await(ctx, p)
	}
	if errors.As(err, new(*notThereError)) {
		w.peers = nil
		_ = conn.Close()
	}
	return err
}

// meet introduces this rank to rank 0. Another program may be at the address, so only a message of
// rank 0 ends this rank.
func (w *World) meet(ctx context.Context, p *peer) error {
	forget := p.hurry(ctx)
	defer func() { _ = forget() }() // of a peer that is not met
	switch err := p.greet(w.Secret, true); {
	case errors.As(err, new(*versionError)):
		return &notThereError{fmt.Errorf("%w listens there: start all ranks from one build", err), true}
	case err != nil:
		return &notThereError{fmt.Errorf("something else listens there: %w", err), errors.Is(err, errNoMessage)}
	}
	if err := p.send(w.hello()); err != nil {
		return &notThereError{err, false}
	}
	answer, err := p.read(maxHello)
	switch {
	case errors.Is(err, errNothing) && !errors.Is(err, os.ErrDeadlineExceeded):
		return &notThereError{errors.New("it hangs up, as if " + SecretEnv + " were not the same"), true}
	case err != nil:
		return &notThereError{err, false}
	case answer.Kind == "fail":
		return &ReportedError{answer.Reason}
	case answer.Kind == "other":
		return &notThereError{errors.New("another launch meets there"), true}
	case answer.Kind != "met":
		return &notThereError{errNoMessage, true}
	}
	if err := forget(); err != nil {
		return &notThereError{err, false}
	}
	return nil
}

// await waits until all ranks have come.
func (w *World) await(ctx context.Context, p *peer) error {
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = p.conn.SetReadDeadline(time.Now().Add(2 * time.Second)) // let rank 0 give its reason first
	})
	defer stop()
	hello, err := p.read(maxHello)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("rank %d of %d has met rank 0 at %s, which still waits for others: start all ranks", w.Rank, w.Size, w.Address)
	case err != nil:
		return &notThereError{fmt.Errorf("rank 0 ended there: %w", err), true}
	case hello.Kind == "fail":
		return &ReportedError{hello.Reason}
	case hello.Kind != "hello":
		return &notThereError{errNoMessage, true}
	}
	if !stop() {
		<-hurried // before the deadline is removed
	}
	p.process = hello.Process
	return p.conn.SetReadDeadline(time.Time{})
}
