package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/kernels"
	"mlpool/kernels/device"
)

// backend is the device that a run computes on.
type backend struct {
	name  string
	gpu   bool
	graph bool // the executor
	queue device.Queue

	info      *rundir.GPU // nil on the CPU
	uuid      string      // of the GPU
	precision string      // empty on the CPU

	ranks *ranks // nil: there are no others
}

// kind is the device as a config names it.
func (b *backend) kind() string {
	if b.gpu {
		return "cuda"
	}
	return "cpu"
}

// sayCPUPrecision warns that the CPU does not compute in the precision of a config.
func sayCPUPrecision(cfg configs.Config, stderr io.Writer) error {
	if p := cfg.Train.Precision; p == "tf32" || p == "3xtf32" {
		_, err := fmt.Fprintf(stderr, "train: train.precision = %q is for a GPU: the CPU computes in fp32\n", p)
		return err
	}
	return nil
}

// openBackend opens the device that the config asks for, and says so in one
// line where that is the CPU for want of a GPU.
func openBackend(cfg configs.Config, r *ranks, stderr io.Writer) (*backend, error) {
	graph := cfg.Train.Executor == "graph"
	cpu := &backend{name: "CPU, " + count(runtime.GOMAXPROCS(0), "thread"), graph: graph, queue: new(device.HostQueue), ranks: r}
	if err := r.begin(cfg); err != nil {
		return nil, err
	}
	if cfg.Train.Device == "cpu" {
		return cpu, sayCPUPrecision(cfg, stderr)
	}
	if err := kernels.Available(); err != nil {
		if err := r.needGPU(err); err != nil {
			return nil, err
		}
		if cfg.Train.Device == "cuda" {
			return nil, cfg.Errorf("train.device", `"cuda" cannot be had: %w; "auto" would train on the CPU%s`, err, remedy(err))
		}
		fmt.Fprintf(stderr, "train: on the CPU: %v%s\n", err, remedy(err))
		return cpu, sayCPUPrecision(cfg, stderr)
	}
	info, err := kernels.Device()
	if err != nil {
		return nil, err
	}
	precision, err := precisionOf(cfg.Train.Precision)
	if err != nil {
		return nil, cfg.Errorf("train.precision", "%w", err)
	}
	queue, err := device.NewCUDAQueue(precision)
	if err != nil {
		return nil, err
	}
	runtime := cudaVersion(info.RuntimeVersion)
	return &backend{
		name: fmt.Sprintf("%s (sm_%d%d, CUDA %s), %v", info.Name, info.Major, info.Minor, runtime, precision),
		gpu:  true, graph: graph, queue: queue, precision: precision.String(), uuid: info.UUID, ranks: r,
		info: &rundir.GPU{
			Name: info.Name, ComputeCapability: fmt.Sprintf("%d.%d", info.Major, info.Minor), Memory: info.Memory,
			Driver: rundir.NVIDIADriver(), CUDADriver: cudaVersion(info.DriverVersion), CUDARuntime: runtime,
		},
	}, nil
}

// remedy is the end of an error of a program that was built without CUDA.
func remedy(err error) string {
	if !errors.Is(err, kernels.ErrNoCUDA) {
		return ""
	}
	return "; `make build` builds it with CUDA where nvcc is, tools/install_cuda.sh installs nvcc"
}

// cudaVersion is 12.8 of 12080, as CUDA numbers its versions.
func cudaVersion(n int) string { return fmt.Sprintf("%d.%d", n/1000, n%1000/10) }

// precisionOf is what a config names, on the GPU at hand: "auto" is 3xtf32, which
// is as exact as fp32 and faster, where there are tensor cores for it.
func precisionOf(name string) (kernels.Precision, error) {
	if name == "auto" {
		if kernels.TF32X3.Usable() == nil {
			return kernels.TF32X3, nil
		}
		return kernels.FP32, nil
	}
	p, err := kernels.ParsePrecision(name)
	if err == nil {
		err = p.Usable()
	}
	return p, err
}

// kinds are the allocators that can be had on the device, with the executor.
func (b *backend) kinds() []string {
	return slices.DeleteFunc(slices.Clone(allKinds), func(kind string) bool {
		return kind == cudaAsync && !b.gpu || kind == plainMalloc && b.graph
	})
}

func (b *backend) driver() allocator.Driver {
	if b.gpu {
		return cudadriver.Driver{}
	}
	return device.NewHostDriver()
}

// filler writes to the memory of driver.
func (b *backend) filler() allocator.Filler {
	if b.gpu {
		return kernels.Filler{}
	}
	return device.NewHostDriver()
}

// newAllocator makes an allocator of the given kind on the device, as section
// [allocator] says.
func (b *backend) newAllocator(kind string, cfg configs.Config) (allocator.Allocator, error) {
	switch kind {
	case cudaAsync:
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) {
			pool, err := cudadriver.NewMemPoolWith(memPoolOptions(cfg.Allocator))
			return allocator.NewAsync(pool), err
		})
	case plainMalloc:
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) { return allocator.NewMalloc(b.driver()), nil })
	case customPool, plannedPool:
		return b.newPool(kind, cfg)
	}
	return nil, fmt.Errorf("%s has no case in newAllocator", kind)
}

// newPool makes the pool, or the plan.
func (b *backend) newPool(kind string, cfg configs.Config) (allocator.Allocator, error) {
	driver := b.driver()
	o, err := poolOptions(cfg, driver)
	if err != nil {
		return nil, err
	}
	var a allocator.Allocator
	if kind == plannedPool {
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
func (b *backend) limited(c configs.Allocator, open func() (allocator.Allocator, error)) (allocator.Allocator, error) {
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

// newCaptureAllocator makes the allocator of what is captured into graphs: for
// the driver's pool another one, whose requests become part of the graph, and
// else a pool. A plan would have nothing to add to a graph, which repeats its
// steps address by address. Virtual segments would unmap addresses that graphs have.
func (b *backend) newCaptureAllocator(kind string, cfg configs.Config) (allocator.Allocator, error) {
	if kind == cudaAsync {
		return b.limited(cfg.Allocator, func() (allocator.Allocator, error) {
			pool, err := cudadriver.NewGraphPool()
			return allocator.NewAsync(pool), err
		})
	}
	cfg.Allocator.Preallocate, cfg.Allocator.GcThreshold = 0, 0
	cfg.Allocator.Segments = allocator.SegmentsMalloc
	driver := &lasting{Driver: b.driver()}
	o, err := poolOptions(cfg, driver)
	if err != nil {
		return nil, err
	}
	pool, err := allocator.NewPool(driver, o)
	return lastingPool{pool, driver}, err
}

// lasting is a driver that frees nothing until it is closed: a pool that runs
// out of memory gives back what it has no use for, and graphs may.
type lasting struct {
	allocator.Driver
	freed []uintptr
}

func (l *lasting) Free(addr uintptr) error {
	l.freed = append(l.freed, addr)
	return nil
}

// lastingPool is a pool on a lasting driver.
type lastingPool struct {
	*allocator.Pool
	driver *lasting
}

func (p lastingPool) Close() error {
	errs := []error{p.Pool.Close()}
	for _, addr := range p.driver.freed {
		errs = append(errs, p.driver.Driver.Free(addr))
	}
	p.driver.freed = nil
	return errors.Join(errs...)
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
