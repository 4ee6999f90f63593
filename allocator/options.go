package allocator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
)

// Reuse is the policy by which free memory moves from one stream to another.
type Reuse int

const (
	// ReuseWait hands memory to another stream after making that stream wait,
	// on the device, for the work that used it last. The default.
	ReuseWait Reuse = iota
	// ReuseOpportunistic hands it over only once that work is found done.
	ReuseOpportunistic
	// ReuseSameStream never hands it over.
	ReuseSameStream
)

var reuseNames = [...]string{"wait", "opportunistic", "same-stream"}

func (r Reuse) String() string {
	if r < 0 || int(r) >= len(reuseNames) {
		return fmt.Sprintf("Reuse(%d)", int(r))
	}
	return reuseNames[r]
}

// waitMode returns the waits that the policy allows. If last, the request fails otherwise, and the host may wait.
func (r Reuse) waitMode(last bool) order.Mode {
	switch {
	case r == ReuseWait:
		return order.DeviceWaits
	case last:
		return order.HostWaits
	}
	return order.DontWait
}

// ParseReuse returns the policy called name: wait, opportunistic or same-stream.
func ParseReuse(name string) (Reuse, error) {
	if i := slices.Index(reuseNames[:], name); i >= 0 {
		return Reuse(i), nil
	}
	return 0, fmt.Errorf("allocator: no reuse policy %q; there are %q", name, reuseNames)
}

// The kinds of segments; see PoolOptions.Segments.
const (
	// SegmentsVirtual are ranges of addresses that grow. Their memory moves to where it is
	// needed. They need a PageDriver.
	SegmentsVirtual = "virtual"
	// SegmentsMalloc are calls of Driver.Malloc, each with a fixed size and address.
	SegmentsMalloc = "malloc"
)

// PoolOptions are the options of a [Pool]. Each zero value is the default.
type PoolOptions struct {
	// Strategy chooses free blocks; it is one of Strategies. The default is DefaultStrategy.
	Strategy string
	// Placement makes the placements of a heap, for a strategy of the program: one for small blocks if
	// they have separate memory, and one for the others. Strategy is then empty.
	Placement func() Placement
	// Reuse is the policy between streams.
	Reuse Reuse

	// Segments is SegmentsVirtual, SegmentsMalloc or, by default, the first of them that the
	// driver and the strategy support.
	Segments string

	// SegmentBytes is the unit to which sizes of malloc segments are rounded up, a power of two.
	// The default is 2 MiB, a page of a GPU. Virtual segments always have the driver's pages.
	SegmentBytes int64
	// MaxSegmentBytes is the size up to which malloc segments grow; a larger request gets a segment
	// of its size. The default is 256 MiB: larger ones reserve memory before it is needed, smaller
	// ones fragment a large heap. It has no effect on virtual segments.
	MaxSegmentBytes int64
	// MaxBytes limits the bytes reserved from the driver; 0: no limit. With virtual segments it is
	// rounded down to pages. A limit below one page gives malloc segments, and is an error if Segments
	// is SegmentsVirtual.
	MaxBytes int64
	// MaxFraction is the same limit as a share of the device's memory, at most 1; 0: no limit. If
	// both are given, the lower one counts.
	MaxFraction float64
	// GCThreshold is the share of MaxBytes, or of the device if there is no limit, from which on unused
	// segments or chunks are released before new ones are reserved. If the program stays above it, each
	// collection raises the threshold until the peak of allocated bytes rises; Trim and ResetPeaks reset
	// it. 0 waits until memory runs out.
	GCThreshold float64
	// Slack is the share of the peak allocated, at most 1, that virtual segments may reserve beyond it
	// before free memory moves to where it is needed. Each move calls the driver, so more slack is
	// faster if sizes and streams change all the time: 0.5 may reserve 1.5 times the peak. With 0 the pool
	// chooses: a sixty-fourth, up to an eighth at first, up to a third if stitches never stop, and up to a
	// half of the memory that moves if moves between streams never stop. Malloc segments have none.
	Slack float64
	// BusySlack is the share of the peak allocated, at most 16, that virtual segments may reserve beyond it
	// before a stream waits for another, whose queued work still uses free memory. With 0 it waits at once,
	// which costs time only if the two streams would have worked at the same time. Only Reuse ReuseWait has
	// it, and not with KeepMapped.
	BusySlack float64
	// PreallocateBytes are reserved by NewPool, which fails if the device or the limit has less. With virtual
	// segments they are rounded up to whole pages, also at the limit, and any stream takes pages as it needs
	// them. With malloc segments they are one segment, which goes as a whole to the first stream that needs a
	// part of it.
	PreallocateBytes int64
	// KeepMapped keeps all memory mapped where it is until Close or Sleep, so that captured graphs may use
	// the addresses of freed blocks: neither Trim nor a lack of memory releases any, and stitches stay
	// mapped. A GCThreshold is then an error.
	KeepMapped bool
	// Reclaim, if not nil, is called with no lock held before a request that no free block of its stream's
	// heap fits. A program that keeps freed blocks for its next requests frees them here, so that they serve
	// this one. It must not allocate.
	Reclaim func()

	// OnOutOfMemory is called before a request fails for lack of memory, with the error that it would
	// return. It may make memory free, in this pool or elsewhere, and returns true to try again, as often
	// as it likes. It may call every method of the pool, since no lock is held; an Alloc in it that fails
	// calls it as well. Several goroutines may call it at the same time. A panic in it reaches the caller
	// of Alloc. It is not called by TryAlloc or by Reserve. nil: requests fail.
	OnOutOfMemory func(e *OutOfMemoryError) (again bool)
}

