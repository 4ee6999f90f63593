package device

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/kernels/collective"
)

// unfit is a rank whose all-gathers are wrong from some number on. The number includes those with
// which DataParallel begins.
type unfit struct {
	*collective.Local
	from   int
	how    string
	window []byte
}

const (
	bringsNothing = "they bring nothing"
	tooEarly      = "other ranks' come too early"
	noCapture     = "they cannot be captured"
)

// uncapturing is a queue whose captures fail.
type uncapturing struct{ HostQueue }

func (q *uncapturing) EndCapture() (Graph, error) {
	_, err := q.HostQueue.EndCapture()
	return nil, errors.Join(err, errors.ErrUnsupported)
}

func (u *unfit) AllocSymmetric(bytes int) (uintptr, func() error, error) {
	addr, free, err := u.Local.AllocSymmetric(bytes)
	u.window = sliceAt[byte](addr, bytes)
	return addr, free, err
}

func (u *unfit) AllReduce(x uintptr, n int, stream uintptr) error {
	err := u.Local.AllReduce(x, n, stream)
	if u.how == tooEarly {
		u.window[0] = 1
	}
	return err
}

func (u *unfit) AllGather(x uintptr, n int, stream uintptr) error {
	if u.from--; u.from >= 0 || u.how == tooEarly {
		return u.Local.AllGather(x, n, stream)
	}
	before := bytes.Clone(u.window)
	err := u.Local.AllGather(x, n, stream)
	copy(u.window, before)
	return err
}

// TestUnfitGathers has a rank whose captured all-gathers are wrong, at once or at their second
// launch. All ranks then all-reduce, and leak no memory. In any other case all gather.
func TestUnfitGathers(t *testing.T) {
	const zeros, size = 2, 3
	for _, c := range []struct {
		from    int
		how     string
		gathers bool
	}{
		{zeros, bringsNothing, false},
		{zeros + 1, bringsNothing, false},
		{0, tooEarly, false},
		{100, noCapture, false},
		{zeros + 2, bringsNothing, true},
	} {
		for wrong := range size {
			t.Run(fmt.Sprint(c.how, " on rank ", wrong, ", from ", c.from), func(t *testing.T) {
				var all sync.WaitGroup
				errs, gathers := make([]error, size), make([]bool, size)
				for rank, l := range collective.NewLocal(size) {
					comm := collective.Collective(l)
					if rank == wrong {
						comm = &unfit{Local: l, from: c.from, how: c.how}
					}
					queue := Queue(new(HostQueue))
					if rank == wrong && c.how == noCapture {
						queue = new(uncapturing)
					}
					all.Go(func() { gathers[rank], errs[rank] = gathersOf(queue, comm) })
				}
				all.Wait()
				for rank := range size {
					if errs[rank] != nil || gathers[rank] != c.gathers {
						t.Errorf("rank %d gathers: %v, %v", rank, gathers[rank], errs[rank])
					}
				}
			})
		}
	}
}

// gathersOf reports whether a rank with one layer all-gathers its updates.
func gathersOf(queue Queue, comm collective.Collective) (gathers bool, err error) {
	alloc := allocator.NewMalloc(NewHostDriver())
	d := New(queue, alloc, true)
	if err := d.SetCollective(comm); err != nil {
		return false, err
	}
	w, err := d.FromDense("weights", tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(7, 5)))
	if err == nil {
		err = d.DataParallel([]Tensor{w}, 4)
	}
	gathers = d.reducer.gathers
	return gathers, errors.Join(err, d.CloseCollective(), d.Free(w), alloc.Close(), comm.Close())
}
