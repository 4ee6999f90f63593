package cudadriver_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"unsafe"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/kernels/kerneltest"
)

// twoDevices returns Drivers of devices 0 and 1, with options o for device 0. It skips the test if
// there is one device. If that is emulated, it runs the test in another process with two.
func twoDevices(t *testing.T, o cudadriver.Options) (zero, one cudadriver.Driver) {
	t.Helper()
	requireDevice(t)
	n, err := cudadriver.DeviceCount()
	try(t, err)
	if n < 2 && kerneltest.Emulated() && os.Getenv(inChild) == "" {
		again(t, "EMULATOR_DEVICES=2", t.Name())
		t.Skip("passed in a process with two devices")
	}
	if n < 2 {
		t.Skip("there is one device")
	}
	zero, err = cudadriver.New(o)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	try(t, err)
	one, err = cudadriver.New(cudadriver.Options{Device: 1})
	try(t, err)
	return zero, one
}

// upload and download copy between device memory and a string of its size.
func upload(t *testing.T, d cudadriver.Driver, addr uintptr, text string) {
	t.Helper()
	try(t, d.CopyFromHost(addr, uintptr(unsafe.Pointer(unsafe.StringData(text))), int64(len(text))))
}

func download(t *testing.T, d cudadriver.Driver, addr uintptr, bytes int) string {
	t.Helper()
	got := make([]byte, bytes)
	try(t, d.CopyToHost(uintptr(unsafe.Pointer(&got[0])), addr, int64(bytes)))
	return string(got)
}

// TestDevices uses two devices in turn, on the same threads.
func TestDevices(t *testing.T) {
	zero, one := twoDevices(t, cudadriver.Options{})
	if again, err := cudadriver.New(cudadriver.Options{Device: 1}); err != nil || again != one || again == zero {
		t.Errorf("device 1 once more: %+v, %v", again, err)
	}
	free := func(d cudadriver.Driver) int64 {
		free, _, err := d.MemInfo()
		try(t, err)
		return free
	}
	const size = 256 << 20
	before := [2]int64{free(zero), free(one)}
	addr, err := one.Malloc(size)
	try(t, err)
	if taken := before[1] - free(one); taken < size {
		t.Errorf("device 1 has %d bytes less", taken)
	}
	if taken := before[0] - free(zero); taken >= size {
		t.Errorf("device 0 has %d bytes less", taken)
	}
	upload(t, one, addr, "of device 1")
	if got := download(t, one, addr, 11); got != "of device 1" {
		t.Errorf("device 1 has %q", got)
	}
	try(t, one.Free(addr))

	var pools []allocator.Allocator
	var streams []uintptr
	for _, d := range []cudadriver.Driver{zero, one} {
		o := cudadriver.DefaultMemPoolOptions()
		o.Device = len(pools) / 2
		async, err := cudadriver.NewMemPoolWith(o)
		try(t, err)
		pool, err := allocator.NewPool(d, allocator.PoolOptions{MaxBytes: 64 << 20})
		try(t, err)
		s, err := d.NewStream()
		try(t, err)
		pools, streams = append(pools, pool, allocator.NewAsync(async)), append(streams, s, s)
	}
	for range 3 {
		for i, p := range pools {
			b, err := p.Alloc(40<<20, streams[i], "more than half of the limit")
			try(t, err)
			try(t, p.Free(b, streams[i]))
		}
	}
	for i, p := range pools {
		try(t, [...]cudadriver.Driver{zero, one}[i/2].Synchronize())
		try(t, p.Close())
	}
	try(t, errors.Join(zero.FreeStream(streams[0]), one.FreeStream(streams[2])))

	graphs, err := cudadriver.NewGraphPool(1)
	try(t, err)
	try(t, graphs.ClosePool())
}

// TestPeers reads and writes pages of device 0 with device 1.
func TestPeers(t *testing.T) {
	pageSize(t)
	zero, one := twoDevices(t, cudadriver.Options{Peers: []int{1, 0, 1}, Shareable: true})
	page, err := zero.PageSize()
	try(t, err)
	pages, err := zero.CreatePages(page)
	try(t, err)
	addr, err := zero.ReserveRange(2 * page)
	try(t, err)
	try(t, zero.MapPages(addr, pages, page))
	upload(t, zero, addr, "from device 0")
	if got := download(t, one, addr, 13); got != "from device 0" {
		t.Errorf("device 1 reads %q", got)
	}
	upload(t, one, addr, "from device 1")
	if got := download(t, zero, addr, 13); got != "from device 1" {
		t.Errorf("device 0 reads %q", got)
	}
	// Only the emulated driver is sure to refuse a device without access.
	try(t, cudadriver.Driver{}.MapPages(addr+uintptr(page), pages, page))
	var b byte
	err = one.CopyToHost(uintptr(unsafe.Pointer(&b)), addr+uintptr(page), 1)
	if kerneltest.Emulated() && err == nil {
		t.Error("device 1 reads memory without access")
	}
	try(t, errors.Join(zero.UnmapPages(addr, page), zero.UnmapPages(addr+uintptr(page), page)))
	try(t, errors.Join(zero.ReleasePages(pages), zero.ReleaseRange(addr, 2*page)))
}

// TestHost copies to pinned memory and back.
func TestHost(t *testing.T) {
	requireDevice(t)
	var d cudadriver.Driver
	before := cudadriver.Counters()
	const size = 1 << 20
	host, err := d.MallocHost(size)
	try(t, err)
	addr, err := d.Malloc(2 * size)
	try(t, err)
	if host%allocator.Alignment != 0 {
		t.Errorf("pinned memory at %#x", host)
	}
	text := strings.Repeat("0123456789abcdef", size/16)
	upload(t, d, addr, text)
	try(t, d.CopyToHost(host, addr, size))
	try(t, d.CopyFromHost(addr+size, host, size))
	if got := download(t, d, addr+size, size); got != text {
		t.Error("the copy differs")
	}
	if got := unsafe.String((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&host))), size); got != text {
		t.Error("the host reads something else")
	}
	_, err = d.MallocHost(1 << 50)
	want(t, "Malloc of 1 PiB", err, 2)
	try(t, errors.Join(d.FreeHost(host), d.Free(addr)))
	now := cudadriver.Counters()
	if now.MallocHost != before.MallocHost+2 || now.FreeHost != before.FreeHost+1 ||
		now.CopyToHost != before.CopyToHost+2 || now.CopyFromHost != before.CopyFromHost+2 {
		t.Errorf("counters went from %+v to %+v", before, now)
	}
}