const (
	defaultSegment    = 2 << 20
	defaultMaxSegment = 1 << 28
)

// Check returns the error of NewPool for the first wrong option.
func (o PoolOptions) Check() error { return o.check() }

// check sets the defaults and returns an error for the first wrong option.
func (o *PoolOptions) check() error {
	if o.Placement != nil {
		if o.Strategy != "" {
			return fmt.Errorf("allocator: both Strategy %q and a Placement are set: leave one of them out", o.Strategy)
		}
		if o.Placement() == nil {
			return errors.New("allocator: PoolOptions.Placement returns nil")
		}
	}
	o.Strategy = cmp.Or(o.Strategy, DefaultStrategy)
	o.SegmentBytes = cmp.Or(o.SegmentBytes, defaultSegment)
	o.MaxSegmentBytes = cmp.Or(o.MaxSegmentBytes, max(defaultMaxSegment, o.SegmentBytes))
	if !slices.Contains(Strategies(), o.Strategy) {
		return fmt.Errorf("allocator: no strategy %q; there are %q", o.Strategy, Strategies())
	}
	if o.Reuse < ReuseWait || o.Reuse > ReuseSameStream {
		return fmt.Errorf("allocator: Reuse %v does not exist", o.Reuse)
	}
	if o.SegmentBytes < Alignment || o.SegmentBytes&(o.SegmentBytes-1) != 0 {
		return fmt.Errorf("allocator: SegmentBytes %d is not a power of two of at least %d", o.SegmentBytes, Alignment)
	}
	if !slices.Contains([]string{"", SegmentsVirtual, SegmentsMalloc}, o.Segments) {
		return fmt.Errorf("allocator: no segments of kind %q; there are %q and %q", o.Segments, SegmentsVirtual, SegmentsMalloc)
	}
	if o.SegmentBytes > maxRequest {
		return fmt.Errorf("allocator: SegmentBytes %d exceeds any device", o.SegmentBytes)
	}
	if o.MaxSegmentBytes < o.SegmentBytes {
		return fmt.Errorf("allocator: MaxSegmentBytes %d is less than SegmentBytes %d", o.MaxSegmentBytes, o.SegmentBytes)
	}
	if o.MaxBytes < 0 || o.PreallocateBytes < 0 {
		return fmt.Errorf("allocator: a size is negative: MaxBytes %d, PreallocateBytes %d", o.MaxBytes, o.PreallocateBytes)
	}
	if o.PreallocateBytes > maxRequest {
		return fmt.Errorf("allocator: PreallocateBytes %d exceeds any device", o.PreallocateBytes)
	}
	o.MaxSegmentBytes &^= o.SegmentBytes - 1
	for _, x := range [...]struct {
		name       string
		share, max float64
	}{{"GCThreshold", o.GCThreshold, 1}, {"MaxFraction", o.MaxFraction, 1}, {"Slack", o.Slack, 1}, {"BusySlack", o.BusySlack, 16}} {
		if !(x.share >= 0 && x.share <= x.max) {
			return fmt.Errorf("allocator: %s %v is not within 0 and %v", x.name, x.share, x.max)
		}
	}
	if o.Segments == SegmentsVirtual && o.strategy().Rigid {
		return fmt.Errorf("allocator: strategy %s cannot have virtual segments", o.Strategy)
	}
	if o.KeepMapped && o.GCThreshold > 0 {
		return fmt.Errorf("allocator: GCThreshold %v releases memory, and KeepMapped keeps it: leave one of them out", o.GCThreshold)
	}
	if o.MaxBytes > 0 && o.PreallocateBytes > o.MaxBytes {
		return fmt.Errorf("allocator: PreallocateBytes %d exceeds MaxBytes %d", o.PreallocateBytes, o.MaxBytes)
	}
	return nil
}

// strategy returns the strategy that the options name, or that their Placement makes.
func (o *PoolOptions) strategy() block.Strategy {
	if o.Placement != nil {
		return block.Chosen(o.Placement)
	}
	for _, s := range strategies {
		if s.name == o.Strategy {
			return s.of
		}
	}
	return block.Strategy{}
}
