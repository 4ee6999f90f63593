package allocator

import (
	"errors"
	"fmt"
	"slices"

	"mlpool/allocator/internal/block"
	"mlpool/allocator/internal/order"
)

// Reuse says how far free memory may move from one stream to another.
type Reuse int

const (
	// ReuseWait hands memory to another stream after making that stream wait,
	// on the device, for the work that used it last. The default.
	ReuseWait Reuse = iota
	// ReuseOpportunistic hands it over only if that work is found to be done.
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

// waitMode is what the policy allows while the host must not be held up.
func (r Reuse) waitMode() order.Mode {
	if r == ReuseWait {
		return order.DeviceWaits
	}
	return order.DontWait
}

// lastWaitMode is what it allows where a request would fail otherwise.
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

// Where a pool's memory comes from; see PoolOptions.Segments.
const (
	// SegmentsVirtual are ranges of addresses that grow. The memory behind them
	// moves to where it is needed. They need a PageDriver.
	SegmentsVirtual = "virtual"
	// SegmentsMalloc are calls of Driver.Malloc: each of fixed size and address.
	SegmentsMalloc = "malloc"
)

// PoolOptions are the choices of a [Pool]. Each zero value is the default.
type PoolOptions struct {
	// Strategy is how a block is chosen, one of Strategies. Default
	// DefaultStrategy.
	Strategy string
	// Placement makes the placement of each heap, where a program has a strategy; Strategy
	// is then empty.
	Placement func() Placement
	// Reuse is the policy between streams.
	Reuse Reuse

	// Segments is where memory comes from: SegmentsVirtual, SegmentsMalloc or, by
	// default, the first of them that the driver and the strategy can do.
	Segments string

	// SegmentBytes is the unit that malloc segments are rounded up to, in bytes, a
	// power of two. Default 2 MiB, the pages that a GPU's memory comes in. Virtual
	// segments come in the driver's pages, whatever it is.
	SegmentBytes int64
	// MaxSegmentBytes is where the growth of malloc segments ends; larger requests
	// get a segment of their own size. Default 256 MiB: a larger cap reserves
	// earlier than needed, a smaller one fragments a large heap. Of virtual segments
	// it limits nothing.
	MaxSegmentBytes int64
	// MaxBytes limits the bytes reserved from the driver. 0 is no limit. Virtual
	// segments have the whole pages of it; of less than a page, segments are malloc's.
	MaxBytes int64
	// MaxFraction limits it to a share of the device's memory, at most 1. If
	// both limits are given the lower one counts. 0 is no limit.
	MaxFraction float64
	// MaxSplitBytes keeps large blocks of malloc segments from being nibbled at: a
	// block that is larger is handed out, and split, only for requests of more than
	// half of MaxSplitBytes, or where a request would fail otherwise. 0 splits every
	// block, as virtual segments always do.
	MaxSplitBytes int64
	// GCThreshold is the share of MaxBytes, or of the device where there is no
	// limit, from which on unused segments, or chunks, are released before new
	// ones are asked for. A program that needs more than that all the time has little
	// collected: the share rises with each collection while the peak of allocated
	// bytes does not, until Trim or ResetPeaks. 0 waits until memory runs out.
	GCThreshold float64
	// Slack is what virtual segments may hold beyond the most that was ever handed out
	// before free memory is moved to where it is needed, as a share of that, at most 1.
	// Each move calls the driver, so more slack is faster where sizes and streams change
	// all the time: 0.5 may reserve 1.5 times the peak. 0 leaves it to the pool: a
	// sixty-fourth, up to a third while sizes change all the time, and up to a half while
	// memory moves between streams all the time. Malloc segments have none.
	Slack float64
	// PreallocateBytes are reserved by NewPool, in one segment. Virtual ones are
	// rounded up to whole pages.
	PreallocateBytes int64
}

const (
	defaultSegment    = 2 << 20
	defaultMaxSegment = 1 << 28
)

// check fills in the defaults and reports the first wrong option.
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
