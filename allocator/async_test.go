package allocator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

func TestAsyncOutOfMemoryError(t *testing.T) {
	f := allocatortest.NewFake(64 << 20)
	a := allocator.NewAsync(f)
	b := allocFrom(t, a, 40<<20, 1, "kept")
	_, err := a.Alloc(60<<20, 1, "too much")
	var oom *allocator.OutOfMemoryError
	if !errors.As(err, &oom) {
		t.Fatalf("Alloc beyond the device: %v", err)
	}
	if oom.Allocated != b.Size || oom.Reserved < b.Size || oom.DeviceTotal != 64<<20 || oom.DeviceFree > 24<<20 || oom.LargestFree != -1 {
		t.Errorf("error %+v", oom)
	}
	if text := err.Error(); strings.Contains(text, "fragmentation") || !strings.Contains(text, "help") {
		t.Errorf("error text %q claims what only the driver knows, or gives no advice", text)
	}
	must.OK(t, a.Free(b, 1), a.Close(), f.Faults(), f.Leftover())
}

// A recordingDriver sees itself to the streams that use a block.
type recordingDriver struct {
	*allocatortest.Fake
	calls []string
	fail  bool
}

func (d *recordingDriver) RecordStream(addr, s uintptr) error {
	if d.fail {
		return allocatortest.ErrInjected
	}
	d.calls = append(d.calls, fmt.Sprint("record ", s))
	return nil
}

func (d *recordingDriver) WaitEvent(s, _ uintptr) error {
	d.calls = append(d.calls, fmt.Sprint("wait ", s))
	return nil
}

func (d *recordingDriver) FreeAsync(addr, s uintptr) error {
	d.calls = append(d.calls, fmt.Sprint("free ", s))
	return d.Fake.FreeAsync(addr, s)
}

// TestAsyncTellsOfStreams has a driver that wants to know which other streams use
// a block.
func TestAsyncTellsOfStreams(t *testing.T) {
	d := &recordingDriver{Fake: allocatortest.NewFake(64 << 20)}
	a := allocator.NewAsync(d)
	b, err := a.Alloc(1000, 1, "shared")
	must.OK(t, err, a.RecordStream(b, 3), a.RecordStream(b, 2), a.RecordStream(b, 3))
	d.fail = true
	if err := a.Free(b, 2); !errors.Is(err, allocatortest.ErrInjected) || len(d.calls) > 0 {
		t.Errorf("Free: %v after calls %q, want ErrInjected after none", err, d.calls)
	}
	d.fail = false
	must.OK(t, a.Free(b, 2))
	if want := []string{"record 3", "free 2"}; !slices.Equal(d.calls, want) {
		t.Errorf("the driver saw %q, want %q", d.calls, want)
	}
	must.OK(t, a.Close(), d.Faults(), d.Leftover())
}

// TestAsyncWithoutEvents has a driver that cannot order streams.
func TestAsyncWithoutEvents(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	a := allocator.NewAsync(struct{ allocator.AsyncDriver }{f})
	b := allocFrom(t, a, 1000, 1, "plain")
	if err := a.RecordStream(b, 2); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("RecordStream: %v, want ErrUnsupported", err)
	}
	must.OK(t, a.ReleaseStream(1), a.Free(b, 2), a.Close(), f.Faults(), f.Leftover())
}
