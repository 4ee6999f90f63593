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

// Kinds returns the allocators that the device has for the executor.
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

// Filler returns what fills memory of the device, for poison.
func (b *Backend) Filler() allocator.Filler {
	if b.GPU {
		return kernels.Filler{}
	}
	return device.NewHostDriver()
}

// NewAllocator returns an allocator of the given kind, as section [allocator] of cfg says.
func (b *Backend) NewAllocator(kind string, cfg configs.Config) (allocator.Allocator, error) {
	switch kind {
	case CUDAAsync:
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) {
			pool, err := cudadriver.NewMemPoolWith(memPoolOptions(cfg.Allocator))
			return allocator.NewAsync(pool), err
		})
	case PlainMalloc:
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) { return allocator.NewMalloc(b.driver()), nil })
	case CustomPool:
		driver := b.driver()
		o, err := poolOptions(cfg, driver)
		if err != nil {
			return nil, err
		}
		a, err := allocator.NewPool(driver, o)
		if err != nil && o.PreallocateBytes > 0 { // poolOptions already made a pool without preallocation
			err = cfg.Errorf("allocator.preallocate", "%w", err)
		}
		return a, err
	}
	return nil, fmt.Errorf("%s has no case in NewAllocator", kind)
}

// limited opens an allocator that has no limit of its own, and puts the limit of c on it.
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

// NewCaptureAllocator returns the allocator for what is captured into graphs. For kind cuda it is a
// second pool of the driver, whose requests become part of the graph; otherwise it is a pool.
func (b *Backend) NewCaptureAllocator(kind string, cfg configs.Config) (allocator.Allocator, error) {
	if kind == CUDAAsync {
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) {
			pool, err := cudadriver.NewGraphPool(0)
			return allocator.NewAsync(pool), err
		})
	}
	cfg.Allocator.Preallocate, cfg.Allocator.GcThreshold = 0, 0
	cfg.Allocator.Segments = allocator.SegmentsMalloc
	o, err := poolOptions(cfg, b.driver())
	if err != nil {
		return nil, err
	}
	o.KeepMapped = true
	return allocator.NewPool(b.driver(), o)
}

// memPoolOptions returns the settings of the driver's pool.
func memPoolOptions(c configs.Allocator) cudadriver.MemPoolOptions {
	o := cudadriver.DefaultMemPoolOptions()
	if c.ReleaseThreshold >= 0 {
		o.ReleaseThreshold = int64(c.ReleaseThreshold)
	}
	o.FollowEvents, o.Opportunistic, o.InternalDependencies = c.ReuseDependencies, c.ReuseOpportunistic, c.ReuseInternalEvents
	return o
}

// poolOptions returns the options of a pool on d. Their Segments is the kind that the pool will
// have.
func poolOptions(cfg configs.Config, d allocator.Driver) (o allocator.PoolOptions, err error) {
	if o, err = cfg.Allocator.PoolOptions(); err != nil {
		return o, cfg.Errorf("allocator.reuse", "%w", err)
	}
	if o.Segments, err = segmentsOn(d, o); err != nil {
		return o, cfg.Errorf("allocator.segments", `%q is not available: %w; use "malloc", or leave it out`, cfg.Allocator.Segments, err)
	}
	return o, nil
}

// segmentsOn returns the kind of segments of a pool on d. It makes such a pool, which asks d for no
// memory.
func segmentsOn(d allocator.Driver, o allocator.PoolOptions) (string, error) {
	o.PreallocateBytes = 0
	p, err := allocator.NewPool(d, o)
	if err != nil {
		return "", err
	}
	return p.Segments(), p.Close()
}

// CheckAllocators returns an error if a subject cannot have the options of section [allocator].
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
