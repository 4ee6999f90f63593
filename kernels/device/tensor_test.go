package device

import (
	"math"
	"testing"

	"github.com/shirou/gopsutil/v4/mem"
	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/internal/must"
)

func TestDenseRoundTrip(t *testing.T) {
	b := newBench(t, new(HostQueue), true)
	for _, h := range []*tensor.Dense{
		tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, float32(math.Inf(1)), -4, 0, 6})),
		tensor.New(tensor.WithShape(3), tensor.WithBacking([]int32{-1, 0, 1 << 30})),
		tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]uint8{0, 255})),
	} {
		d, err := b.FromDense("h", h)
		must.OK(t, err)
		got, err := b.Dense(d)
		must.OK(t, err)
		if got.Dtype() != h.Dtype() || got.Size() != h.Size() {
			t.Errorf("%v of %v came back as %v of %v", h.Dtype(), h.Shape(), got.Dtype(), got.Shape())
		}
		want, _, _, _, _ := hostView(h)
		back, _, _, _, err := hostView(got)
		if err != nil || string(back) != string(want) {
			t.Errorf("%v came back as %v, error %v", h.Data(), got.Data(), err)
		}
		if err := b.Write(d, tensor.New(tensor.WithShape(7), tensor.Of(tensor.Float32))); err == nil {
			t.Errorf("a tensor of 7 was written over one of %v", h.Shape())
		}
		must.OK(t, b.Free(d))
	}
	if _, err := b.FromDense("h", tensor.New(tensor.WithShape(2), tensor.Of(tensor.Float64))); err == nil {
		t.Error("float64 was taken")
	}
	if _, err := b.FromDense("h", tensor.New(tensor.WithShape(2, 2, 2), tensor.Of(tensor.Float32))); err == nil {
		t.Error("three dimensions were taken")
	}
	for _, rows := range [][2]int{{-1, 1}, {0, -1}, {3, 1}} {
		if _, err := b.RowsAfter(0, b.results, rows[0], rows[1]); err == nil {
			t.Errorf("%d rows from row %d on were copied, of 3", rows[1], rows[0])
		}
	}
	if _, err := b.RowsAfter(0, b.images, 0, 1); err == nil {
		t.Error("rows of bytes were copied as floats")
	}
}

func TestHostDriver(t *testing.T) {
	d := NewHostDriver()
	memory, err := mem.VirtualMemory()
	must.OK(t, err)
	if free, total, err := d.MemInfo(); err != nil || free != total || total != min(int64(memory.Total), 64<<30) {
		t.Errorf("%d free of %d, %v, on a host of %d", free, total, err, memory.Total)
	}
	if _, err := d.Malloc(HostMemory() + 1); err == nil || !err.(interface{ OutOfMemory() bool }).OutOfMemory() {
		t.Errorf("more than there is: error %v", err)
	}
	addr, err := d.Malloc(1000)
	if err != nil || addr%allocator.Alignment != 0 {
		t.Fatalf("address %#x, error %v", addr, err)
	}
	if free, total, err := d.MemInfo(); err != nil || total-free != 1000 {
		t.Errorf("%d of %d bytes free, error %v", free, total, err)
	}
	must.OK(t, d.Fill(addr, 7, 1000, 0), d.Fill(addr+512, 8, 12, 0))
	for _, c := range []struct {
		from      uintptr
		bytes, of int64
	}{{0, 1000, 3}, {0, 512, 0}, {516, 16, 2}, {0, 0, 0}} {
		if n, err := d.Differing(addr+c.from, 7, c.bytes, 0); n != c.of || err != nil {
			t.Errorf("%d words of %d bytes from %d on differ, want %d; error %v", n, c.bytes, c.from, c.of, err)
		}
	}
	for _, c := range []struct {
		from  uintptr
		bytes int64
	}{{2, 4}, {0, 6}, {0, -4}} {
		_, err := d.Differing(addr+c.from, 1, c.bytes, 0)
		if fill := d.Fill(addr+c.from, 1, c.bytes, 0); fill == nil || err == nil {
			t.Errorf("%d bytes from %d on: Fill returns %v, Differing %v", c.bytes, c.from, fill, err)
		}
	}
	must.OK(t, d.Free(addr))
	if err := d.Free(addr); err == nil {
		t.Error("a double free was taken")
	}
}
