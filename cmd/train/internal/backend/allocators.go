package backend

import (
	"fmt"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/configs"
	"mlpool/kernels"
	"mlpool/kernels/device"
)

// Kinds are the allocators that can be had on the device, with the executor.
func (b *Backend) Kinds() []string {
	return slices.DeleteFunc(slices.Clone(AllKinds), func(kind string) bool {
		return kind == CUDAAsync && !b.GPU || kind == PlainMalloc && b.Graph
	})
}

func (b *Backend) driver() allocator.Driver {
	if b.GPU {
		return cudadriver.Driver{}
	}
	return device.NewHostDriver()
}

// Filler writes to the memory of driver.
func (b *Backend) Filler() allocator.Filler {
	if b.GPU {
		return kernels.Filler{}
	}
	return device.NewHostDriver()
}

// NewAllocator makes an allocator of the given kind on the device, as section
// [allocator] says.
func (b *Backend) NewAllocator(kind string, cfg configs.Config) (allocator.Allocator, error) {
	switch kind {
	case CUDAAsync:
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) {
			pool, err := cudadriver.NewMemPoolWith(memPoolOptions(cfg.Allocator))
			return allocator.NewAsync(pool), err
		})
	case PlainMalloc:
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) { return allocator.NewMalloc(b.driver()), nil })
	case CustomPool, PlannedPool:
		return b.newPool(kind, cfg)
	}
	return nil, fmt.Errorf("%s has no case in newAllocator", kind)
}

// newPool makes the pool, or the plan.
func (b *Backend) newPool(kind string, cfg configs.Config) (allocator.Allocator, error) {
	driver := b.driver()
	o, err := poolOptions(cfg, driver)
	if err != nil {
		return nil, err
	}
	var a allocator.Allocator
	if kind == PlannedPool {
		a, err = allocator.NewPlan(driver, o)
	} else {
		a, err = allocator.NewPool(driver, o)
	}
	if err != nil && o.PreallocateBytes > 0 { // a pool that reserves nothing was made before
		err = cfg.Errorf("allocator.preallocate", "%w", err)
	}
	return a, err
}

// limited makes an allocator that has no limit of its own, and puts the one of the
// config on what it hands out.
func (b *Backend) limited(c configs.Allocator, open func() (allocator.Allocator, error)) (allocator.Allocator, error) {
	most := int64(c.MaxBytes)
	if c.MaxFraction > 0 {
		_, total, err := b.driver().MemInfo()
		if err != nil {
			return nil, err
		}
		if share := max(int64(c.MaxFraction*float64(total)), 1); most == 0 || share < most {
			most = share
		}
	}
	a, err := open()
	if err != nil {
		return nil, err
	}
	if most == 0 {
		return a, nil
	}
	return allocator.NewLimit(a, most), nil
}

// NewCaptureAllocator makes the allocator of what is captured into graphs: for
// the driver's pool another one, whose requests become part of the graph, and
// else a pool. A plan would have nothing to add to a graph, which repeats its
// steps address by address.
func (b *Backend) NewCaptureAllocator(kind string, cfg configs.Config) (allocator.Allocator, error) {
	if kind == CUDAAsync {
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) {
			pool, err := cudadriver.NewGraphPool()
			return allocator.NewAsync(pool), err
		})
	}
	cfg.Allocator.Preallocate, cfg.Allocator.GcThreshold = 0, 0
	cfg.Allocator.Segments = allocator.SegmentsMalloc
	o, err := poolOptions(cfg, b.driver())
	if err != nil {
		return nil, err
	}
	return allocator.NewDeferredFreePool(b.driver(), o)
}

// memPoolOptions are the settings of the driver's pool that section [allocator]
// asks for.
func memPoolOptions(c configs.Allocator) cudadriver.MemPoolOptions {
	o := cudadriver.DefaultMemPoolOptions()
	if c.ReleaseThreshold >= 0 {
		o.ReleaseThreshold = int64(c.ReleaseThreshold)
	}
	o.FollowEvents, o.Opportunistic, o.InternalDependencies = c.ReuseDependencies, c.ReuseOpportunistic, c.ReuseInternalEvents
	return o
}

// poolOptions are those that section [allocator] asks for, of a pool on d. Their
// Segments is the kind that the pool will have.
func poolOptions(cfg configs.Config, d allocator.Driver) (o allocator.PoolOptions, err error) {
	c := cfg.Allocator
	reuse, err := allocator.ParseReuse(c.Reuse)
	if err != nil {
		return o, cfg.Errorf("allocator.reuse", "%w", err)
	}
	o = allocator.PoolOptions{
		Strategy: c.Strategy, Reuse: reuse, Segments: c.Segments,
		SegmentBytes: int64(c.SegmentBytes), MaxSegmentBytes: int64(c.MaxSegmentBytes),
		MaxBytes: int64(c.MaxBytes), MaxFraction: c.MaxFraction, MaxSplitBytes: int64(c.MaxSplitBytes),
		GCThreshold: c.GcThreshold, Slack: c.Slack, PreallocateBytes: int64(c.Preallocate),
	}
	if o.Segments, err = segmentsOn(d, o); err != nil {
		return o, cfg.Errorf("allocator.segments", `%q cannot be had: %w; use "malloc", or leave it out`, c.Segments, err)
	}
	return o, nil
}

// segmentsOn is the kind of segments that a pool on d has. It makes such a pool, which
// asks d for no memory.
func segmentsOn(d allocator.Driver, o allocator.PoolOptions) (string, error) {
	o.PreallocateBytes = 0
	p, err := allocator.NewPool(d, o)
	if err != nil {
		return "", err
	}
	return p.Segments(), p.Close()
}

// CheckAllocators returns an error if allocators cannot be as section [allocator] says,
// on the device at hand.
func (b *Backend) CheckAllocators(cfg configs.Config, among []Subject) error {
	for _, c := range among {
		if c.HasPool() {
			if _, err := poolOptions(c.Of(cfg), b.driver()); err != nil {
				return err
			}
		}
	}
	return nil
}
