package device

import (
	"bytes"
	"errors"
	"time"
	"unsafe"
)

const (
	// checkedFloats is how much of the first bucket the check of a captured all-gather moves.
	checkedFloats = 1 << 16
	// late is how long the check keeps one half of the ranks waiting for the other. To move
	// checkedFloats takes a hundredth of that.
	late = 5 * time.Millisecond
)

// capturedGathers says whether an all-gather can be captured: twice launched, it has to bring what
// each rank has then, also of one that comes late, and nothing before a rank is there. By what
// copy engines know that the others have come differs from one version of NCCL to the next, and
// one that is wrong in a graph trains on updates of the step before. All ranks call it together,
// and get the same answer.
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
	err = d.onMoves(func(stream uintptr) error { return r.comm.AllGather(addr, floats, stream) })
	graph, endErr := d.queue.EndCapture()
	if endErr != nil {
		return false, errors.Join(err, endErr)
	}
	defer func() { err = errors.Join(err, graph.Close()) }()
	// sum adds up what all ranks give, which all have come for.
	sum := func(x float32) (float32, error) {
		bits := unsafe.Slice((*byte)(unsafe.Pointer(&x)), 4)
		err := errors.Join(d.queue.Upload(flag.Addr, bits),
			d.onMoves(func(stream uintptr) error { return r.comm.AllReduce(flag.Addr, 1, stream) }))
		return x, errors.Join(err, d.queue.Download(bits, flag.Addr), d.collectiveErr())
	}
	rank, part := r.comm.Rank(), 4*floats
	got, want := make([]byte, part*r.comm.Size()), make([]byte, part*r.comm.Size())
	wrong := float32(0)
	for round := 0; round < 2 && err == nil && wrong == 0; round++ {
		clear(want)
		if err = d.queue.Fill(addr, 0, len(got)); err == nil {
			_, err = sum(0)
		}
		if err != nil {
			break
		}
		if rank%2 == round {
			time.Sleep(late)
			err = d.queue.Download(got, addr)
			wrong = differ(got, want)
		}
		pattern := byte(round + 1) // another than before
		for i := range want {
			want[i] = pattern
		}
		err = errors.Join(err, d.queue.Fill(addr+uintptr(rank*part), pattern, part), graph.Launch(), d.queue.Download(got, addr))
		if err == nil {
			wrong, err = sum(wrong + differ(got, want))
		}
	}
	if err == nil {
		err = d.queue.Fill(addr, 0, len(got))
	}
	return wrong == 0 && err == nil, errors.Join(err, d.queue.Synchronize())
}

// differ is 1 if a and b differ, else 0.
func differ(a, b []byte) float32 {
	if bytes.Equal(a, b) {
		return 0
	}
	return 1
}

// onMoves has f queue work on the queue that moves updates, behind all that the main queue was
// given; that waits for it.
func (d *Device) onMoves(f func(stream uintptr) error) error {
	moves := d.reducer.moves
	if err := moves.Fork(); err != nil {
		return err
	}
	if err := moves.Do(f); err != nil {
		return err
	}
	return d.joinSide(moves)
}
