package exit

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
)

func TestCode(t *testing.T) {
	signalled, cancel := context.WithCancelCause(context.Background())
	cancel(Signal(syscall.SIGTERM))
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{context.Background(), errors.New("other"), Failure},
		{context.Background(), fmt.Errorf("run: %w", ErrInterrupted), CodeInterrupted},
		{signalled, ErrInterrupted, 143},
		{signalled, context.Cause(signalled), 143},
		{signalled, fmt.Errorf("run: %w", &Diverged{Epoch: 1, Step: 2}), CodeDiverged},
	} {
		if got := Code(c.ctx, c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}
