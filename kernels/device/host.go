package device

import (
	"fmt"
	"sync"

	"github.com/shirou/gopsutil/v4/mem"

	"mlpool/allocator"
)

// HostMemory returns the most bytes that a HostDriver hands out: the memory of the host, or 64 GiB if
// that is less. So a request for more is an error, and does not end the process.
var HostMemory = sync.OnceValue(func() int64 {
	const most = 64 << 30
	memory, err := mem.VirtualMemory()
	if err != nil {
		return most
	}
	return min(int64(memory.Total), most)
})

// HostDriver hands out host memory. Work on it is done when the call that queues it returns, so its
// events are always done.
type HostDriver struct {
	mu   sync.Mutex
	live map[uintptr][]byte // the allocation that each address lies in
	used int64
	kept map[uintptr][]byte // of MallocHost, which is no memory of the device
	hostPages
}

var (
	_ allocator.PageDriver = (*HostDriver)(nil)
	_ allocator.HostCopier = (*HostDriver)(nil)
)

// NewHostDriver returns a driver that has no allocations.
func NewHostDriver() *HostDriver {
	return &HostDriver{live: make(map[uintptr][]byte), kept: make(map[uintptr][]byte)}
}

type hostMemoryError int64

func (e hostMemoryError) Error() string {
	return fmt.Sprintf("device: %d bytes more than the %d of host memory that may be used", int64(e), HostMemory())
}

func (hostMemoryError) OutOfMemory() bool { return true }

// Malloc and the other methods: see [allocator.Driver].
func (d *HostDriver) Malloc(bytes int64) (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if bytes > HostMemory()-d.used {
		return 0, hostMemoryError(bytes)
	}
	b := make([]byte, bytes+allocator.Alignment-1)
	addr := (addressOf(b) + allocator.Alignment - 1) &^ (allocator.Alignment - 1)
	d.live[addr] = b
	d.used += bytes
	return addr, nil
}

func (d *HostDriver) Free(addr uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.live[addr]
	if !ok {
		return fmt.Errorf("device: free of %#x, which is not allocated", addr)
	}
	d.used -= int64(len(b)) - allocator.Alignment + 1
	delete(d.live, addr)
	return nil
}

func (d *HostDriver) MemInfo() (free, total int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return HostMemory() - d.used, HostMemory(), nil
}

// MallocHost and the other methods: see [allocator.HostCopier].
func (d *HostDriver) MallocHost(bytes int64) (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := make([]byte, bytes)
	d.kept[addressOf(b)] = b
	return addressOf(b), nil
}

func (d *HostDriver) FreeHost(addr uintptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept[addr] == nil {
		return fmt.Errorf("device: FreeHost of %#x, which is not allocated", addr)
	}
	delete(d.kept, addr)
	return nil
}

func (d *HostDriver) CopyToHost(host, addr uintptr, bytes int64) error {
	copy(sliceAt[byte](host, int(bytes)), sliceAt[byte](addr, int(bytes)))
	return nil
}

func (d *HostDriver) CopyFromHost(addr, host uintptr, bytes int64) error {
	return d.CopyToHost(addr, host, bytes)
}

func (d *HostDriver) NewEvent() (uintptr, error)              { return 1, nil }
func (d *HostDriver) RecordEvent(event, stream uintptr) error { return nil }
func (d *HostDriver) QueryEvent(event uintptr) (bool, error)  { return true, nil }
func (d *HostDriver) WaitEvent(stream, event uintptr) error   { return nil }
func (d *HostDriver) SyncEvent(event uintptr) error           { return nil }
func (d *HostDriver) FreeEvent(event uintptr) error           { return nil }
