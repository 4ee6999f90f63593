package allocator

import (
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

// waitMode returns the waits that the policy allows while the host must not wait.
func (r Reuse) waitMode() order.Mode {
	if r == ReuseWait {
		return order.DeviceWaits
	}
	return order.DontWait
}

// lastWaitMode returns the waits that it allows if a request would fail otherwise.
func (r Reuse) lastWaitMode() order.Mode {
	if r == ReuseWait {
		return order.DeviceWaits
	}
	return order.HostWaits
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
	// Placement makes the placement of each heap, for a strategy of the program. Strategy is then
	// empty.
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
	// MaxBytes limits the bytes reserved from the driver; 0: no limit. Virtual segments use whole
	// pages of it; if it is less than a page, segments are malloc segments.
	MaxBytes int64
	// MaxFraction is the same limit as a share of the device's memory, at most 1; 0: no limit. If
	// both are given, the lower one counts.
	MaxFraction float64
	// MaxSplitBytes keeps large blocks of malloc segments for large requests: a larger block is
	// handed out, and split, only for requests of more than half of MaxSplitBytes, or if a request
	// would fail otherwise. 0 splits every block, as virtual segments always do.
	MaxSplitBytes int64
	// GCThreshold is the share of MaxBytes, or of the device if there is no limit, from which on
	// unused segments or chunks are released before new ones are reserved. For a program that always
	// needs more than that, the share rises with each collection while the peak of allocated bytes
	// does not, until Trim or ResetPeaks. 0 waits until memory runs out.
	GCThreshold float64
	// Slack is the share of the peak allocated, at most 1, that virtual segments may reserve beyond
	// it before free memory moves to where it is needed. Each move calls the driver, so more slack
	// is faster if sizes and streams change all the time: 0.5 may reserve 1.5 times the peak. With 0
	// the pool chooses: a sixty-fourth, up to a third while sizes change all the time, and up to a
	// half while memory moves between streams all the time. Malloc segments have none.
	Slack float64
	// PreallocateBytes are reserved by NewPool in one segment, with virtual segments rounded up to
	// whole pages.
	PreallocateBytes int64
}

const (
	defaultSegment    = 2 << 20
	defaultMaxSegment = 1 << 28
)

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
	if o.Strategy == "" {
		o.Strategy = DefaultStrategy
	}
	if !block.IsStrategy(o.Strategy) {
		return fmt.Errorf("allocator: no strategy %q; there are %q", o.Strategy, Strategies())
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegment
	}
	if o.MaxSegmentBytes == 0 {
		o.MaxSegmentBytes = max(defaultMaxSegment, o.SegmentBytes)
	}
	if o.Reuse < ReuseWait || o.Reuse > ReuseSameStream {
		return fmt.Errorf("allocator: reuse policy %v does not exist", o.Reuse)
	}
	if o.SegmentBytes < Alignment || o.SegmentBytes&(o.SegmentBytes-1) != 0 {
		return fmt.Errorf("allocator: segment size %d is not a power of two from %d on", o.SegmentBytes, Alignment)
	}
	if !slices.Contains([]string{"", SegmentsVirtual, SegmentsMalloc}, o.Segments) {
		return fmt.Errorf("allocator: no segments of kind %q; there are %q and %q", o.Segments, SegmentsVirtual, SegmentsMalloc)
	}
	if o.SegmentBytes > maxRequest {
		return fmt.Errorf("allocator: segment size %d exceeds any device", o.SegmentBytes)
	}
	if o.MaxSegmentBytes < o.SegmentBytes {
		return fmt.Errorf("allocator: largest segment %d is smaller than the smallest, %d", o.MaxSegmentBytes, o.SegmentBytes)
	}
	if o.MaxBytes < 0 || o.MaxSplitBytes < 0 || o.PreallocateBytes < 0 {
		return fmt.Errorf("allocator: a size is negative: limit %d, largest split %d, pre-allocation %d",
			o.MaxBytes, o.MaxSplitBytes, o.PreallocateBytes)
	}
	if o.PreallocateBytes > maxRequest {
		return fmt.Errorf("allocator: pre-allocation %d exceeds any device", o.PreallocateBytes)
	}
	o.MaxSegmentBytes &^= o.SegmentBytes - 1
	if !(o.GCThreshold >= 0 && o.GCThreshold <= 1) {
		return fmt.Errorf("allocator: garbage-collection threshold %v is not within 0 and 1", o.GCThreshold)
	}
	if !(o.MaxFraction >= 0 && o.MaxFraction <= 1) {
		return fmt.Errorf("allocator: largest fraction %v is not within 0 and 1", o.MaxFraction)
	}
	if !(o.Slack >= 0 && o.Slack <= 1) {
		return fmt.Errorf("allocator: slack %v is not within 0 and 1", o.Slack)
	}
	if o.MaxBytes > 0 && o.PreallocateBytes > o.MaxBytes {
		return fmt.Errorf("allocator: pre-allocation %d exceeds the limit %d", o.PreallocateBytes, o.MaxBytes)
	}
	return nil
}
