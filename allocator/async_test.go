package allocator_test

import (
	"errors"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestAsyncOutOfMemoryError(t *testing.T) {
	f := allocatortest.NewFake(64 << 20)
	a := allocator.NewAsync(f)
	b, err := a.Alloc(40<<20, 1, "kept")
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Alloc(60<<20, 1, "too much")
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
	if err := errors.Join(a.Free(b, 1), a.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}
