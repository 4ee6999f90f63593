package allocator_test

import (
	"errors"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A marker is an Allocator's way to know of other streams.
type marker interface {
	allocator.StreamRecorder
	allocator.StreamReleaser
}

// TestAsyncWithoutEvents has a driver that cannot order streams.
func TestAsyncWithoutEvents(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	a := allocator.NewAsync(struct{ allocator.AsyncDriver }{f})
	b := allocFrom(t, a, 1000, 1, "plain")
	if err := a.RecordStream(b, 2); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("RecordStream: %v, want ErrUnsupported", err)
	}
	ok(t, a.ReleaseStream(1), a.Free(b, 2), a.Close(), f.Faults(), f.Leftover())
}
