package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"time"
)

const (
	// checkedFloats is the part of a bucket's transfers that the check of captured ones moves.
	checkedFloats = 1 << 16
	// late is how long the check makes one half of the ranks wait for the other, a hundred times as
	// long as checkedFloats take to move.
	late = 5 * time.Millisecond
)

// capturedTransfers reports whether the transfers of a bucket can be captured. It launches those of the
// first one twice: each launch must bring the current data of each rank, and wait for late ranks. Versions
// of NCCL differ in how copy engines wait for each other, and one that is wrong in a graph would train on
// updates of the step before. All ranks call it together, and get the same answer.
func (d *Device) capturedTransfers() (ok bool, err error) {
	r := d.reducer
	all := r.checkedTransfers()
	flag, err := d.alloc.Alloc(4, d.stream, "updates")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, d.alloc.Free(flag, d.stream)) }()
	if err := d.queue.BeginCapture(); err != nil {
		return false, err
	}
	cannot := d.onMoves(func(stream uintptr) (err error) {
		for _, t := range all {
			err = errors.Join(err, r.transfer(t, stream))
		}
		return err
	})
	graph, err := d.queue.EndCapture()
	if err == nil {
		defer func() { err = errors.Join(err, graph.Close()) }()
	}
	wrong := float32(0)
	if err != nil || cannot != nil {
		wrong = 1 // sumOverRanks tells all ranks
	}
	for round := range 2 {
		if err := d.fillTransfers(all, 0); err != nil {
			return false, err
		}
		if wrong, err = d.sumOverRanks(flag.Addr, wrong); err != nil || wrong != 0 {
			return false, err
		}
		if r.comm.Rank()%2 == round {
			time.Sleep(late)
			if wrong, err = d.differ(all, 0); err != nil {
				return false, err
			}
		}
		pattern := byte(round + 1) // another one each round
		if err := errors.Join(d.fillOwn(all, pattern), graph.Launch()); err != nil {
			return false, err
		}
		brought, err := d.differ(all, pattern)
		if err != nil {
			return false, err
		}
		if wrong, err = d.sumOverRanks(flag.Addr, wrong+brought); err != nil || wrong != 0 {
			return false, err
		}
	}
	return true, errors.Join(d.fillTransfers(all, 0), d.queue.Synchronize())
}

// checkedTransfers returns the transfers of the first bucket, of fewer floats.
func (r *reducer) checkedTransfers() (all []transfer) {
	b := r.buckets[0]
	if r.exchange == gathers {
		all = []transfer{{to: b.addr, n: b.n}}
	} else {
		before, after := r.scattered(b)
		all = []transfer{before, after}
	}
	for i := range all {
		all[i].n = min(all[i].n, checkedFloats)
	}
	return all
}

// whole returns the bytes of what a transfer writes.
func (d *Device) whole(t transfer) int { return 4 * t.n * d.reducer.comm.Size() }

// fillTransfers fills all memory of transfers with a byte.
func (d *Device) fillTransfers(all []transfer, value byte) (err error) {
	for _, t := range all {
		err = errors.Join(err, d.queue.Fill(t.to, value, d.whole(t)))
		if t.from != 0 {
			err = errors.Join(err, d.queue.Fill(t.from, value, d.whole(t)))
		}
	}
	return err
}

// fillOwn fills what this rank sends by transfers.
func (d *Device) fillOwn(all []transfer, value byte) (err error) {
	for _, t := range all {
		if t.from != 0 {
			err = errors.Join(err, d.queue.Fill(t.from, value, d.whole(t)))
			continue
		}
		own := t.to + uintptr(4*t.n*d.reducer.comm.Rank())
		err = errors.Join(err, d.queue.Fill(own, value, 4*t.n))
	}
	return err
}

// differ returns 0 if all that transfers write is a byte, else 1.
func (d *Device) differ(all []transfer, value byte) (float32, error) {
	for _, t := range all {
		got := make([]byte, d.whole(t))
		if err := d.queue.Download(got, t.to); err != nil {
			return 1, err
		}
		if !bytes.Equal(got, bytes.Repeat([]byte{value}, len(got))) {
			return 1, nil
		}
	}
	return 0, nil
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
