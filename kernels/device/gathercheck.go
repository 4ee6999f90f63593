package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

const (
	// checkedFloats is the part of the first bucket that the check of a captured all-gather moves.
	checkedFloats = 1 << 16
	// late is how long the check makes one half of the ranks wait for the other, a hundred times as
	// long as checkedFloats take to move.
	late = 5 * time.Millisecond
)

// capturedGathers reports whether an all-gather can be captured. It launches one twice: each launch
// must gather the current data of each rank, and wait for late ranks. Versions of NCCL differ in how
// copy engines wait for each other, and one that is wrong in a graph would train on updates of the step
// before. All ranks call it together, and get the same answer.
func (d *Device) capturedGathers() (ok bool, err error) {
	r := d.reducer
	addr, floats := r.buckets[0].addr, min(r.buckets[0].n, checkedFloats)
	flag, err := d.alloc.Alloc(4, d.stream, "updates")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, d.alloc.Free(flag, d.stream)) }()
	if err := d.queue.BeginCapture(); err != nil {
		return false, err
	}
	cannot := d.onMoves(func(stream uintptr) error { return r.comm.AllGather(addr, floats, stream) })
	graph, err := d.queue.EndCapture()
	if err == nil {
		defer func() { err = errors.Join(err, graph.Close()) }()
	}
	wrong := float32(0)
	if err != nil || cannot != nil {
		wrong = 1 // sumOverRanks tells all ranks
	}
	got, zeros := make([]byte, 4*floats*r.comm.Size()), make([]byte, 4*floats*r.comm.Size())
	for round := range 2 {
		if err := d.queue.Fill(addr, 0, len(got)); err != nil {
			return false, err
		}
		if wrong, err = d.sumOverRanks(flag.Addr, wrong); err != nil || wrong != 0 {
			return false, err
		}
		if r.comm.Rank()%2 == round {
			time.Sleep(late)
			if err := d.queue.Download(got, addr); err != nil {
				return false, err
			}
			wrong = differ(got, zeros)
		}
		pattern := byte(round + 1) // another one each round
		own := addr + uintptr(4*floats*r.comm.Rank())
		if err := errors.Join(d.queue.Fill(own, pattern, 4*floats), graph.Launch(), d.queue.Download(got, addr)); err != nil {
			return false, err
		}
		wrong += differ(got, bytes.Repeat([]byte{pattern}, len(got)))
		if wrong, err = d.sumOverRanks(flag.Addr, wrong); err != nil || wrong != 0 {
			return false, err
		}
	}
	return true, errors.Join(d.queue.Fill(addr, 0, len(got)), d.queue.Synchronize())
}

// sumOverRanks adds up a value of all ranks, and waits for all. It uses a float at addr.
func (d *Device) sumOverRanks(addr uintptr, x float32) (float32, error) {
	bits := binary.NativeEndian.AppendUint32(nil, math.Float32bits(x))
	if err := d.queue.Upload(addr, bits); err != nil {
		return 0, err
	}
	if err := d.onMoves(func(stream uintptr) error { return d.reducer.comm.AllReduce(addr, 1, stream) }); err != nil {
		return 0, err
	}
	err := errors.Join(d.queue.Download(bits, addr), d.collectiveErr())
	return math.Float32frombits(binary.NativeEndian.Uint32(bits)), err
}

// differ returns 1 if a and b differ, else 0.
func differ(a, b []byte) float32 {
	if bytes.Equal(a, b) {
		return 0
	}
	return 1
}
