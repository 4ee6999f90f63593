package cudadriver

// PageSize returns the bytes of a page, 2 MiB on all GPUs so far. Sizes and addresses of
// the calls below are multiples of it. The error is errors.ErrUnsupported if the device or
// its driver cannot map memory.
func (Driver) PageSize() (int64, error) {
	size, code := rawPageSize()
	return int64(size), check("PageSize", code)
}

// ReserveRange reserves bytes of addresses, with no memory behind them.
func (Driver) ReserveRange(bytes int64) (addr uintptr, err error) {
	addr, code := rawReserveRange(bytes)
	return addr, check("ReserveRange", code)
}

// ReleaseRange releases a range of ReserveRange in which nothing is mapped.
func (Driver) ReleaseRange(addr uintptr, bytes int64) error {
	return check("ReleaseRange", rawReleaseRange(addr, bytes))
}

// CreatePages returns bytes of device memory that is mapped nowhere.
func (Driver) CreatePages(bytes int64) (pages uintptr, err error) {
	counts.createPages.Add(1)
	pages, code := rawCreatePages(bytes)
	return pages, check("CreatePages", code)
}

// ReleasePages releases memory of CreatePages. The device keeps it while it is mapped.
func (Driver) ReleasePages(pages uintptr) error {
	counts.releasePages.Add(1)
	return check("ReleasePages", rawReleasePages(pages))
}

// MapPages makes all bytes of pages accessible at addr, in addition to addresses where
// they are mapped already.
func (Driver) MapPages(addr, pages uintptr, bytes int64) error {
	counts.mapPages.Add(1)
	return check("MapPages", rawMapPages(addr, pages, bytes))
}

// UnmapPages undoes one MapPages. All work at the addresses must be done.
func (Driver) UnmapPages(addr uintptr, bytes int64) error {
	counts.unmapPages.Add(1)
	return check("UnmapPages", rawUnmapPages(addr, bytes))
}
