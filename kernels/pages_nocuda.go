//go:build !cuda

package kernels

// PageSize returns the bytes of a page, of which there are whole numbers in the
// sizes and addresses of the calls below: 2 MiB on all GPUs so far. The error is
// errors.ErrUnsupported if the device or its driver cannot map memory.
func (Driver) PageSize() (int64, error) { return 0, ErrNoCUDA }

// ReserveRange reserves bytes of addresses, with no memory behind them.
func (Driver) ReserveRange(bytes int64) (addr uintptr, err error) { return 0, ErrNoCUDA }

// ReleaseRange returns what ReserveRange returned. Nothing is mapped there.
func (Driver) ReleaseRange(addr uintptr, bytes int64) error { return ErrNoCUDA }

// CreatePages returns bytes of device memory that is mapped nowhere.
func (Driver) CreatePages(bytes int64) (pages uintptr, err error) { return 0, ErrNoCUDA }

// ReleasePages returns what CreatePages returned. The device keeps it for as long
// as it is mapped.
func (Driver) ReleasePages(pages uintptr) error { return ErrNoCUDA }

// MapPages makes the memory of pages, all its bytes, accessible at addr, beside
// other addresses where it is so.
func (Driver) MapPages(addr, pages uintptr, bytes int64) error { return ErrNoCUDA }

// UnmapPages undoes one MapPages. No work uses the addresses any more.
func (Driver) UnmapPages(addr uintptr, bytes int64) error { return ErrNoCUDA }
