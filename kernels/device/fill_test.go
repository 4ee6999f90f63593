package device_test

import (
	"testing"

	"mlpool/internal/must"
	"mlpool/kernels/device"
)

func TestHostFill(t *testing.T) {
	d := device.NewHostDriver()
	addr, err := d.Malloc(1024)
	must.OK(t, err)
	must.OK(t, d.Fill(addr, 7, 1024, 0))
	must.OK(t, d.Fill(addr+512, 8, 12, 0))
	for _, c := range []struct {
		from      uintptr
		bytes, of int64
	}{{0, 1024, 3}, {0, 512, 0}, {516, 16, 2}, {0, 0, 0}} {
		if n, err := d.Differing(addr+c.from, 7, c.bytes, 0); n != c.of || err != nil {
			t.Errorf("%d words of %d bytes from %d on differ, want %d; error %v", n, c.bytes, c.from, c.of, err)
		}
	}
	for _, c := range []struct {
		from  uintptr
		bytes int64
	}{{2, 4}, {0, 6}, {0, -4}} {
		if err := d.Fill(addr+c.from, 1, c.bytes, 0); err == nil {
			t.Errorf("Fill of %d bytes from %d on: no error", c.bytes, c.from)
		}
		if _, err := d.Differing(addr+c.from, 1, c.bytes, 0); err == nil {
			t.Errorf("Differing of %d bytes from %d on: no error", c.bytes, c.from)
		}
	}
	must.OK(t, d.Free(addr))
}
