package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/configs"
	"mlpool/kernels"
	"mlpool/kernels/device"
)

// allocatorEnv is the environment variable that names an allocator.
const allocatorEnv = "ALLOCATOR_TYPE"

// The kinds of allocator, by the values of allocatorEnv.
const (
	customPool  = "custom"
	cudaAsync   = "cuda"
	onlyWithGPU = cudaAsync
)

var allKinds = []string{customPool, cudaAsync}

// allocatorKinds says which allocators to train on: all of them to compare,
// else the one that the environment names.
func allocatorKinds(env string, compare bool) ([]string, error) {
	switch {
	case env != "" && !slices.Contains(allKinds, env):
		return nil, fmt.Errorf("%s=%s is no allocator: use %s", allocatorEnv, env, strings.Join(allKinds, " or "))
	case compare:
		return allKinds, nil
	case env == "":
		return []string{customPool}, nil
	default:
		return []string{env}, nil
	}
}

// backend is the device that a run computes on.
type backend struct {
	name  string
	gpu   bool
	queue device.Queue
}

// openBackend opens the device that the config asks for, and says so in one
// line where that is the CPU for want of a GPU.
func openBackend(cfg configs.Config, stderr io.Writer) (*backend, error) {
	cpu := &backend{name: fmt.Sprintf("CPU, %d threads", runtime.GOMAXPROCS(0)), queue: new(device.HostQueue)}
	if cfg.Train.Device == "cpu" {
		return cpu, nil
	}
	if err := kernels.Available(); err != nil {
		if cfg.Train.Device == "cuda" {
			return nil, cfg.Errorf("train.device", `"cuda" cannot be had: %w; "auto" would train on the CPU`, err)
		}
		fmt.Fprintf(stderr, "train: on the CPU: %v\n", err)
		return cpu, nil
	}
	info, err := kernels.Device()
	if err != nil {
		return nil, err
	}
	queue, err := device.NewCUDAQueue()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s (sm_%d%d, CUDA %d.%d)", info.Name, info.Major, info.Minor, info.RuntimeVersion/1000, info.RuntimeVersion%1000/10)
	return &backend{name: name, gpu: true, queue: queue}, nil
}

// supports returns an error if an allocator cannot be had on the device.
func (b *backend) supports(kinds []string) error {
	if !b.gpu && slices.Contains(kinds, onlyWithGPU) {
		if len(kinds) > 1 {
			return fmt.Errorf("-compare needs a GPU: one of the allocators is cudaMallocAsync, and this run is on the CPU")
		}
		return fmt.Errorf("%s=%s is cudaMallocAsync and needs a GPU, and this run is on the CPU: use %s", allocatorEnv, cudaAsync, customPool)
	}
	return nil
}

// newAllocator makes an allocator of the given kind on the device.
func (b *backend) newAllocator(kind string) (allocator.Allocator, error) {
	if kind == cudaAsync {
		pool, err := kernels.NewMemPool()
		if err != nil {
			return nil, err
		}
		return allocator.NewAsync(pool), nil
	}
	var driver allocator.Driver = kernels.Driver{}
	if !b.gpu {
		driver = device.NewHostDriver()
	}
	return allocator.NewPool(driver, allocator.PoolOptions{})
}
