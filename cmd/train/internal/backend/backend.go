// Package backend opens the device that a run computes on, and makes the allocators under test on
// it.
//
// Every tensor that a kernel writes comes from an allocator that this package made. Before a
// training it returns an error for an allocator that the device does not have, for options of
// section [allocator] that exclude each other, and for more memory than the machine has.
package backend

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"mlpool/cmd/train/internal/rundir"
	"mlpool/configs"
	"mlpool/internal/program"
	"mlpool/internal/text"
	"mlpool/kernels"
	"mlpool/kernels/device"
)

// Backend is the device that a run computes on, and the executor.
type Backend struct {
	Name  string
	GPU   bool
	Graph bool // the executor replays graphs
	Queue device.Queue

	Info      *rundir.GPU // nil on the CPU
	UUID      string      // of the GPU
	Precision string      // empty for float32 on the CPU
}

// Kind returns the device as a config names it.
func (b *Backend) Kind() string {
	if b.GPU {
		return "cuda"
	}
	return "cpu"
}

// inBF16 reports whether a run trains in bf16, on any device.
func inBF16(cfg configs.Config) bool { return cfg.Train.Precision == kernels.BF16.String() }

// sayCPUPrecision warns that the CPU does not compute in the precision of cfg.
func sayCPUPrecision(cfg configs.Config, stderr io.Writer) error {
	if p := cfg.Train.Precision; p == "tf32" || p == "3xtf32" {
		_, err := fmt.Fprintf(stderr, "train: train.precision = %q is for a GPU: the CPU computes in fp32\n", p)
		return err
	}
	return nil
}

// Open opens the device that cfg asks for. If there is no GPU it calls noGPU with the reason, and
// falls back to the CPU, with a line on stderr, unless noGPU returns an error.
func Open(cfg configs.Config, noGPU func(why error) error, stderr io.Writer) (*Backend, error) {
	graph := cfg.Train.Executor == "graph"
	cpu := &Backend{Name: "CPU, " + text.Count(runtime.GOMAXPROCS(0), "thread"), Graph: graph, Queue: new(device.HostQueue)}
	if inBF16(cfg) {
		cpu.Name, cpu.Precision = cpu.Name+", bf16", cfg.Train.Precision
		cpu.Queue = &device.HostQueue{Precision: kernels.BF16}
	}
	if cfg.Train.Device == "cpu" {
		return cpu, sayCPUPrecision(cfg, stderr)
	}
	if err := kernels.Available(); err != nil {
		if err := noGPU(err); err != nil {
			return nil, err
		}
		if cfg.Train.Device == "cuda" {
			return nil, cfg.Errorf("train.device", `"cuda" is not available: %w; "auto" would train on the CPU%s`, err, remedy(err))
		}
		fmt.Fprintf(stderr, "train: on the CPU: %v%s\n", err, remedy(err))
		return cpu, sayCPUPrecision(cfg, stderr)
	}
	info, err := kernels.Device()
	if err != nil {
		return nil, err
	}
	precision, err := precisionOf(cfg.Train.Precision, info)
	if err != nil {
		return nil, cfg.Errorf("train.precision", "%w", err)
	}
	queue, err := device.NewCUDAQueue(precision)
	if err != nil {
		return nil, err
	}
	runtime := program.CUDAVersion(info.RuntimeVersion)
	return &Backend{
		Name: fmt.Sprintf("%s (sm_%d%d, CUDA %s), %v", info.Name, info.Major, info.Minor, runtime, precision),
		GPU:  true, Graph: graph, Queue: queue, Precision: precision.String(), UUID: info.UUID,
		Info: &rundir.GPU{
			Name: info.Name, ComputeCapability: fmt.Sprintf("%d.%d", info.Major, info.Minor), Memory: info.Memory,
			Driver: rundir.NVIDIADriver(), CUDADriver: program.CUDAVersion(info.DriverVersion), CUDARuntime: runtime,
		},
	}, nil
}

// remedy ends an error of a program that was built without CUDA: it says how to build it with CUDA.
func remedy(err error) string {
	if !errors.Is(err, kernels.ErrNoCUDA) {
		return ""
	}
	return "; `make build` builds it with CUDA where nvcc is, tools/install_cuda.sh installs nvcc"
}

// precisionOf returns the precision that a config names. "auto" is 3xtf32 where it is faster than fp32,
// since it is nearly as exact.
func precisionOf(name string, info kernels.Info) (kernels.Precision, error) {
	if name == "auto" {
		if info.FastTF32() && kernels.TF32X3.Usable() == nil {
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
