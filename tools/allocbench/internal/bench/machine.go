package bench

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/kernels"
)

// ThisMachine returns the GPU, or else a driver that hands out addresses without memory.
func ThisMachine() (Machine, error) {
	if err := kernels.Available(); err != nil {
		return Machine{
			Name:      fmt.Sprintf("no GPU (%v), %d CPU threads", err, runtime.GOMAXPROCS(0)),
			Note:      "host cost only: " + AddressesOnly + ", so cuda and malloc lack what their driver calls cost on a GPU, and cuda the memory that the driver's pool keeps",
			Addresses: true,
			Open:      func() (Device, error) { return NewNull(), nil },
		}, nil
	}
	info, err := kernels.Device()
	if err != nil {
		return Machine{}, err
	}
	load := new(load)
	return Machine{
		Name: fmt.Sprintf("%s, driver for CUDA %d.%d, built with %d.%d, %d CPU threads", info.Name,
			info.DriverVersion/1000, info.DriverVersion%1000/10, info.RuntimeVersion/1000, info.RuntimeVersion%1000/10, runtime.GOMAXPROCS(0)),
		Open: func() (Device, error) { return &gpu{load: load}, nil },
	}, nil
}

// A gpu is the CUDA device with the streams of one measurement.
type gpu struct {
	cudadriver.Driver
	streams []kernels.Stream
	load    *load
}

func (g *gpu) Pool() (allocator.AsyncDriver, error) { return cudadriver.NewMemPool() }

func (g *gpu) NewStream() (allocator.Stream, error) {
	s, err := kernels.NewStream()
	if err != nil {
		return 0, err
	}
	g.streams = append(g.streams, s)
	return s.Handle(), nil
}

func (g *gpu) Prepare() error { return g.load.calibrate() }

func (g *gpu) Work(s allocator.Stream, addr uintptr) error {
	return g.load.queue(kernels.Stream(s), addr)
}

func (g *gpu) Synchronize() error {
	var errs []error
	for _, s := range g.streams {
		errs = append(errs, s.Synchronize())
	}
	return errors.Join(errs...)
}

func (g *gpu) Close() error {
	var errs []error
	for _, s := range g.streams {
		errs = append(errs, s.Close())
	}
	g.streams = nil
	return errors.Join(errs...)
}

// A load is a GEMM of one row and one column, with k so large that it takes loadTime. It is a
// single tile, which leaves most of a GPU to other streams. Its memory is never freed.
type load struct {
	k        int // of the GEMM; 0 until calibrated
	operands uintptr
}

const loadTime = 500 * time.Microsecond

func (l *load) queue(s kernels.Stream, addr uintptr) error {
	return s.GEMM(kernels.FP32, kernels.GEMM{C: addr, A: l.operands, B: l.operands, M: 1, N: 1, K: l.k})
}

// calibrate doubles k until the GEMM takes loadTime.
func (l *load) calibrate() (err error) {
	if l.k > 0 {
		return nil
	}
	const most = 1 << 26 // elements of an operand, of 4 bytes
	memory, err := cudadriver.Driver{}.Malloc(4*most + allocator.Alignment)
	if err != nil {
		return err
	}
	s, err := kernels.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Fill(memory, 0, 4*most); err != nil {
		return err
	}
	var marks [2]kernels.Event
	for i := range marks {
		if marks[i], err = kernels.NewEvent(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, marks[i].Close()) }()
	}
	trial := load{k: 1 << 12, operands: memory}
	for ; trial.k < most; trial.k *= 2 {
		// Twice, because the first launch of a kernel also loads it.
		var took time.Duration
		for range 2 {
			if err := errors.Join(marks[0].Record(s), trial.queue(s, memory+4*most), marks[1].Record(s)); err != nil {
				return err
			}
			if took, err = marks[1].Since(marks[0]); err != nil {
				return err
			}
		}
		if took >= loadTime {
			break
		}
	}
	*l = trial
	return nil
}
