package cudadriver

// MallocHost returns bytes > 0 bytes of pinned host memory, aligned to a page of the host, which all
// devices can copy from and to.
func (d Driver) MallocHost(bytes int64) (addr uintptr, err error) {
	counts.mallocHost.Add(1)
	addr, code := rawMallocHost(d.device, bytes)
	return addr, check("MallocHost", code)
}

// FreeHost frees memory of MallocHost. All work on it must be done.
func (d Driver) FreeHost(addr uintptr) error {
	counts.freeHost.Add(1)
	return check("FreeHost", rawFreeHost(d.device, addr))
}

// CopyToHost copies bytes > 0 bytes of device memory to host memory and returns when that is done.
// Work on the memory must be done, since the copy waits for no stream of NewStream.
func (d Driver) CopyToHost(host, addr uintptr, bytes int64) error {
	counts.copyToHost.Add(1)
	return check("CopyToHost", rawCopyToHost(d.device, host, addr, bytes))
}

// CopyFromHost is CopyToHost from host memory to device memory.
func (d Driver) CopyFromHost(addr, host uintptr, bytes int64) error {
	counts.copyFromHost.Add(1)
	return check("CopyFromHost", rawCopyFromHost(d.device, addr, host, bytes))
}

// HostDriver is an allocator.Driver of pinned host memory, whose streams and events are those of a
// device: HostDriver{Events: d.Events} is of the device of Driver d, and the zero value of device 0.
type HostDriver struct{ Events }

// Malloc is Driver.MallocHost.
func (h HostDriver) Malloc(bytes int64) (addr uintptr, err error) {
	return Driver{Events: h.Events}.MallocHost(bytes)
}

// Free is Driver.FreeHost.
func (h HostDriver) Free(addr uintptr) error { return Driver{Events: h.Events}.FreeHost(addr) }

// MemInfo returns 0: how much memory the host can pin is unknown.
func (HostDriver) MemInfo() (free, total int64, err error) { return 0, 0, nil }
