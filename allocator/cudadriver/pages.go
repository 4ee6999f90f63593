package cudadriver

// PageSize returns the bytes of a page, 2 MiB on all GPUs so far. Sizes and addresses of
// the calls below are multiples of it. The error is errors.ErrUnsupported if the device or
// its driver cannot map memory.
func (d Driver) PageSize() (int64, error) {
	size, code := rawPageSize(d.device, d.shareable())
	return int64(size), check("PageSize", code)
}

// ReserveRange reserves bytes of addresses, with no memory behind them.
func (d Driver) ReserveRange(bytes int64) (addr uintptr, err error) {
	addr, code := rawReserveRange(d.device, d.shareable(), bytes)
	return addr, check("ReserveRange", code)
}

// ReleaseRange releases a range of ReserveRange in which nothing is mapped.
func (d Driver) ReleaseRange(addr uintptr, bytes int64) error {
	return check("ReleaseRange", rawReleaseRange(d.device, addr, bytes))
}

// CreatePages returns bytes of device memory that is mapped nowhere.
func (d Driver) CreatePages(bytes int64) (pages uintptr, err error) {
	counts.createPages.Add(1)
	pages, code := rawCreatePages(d.device, d.shareable(), bytes)
	return pages, check("CreatePages", code)
}

// ReleasePages releases memory of CreatePages or ImportPages. The device keeps it while it is mapped.
func (d Driver) ReleasePages(pages uintptr) error {
	counts.releasePages.Add(1)
	return check("ReleasePages", rawReleasePages(d.device, pages))
}

// MapPages makes all bytes of pages accessible at addr, in addition to addresses where
// they are mapped already, to the device and its peers.
func (d Driver) MapPages(addr, pages uintptr, bytes int64) error {
	counts.mapPages.Add(1)
	return check("MapPages", rawMapPages(d.device, d.peers(), addr, pages, bytes))
}

// SetAccess makes pages that another Driver of the device mapped accessible to the peers of d.
func (d Driver) SetAccess(addr uintptr, bytes int64) error {
	return check("SetAccess", rawSetAccess(d.device, d.peers(), addr, bytes))
}

// UnmapPages undoes one MapPages. All work at the addresses must be done.
func (d Driver) UnmapPages(addr uintptr, bytes int64) error {
	counts.unmapPages.Add(1)
	return check("UnmapPages", rawUnmapPages(d.device, addr, bytes))
}

// ExportPages returns a file descriptor for which ImportPages, also in another process, returns
// the same memory. The caller closes it; the memory exists as long as a process has it, the
// descriptor or a mapping. The Driver must be Shareable.
func (d Driver) ExportPages(pages uintptr) (fd int, err error) {
	const op = "ExportPages"
	if err := d.needShareable(op); err != nil {
		return -1, err
	}
	counts.exportPages.Add(1)
	exported, code := rawExportPages(d.device, pages)
	if err := check(op, code); err != nil {
		return -1, err
	}
	return int(exported), nil
}

// ImportPages returns the memory of a file descriptor of ExportPages, which the caller still
// closes. MapPages gives access to this Driver's device and peers, whatever device has the memory.
// ReleasePages releases it in this process.
func (d Driver) ImportPages(fd int) (pages uintptr, err error) {
	counts.importPages.Add(1)
	pages, code := rawImportPages(d.device, fd)
	return pages, check("ImportPages", code)
}
