package cudadriver

// PageSize returns the bytes of a page, of which there are whole numbers in the
// sizes and addresses of the calls below: 2 MiB on all GPUs so far. The error is
// errors.ErrUnsupported if the device or its driver cannot map memory.
func (Driver) PageSize() (int64, error) {
	size, code := rawPageSize()
	return int64(size), check("PageSize", code)
}

// ReserveRange reserves bytes of addresses, with no memory behind them.
func (Driver) ReserveRange(bytes int64) (addr uintptr, err error) {
	addr, code := rawReserveRange(bytes)
	return addr, check("ReserveRange", code)
}

// ReleaseRange returns what ReserveRange returned. Nothing is mapped there.
func (Driver) ReleaseRange(addr uintptr, bytes int64) error {
	return check("ReleaseRange", rawReleaseRange(addr, bytes))
}

// CreatePages returns bytes of device memory that is mapped nowhere.
func (Driver) CreatePages(bytes int64) (pages uintptr, err error) {
	counts.createPages.Add(1)
	pages, code := rawCreatePages(bytes)
	return pages, check("CreatePages", code)
}

// ReleasePages returns what CreatePages returned. The device keeps it for as long
// as it is mapped.
func (Driver) ReleasePages(pages uintptr) error {
	counts.releasePages.Add(1)
	return check("ReleasePages", rawReleasePages(pages))
}

// MapPages makes the memory of pages, all its bytes, accessible at addr, beside
// other addresses where it is so.
func (Driver) MapPages(addr, pages uintptr, bytes int64) error {
	counts.mapPages.Add(1)
	return check("MapPages", rawMapPages(addr, pages, bytes))
}

// UnmapPages undoes one MapPages. No work uses the addresses any more.
func (Driver) UnmapPages(addr uintptr, bytes int64) error {
	counts.unmapPages.Add(1)
	return check("UnmapPages", rawUnmapPages(addr, bytes))
}
