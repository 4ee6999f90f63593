// Package exit names the ways in which the command ends early, as errors and as exit codes.
//
// An error that wraps [ErrInterrupted], [Diverged] or a [Signal] has the same exit code wherever it
// came from. Only main, and a rank that gives up (package ranks), call os.Exit.
package exit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes in addition to 0. After a signal the code is 128 plus its number, as in a shell: 130
// for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
const (
	Failure         = 1
	Usage           = 2
	CodeDiverged    = 3
	CodeInterrupted = 128 + int(syscall.SIGINT)
	Unread          = 128 + int(syscall.SIGPIPE) // nobody reads standard output any longer, as after head
)

// Code returns the exit code of a command that ended with err, which is not nil, under ctx.
func Code(ctx context.Context, err error) int {
	var by Signal
	switch {
	case IsInterrupted(err):
		if errors.As(context.Cause(ctx), &by) {
			return 128 + int(by)
		}
		return CodeInterrupted
	case IsDiverged(err):
		return CodeDiverged
	}
	return Failure
}

// ErrInterrupted is the error of a run whose context was cancelled.
var ErrInterrupted = errors.New("interrupted")

// IsInterrupted reports whether err says that the context of a run was cancelled.
func IsInterrupted(err error) bool {
	return errors.Is(err, ErrInterrupted) || errors.Is(err, context.Canceled)
}

// Await returns what f returns, or [ErrInterrupted] as soon as ctx is cancelled. f may read a terminal
// or a pipe that never delivers: after a cancellation it may run until the process ends.
func Await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return *new(T), ErrInterrupted
	}
}

// Diverged is the error of a run whose loss became NaN or infinite.
type Diverged struct {
	Name        string // of the allocator; empty: there is only one
	Epoch, Step int
}

func (e *Diverged) Error() string {
	text := fmt.Sprintf("diverged in epoch %d at step %d: lower learning_rate", e.Epoch, e.Step)
	if e.Name != "" {
		return e.Name + " " + text
	}
	return text
}

// IsDiverged reports whether err says that a run diverged.
func IsDiverged(err error) bool { return errors.As(err, new(*Diverged)) }

// Signal is the cause of a context that a signal cancelled.
type Signal syscall.Signal

func (e Signal) Error() string { return "interrupted" }
func (e Signal) Unwrap() error { return context.Canceled }

// WithoutEPIPE removes from err the EPIPE errors of pipes, but not of connections. It returns nil if
// nothing is left.
func WithoutEPIPE(err error) error {
	if !errors.Is(err, syscall.EPIPE) {
		return err
	}
	switch e := err.(type) {
	case syscall.Errno:
		return nil
	case *net.OpError: // a connection is not a pipe
	case interface{ Unwrap() []error }:
		var kept []error
		for _, part := range e.Unwrap() {
			kept = append(kept, WithoutEPIPE(part))
		}
		return errors.Join(kept...)
	case interface{ Unwrap() error }:
		if WithoutEPIPE(e.Unwrap()) == nil {
			return nil
		}
	}
	return err
}

// OnSignals returns a context that SIGINT, SIGTERM and SIGHUP cancel, with a [Signal] as its cause. A
// second signal ends the process. SIGPIPE is ignored: if the reader of standard output goes away,
// the command continues.
func OnSignals() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup runs on without its terminal
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		s := <-signals
		signal.Stop(signals)
		number, _ := s.(syscall.Signal)
		cancel(Signal(number))
	}()
	signal.Ignore(syscall.SIGPIPE)
	return ctx
}
