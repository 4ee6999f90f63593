package bench

import (
	"mlpool/allocator"
	"mlpool/allocator/allocatortest/fake"
)

// NullBytes is the size of a null device, which is more than any device has: the memory of a trace has no bound.
const NullBytes = 1 << 60

// mostPages is how many pages the live bytes of a trace may fill.
const mostPages = 1 << 20

// A null is a device without memory, which hands out addresses and counts what each stands for.
type null struct {
	*fake.Device
	queue uintptr
}

func NewNull() *null { return NewNullOf(NullBytes) }

// NewNullOf returns a device of bytes bytes.
func NewNullOf(bytes int64) *null { return &null{Device: fake.New(bytes).Unchecked()} }

// PagesFor makes the pages of d as long as a trace needs that has at most live bytes live: 2 MiB, or longer if
// these are more than mostPages. Call it before anything else.
func (d *null) PagesFor(live int64) *null {
	page := int64(2 * MiB)
	for page < live/mostPages {
		page *= 2
	}
	d.WithPages(page)
	return d
}

// NewStream returns numbers as far apart as the streams of a GPU.
func (d *null) NewStream() (allocator.Stream, error) {
	d.queue++
	return 0x7000_0000 + 0x240*d.queue, nil
}

func (d *null) Prepare() error                           { return ErrNoKernels }
func (d *null) Work(_ allocator.Stream, _ uintptr) error { return ErrNoKernels }
func (d *null) Synchronize() error                       { return nil }
func (d *null) Close() error                             { return nil }

// Pool returns the device itself as a driver's pool, whose reserved bytes are not known.
func (d *null) Pool() (allocator.AsyncDriver, error) { return nullPool{d}, nil }

type nullPool struct{ *null }

func (p nullPool) MallocAsync(bytes int64, _ uintptr) (uintptr, error) { return p.Malloc(bytes) }
func (p nullPool) FreeAsync(addr, _ uintptr) error                     { return p.Free(addr) }
func (p nullPool) PoolReserved() (current, peak int64, err error)      { return 0, 0, nil }
func (p nullPool) ResetPoolPeak() error                                { return nil }
func (p nullPool) TrimPool(int64) error                                { return nil }
func (p nullPool) ClosePool() error                                    { return nil }
