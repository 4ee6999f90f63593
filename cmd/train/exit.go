package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Exit codes in addition to 0. A run that a signal ended has 128 plus the signal's number, as in a
// shell: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP.
const (
	exitFailure     = 1
	exitUsage       = 2
	exitDiverged    = 3
	exitInterrupted = 128 + int(syscall.SIGINT)
	exitUnread      = 128 + int(syscall.SIGPIPE) // nobody reads standard output, as behind head
)

// exitCode returns the code of a command that ended with err, under ctx.
func exitCode(ctx context.Context, err error) int {
	var by signalError
	switch {
	case err == nil:
		return 0
	case interrupted(err):
		if errors.As(context.Cause(ctx), &by) {
			return 128 + int(by)
		}
		return exitInterrupted
	case diverged(err):
		return exitDiverged
	}
	return exitFailure
}

// errInterrupted is the end of a run whose context was cancelled.
var errInterrupted = errors.New("interrupted")

// interrupted says whether err is that end.
func interrupted(err error) bool {
	return errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled)
}

// await returns what f does, or errInterrupted as soon as ctx is cancelled: what f reads, such as
// a terminal or a pipe, may never come. f then goes on until the process ends.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
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
		return *new(T), errInterrupted
	}
}

// divergedError is the end of a run whose loss became NaN or infinite.
type divergedError struct {
	name        string // of the allocator, where there are several
	epoch, step int
}

func (e *divergedError) Error() string {
	text := fmt.Sprintf("diverged in epoch %d at step %d: lower learning_rate", e.epoch, e.step)
	if e.name != "" {
		return e.name + " " + text
	}
	return text
}

// signalError is why the context of a run is cancelled.
type signalError syscall.Signal

func (e signalError) Error() string { return "interrupted" }
func (e signalError) Unwrap() error { return context.Canceled }

// heard is an error without what only says that nobody reads a pipe any longer; nil: that is all.
func heard(err error) error {
	if !errors.Is(err, syscall.EPIPE) {
		return err
	}
	switch e := err.(type) {
	case syscall.Errno:
		return nil
	case *net.OpError: // a connection is no pipe
	case interface{ Unwrap() []error }:
		var kept []error
		for _, part := range e.Unwrap() {
			kept = append(kept, heard(part))
		}
		return errors.Join(kept...)
	case interface{ Unwrap() error }:
		if heard(e.Unwrap()) == nil {
			return nil
		}
	}
	return err
}

// diverged says whether err is the end of a run that diverged.
func diverged(err error) bool { return errors.As(err, new(*divergedError)) }
