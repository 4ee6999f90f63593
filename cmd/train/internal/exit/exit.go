package exit

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
	Failure         = 1
	Usage           = 2
	CodeDiverged    = 3
	CodeInterrupted = 128 + int(syscall.SIGINT)
	Unread          = 128 + int(syscall.SIGPIPE) // nobody reads standard output, as behind head
)

// Code returns the code of a command that ended with err, under ctx.
func Code(ctx context.Context, err error) int {
	var by Signal
	switch {
	case err == nil:
		return 0
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

// Interrupted is the end of a run whose context was cancelled.
var Interrupted = errors.New("interrupted")

// IsInterrupted says whether err is that end.
func IsInterrupted(err error) bool {
	return errors.Is(err, Interrupted) || errors.Is(err, context.Canceled)
}

// Await returns what f does, or errInterrupted as soon as ctx is cancelled: what f reads, such as
// a terminal or a pipe, may never come. f then goes on until the process ends.
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
		return *new(T), Interrupted
	}
}

// Diverged is the end of a run whose loss became NaN or infinite.
type Diverged struct {
	Name        string // of the allocator, where there are several
	Epoch, Step int
}

func (e *Diverged) Error() string {
	text := fmt.Sprintf("diverged in epoch %d at step %d: lower learning_rate", e.Epoch, e.Step)
	if e.Name != "" {
		return e.Name + " " + text
	}
	return text
}

// Signal is why the context of a run is cancelled.
type Signal syscall.Signal

func (e Signal) Error() string { return "interrupted" }
func (e Signal) Unwrap() error { return context.Canceled }

// Heard is an error without what only says that nobody reads a pipe any longer; nil: that is all.
func Heard(err error) error {
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
			kept = append(kept, Heard(part))
		}
		return errors.Join(kept...)
	case interface{ Unwrap() error }:
		if Heard(e.Unwrap()) == nil {
			return nil
		}
	}
	return err
}

// IsDiverged says whether err is the end of a run that diverged.
func IsDiverged(err error) bool { return errors.As(err, new(*Diverged)) }
