package allocator_test

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// bump is a custom allocator: each stream has one region of memory, from which it hands out block
// after block. Once no block of a region is live, it starts again at the region's beginning.
type bump struct {
	driver allocator.Driver
	bytes  int64  // of a region
	gens   uint64 // the Gens of its blocks are the next ones

	mu      sync.Mutex // guards what follows
	closed  bool
	stats   allocator.Stats
	regions map[allocator.Stream]*region
	live    map[uint64]bumped // by Block.Gen
}

type region struct {
	addr       uintptr
	used, live int64 // bytes
}

type bumped struct {
	allocator.LiveBlock
	of   *region
	size int64 // rounded
}

var bumps atomic.Uint64

func newBump(d allocator.Driver, bytes int64) *bump {
	return &bump{driver: d, bytes: bytes, gens: bumps.Add(1) << 40, regions: map[allocator.Stream]*region{}, live: map[uint64]bumped{}}
}

func (a *bump) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return allocator.Block{}, allocator.ErrClosed
	}
	if bytes < 0 {
		return allocator.Block{}, allocator.ErrBadSize
	}
	r, err := a.region(s)
	if err != nil {
		return allocator.Block{}, a.outOfMemory(bytes, s, tag, err)
	}
	const unit = allocator.Alignment
	if bytes > a.bytes || a.bytes-r.used < max(bytes, 1) {
		return allocator.Block{}, a.outOfMemory(bytes, s, tag, nil)
	}
	size := (max(bytes, 1) + unit - 1) / unit * unit // a.bytes is whole units
	b := allocator.Block{Addr: r.addr + uintptr(r.used), Size: bytes, Gen: a.gens + uint64(a.stats.Allocs) + 1}
	a.live[b.Gen] = bumped{allocator.LiveBlock{Addr: b.Addr, Bytes: bytes, Stream: s, Tag: tag}, r, size}
	r.used += size
	r.live += size
	a.stats.Allocs++
	a.stats.Allocated += size
	a.stats.PeakAllocated = max(a.stats.PeakAllocated, a.stats.Allocated)
	return b, nil
}

// region returns the region of s, which it reserves if there is none.
func (a *bump) region(s allocator.Stream) (*region, error) {
	if r := a.regions[s]; r != nil {
		return r, nil
	}
	a.stats.DriverCalls++
	a.stats.DriverMallocs++
	addr, err := a.driver.Malloc(a.bytes)
	if err != nil {
		return nil, err
	}
	a.stats.Reserved += a.bytes
	a.stats.PeakReserved = max(a.stats.PeakReserved, a.stats.Reserved)
	a.regions[s] = &region{addr: addr}
	return a.regions[s], nil
}

// outOfMemory returns err, or an OutOfMemoryError if err is nil or says so.
func (a *bump) outOfMemory(bytes int64, s allocator.Stream, tag string, err error) error {
	var o interface{ OutOfMemory() bool }
	if err != nil && !(errors.As(err, &o) && o.OutOfMemory()) {
		return err
	}
	return &allocator.OutOfMemoryError{
		Bytes: bytes, Stream: s, Tag: tag, Allocated: a.stats.Allocated, Reserved: a.stats.Reserved,
		LargestFree: -1, Advice: "larger regions would help", Err: err,
	}
}

func (a *bump) Free(b allocator.Block, s allocator.Stream) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return allocator.ErrClosed
	}
	was, isLive := a.live[b.Gen]
	switch {
	case !isLive && b.Gen > a.gens && b.Gen <= a.gens+uint64(a.stats.Allocs):
		return allocator.ErrDoubleFree
	case was.Addr != b.Addr || !isLive:
		return allocator.ErrUnknownBlock
	}
	if s != was.Stream { // whose next block may lie here
		if err := a.order(s, was.Stream); err != nil {
			return err
		}
	}
	delete(a.live, b.Gen)
	a.stats.Frees++
	a.stats.Allocated -= was.size
	if was.of.live -= was.size; was.of.live == 0 {
		was.of.used = 0
	}
	return nil
}

// order makes later work on one stream wait for work queued on another.
func (a *bump) order(from, to allocator.Stream) error {
	a.stats.DriverCalls += 4
	e, err := a.driver.NewEvent()
	if err != nil {
		return err
	}
	err = a.driver.RecordEvent(e, from)
	if err == nil {
		err = a.driver.WaitEvent(to, e)
	}
	return errors.Join(err, a.driver.FreeEvent(e))
}

func (a *bump) Trim(keep int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return allocator.ErrClosed
	}
	var errs []error
	for s, r := range a.regions {
		if a.stats.Reserved <= keep || r.live > 0 {
			continue
		}
		if err := a.wait(s); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, a.giveBack(s))
	}
	return errors.Join(errs...)
}

// wait waits on the host for the work on s.
func (a *bump) wait(s allocator.Stream) error {
	a.stats.DriverCalls += 4
	e, err := a.driver.NewEvent()
	if err != nil {
		return err
	}
	err = a.driver.RecordEvent(e, s)
	if err == nil {
		err = a.driver.SyncEvent(e)
	}
	return errors.Join(err, a.driver.FreeEvent(e))
}

// giveBack returns the region of s to the driver.
func (a *bump) giveBack(s allocator.Stream) error {
	a.stats.DriverCalls++
	err := a.driver.Free(a.regions[s].addr)
	if err == nil {
		a.stats.Reserved -= a.bytes
		delete(a.regions, s)
	}
	return err
}

func (a *bump) Stats() allocator.Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

func (a *bump) ResetPeaks() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.PeakAllocated, a.stats.PeakReserved = a.stats.Allocated, a.stats.Reserved
}

func (a *bump) Live() []allocator.LiveBlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []allocator.LiveBlock
	for _, b := range a.live {
		all = append(all, b.LiveBlock)
	}
	slices.SortFunc(all, func(x, y allocator.LiveBlock) int { return cmp.Compare(x.Addr, y.Addr) })
	return all
}

func (a *bump) Close() error {
	leaked := leakOf(a.Live())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return allocator.ErrClosed
	}
	a.closed = true
	clear(a.live)
	a.stats.Allocated = 0
	errs := []error{leaked}
	for s := range a.regions {
		errs = append(errs, a.giveBack(s))
	}
	return errors.Join(errs...)
}

// leakOf sums live blocks up by tag; nil if there are none.
func leakOf(blocks []allocator.LiveBlock) error {
	if len(blocks) == 0 {
		return nil
	}
	e := &allocator.LeakError{Blocks: len(blocks), Tags: allocator.ByTag(blocks)}
	for _, t := range e.Tags {
		e.Bytes += t.Bytes
	}
	return e
}

// TestOwnAllocator runs the suite on an allocator that has only what the package exports.
func TestOwnAllocator(t *testing.T) {
	allocatortest.Run(t, func(t *testing.T) *allocatortest.Env {
		f := allocatortest.NewFake(deviceBytes)
		env := allocatortest.NewEnv(t, f, newBump(f, 192<<20))
		env.Limit = 0 // it does not use a single hole again
		env.Returns = true
		return env
	})
}
