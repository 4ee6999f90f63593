package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/internal/text"
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

// openBackend opens the device that the config asks for. Without a GPU that is the CPU, which it says
// in a line on stderr, unless noGPU makes an error of why there is none.
func openBackend(cfg configs.Config, noGPU func(why error) error, stderr io.Writer) (*backend, error) {
	graph := cfg.Train.Executor == "graph"
	cpu := &backend{name: "CPU, " + text.Count(runtime.GOMAXPROCS(0), "thread"), graph: graph, queue: new(device.HostQueue)}
	if cfg.Train.Device == "cpu" {
		return cpu, sayCPUPrecision(cfg, stderr)
	}
	if err := kernels.Available(); err != nil {
		if err := noGPU(err); err != nil {
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
		gpu:  true, graph: graph, queue: queue, precision: precision.String(), uuid: info.UUID,
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
