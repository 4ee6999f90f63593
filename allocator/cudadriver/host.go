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
