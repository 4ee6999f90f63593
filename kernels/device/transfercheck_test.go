package device

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"gorgonia.org/tensor"

	"mlpool/allocator"
	"mlpool/kernels/collective"
)

// unfit is a rank whose transfers are wrong from some number on. The number includes those with
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
		for i := range u.window {
			u.window[i] = 1
		}
	}
	return err
}

func (u *unfit) AllGather(x uintptr, n int, stream uintptr) error {
	return u.transfer(func() error { return u.Local.AllGather(x, n, stream) })
}

func (u *unfit) AllToAll(from, to uintptr, n int, stream uintptr) error {
	return u.transfer(func() error { return u.Local.AllToAll(from, to, n, stream) })
}

func (u *unfit) transfer(do func() error) error {
	if u.from--; u.from >= 0 || u.how == tooEarly {
		return do()
	}
	before := bytes.Clone(u.window)
	err := do()
	copy(u.window, before)
	return err
}

// TestUnfitTransfers has a rank whose captured transfers are wrong, at once or at their second launch.
// All ranks then all-reduce, and leak no memory. In any other case all gather the updates of a model of one
// bucket, and scatter those of two. The weights are the same throughout.
func TestUnfitTransfers(t *testing.T) {
	const size = 3
	for _, m := range []struct {
		widths   []int
		fit      exchange
		zeros    int // transfers that DataParallel begins with
		captured int // transfers
	}{
		{[]int{7, 5}, gathers, 2, 1},
		{[]int{1750, 900, 900, 10}, scatters, 8, 2},
	} {
		for _, c := range []struct {
			from int
			how  string
			want exchange
		}{
			{m.zeros, bringsNothing, reduces},
			{m.zeros + m.captured - 1, bringsNothing, reduces},
			{m.zeros + m.captured, bringsNothing, reduces},
			{0, tooEarly, reduces},
			{100, noCapture, reduces},
			{m.zeros + 2*m.captured, bringsNothing, m.fit},
		} {
			for wrong := range size {
				t.Run(fmt.Sprint(m.widths, " ", c.how, " on rank ", wrong, ", from ", c.from), func(t *testing.T) {
					var all sync.WaitGroup
					errs, got := make([]error, size), make([]exchange, size)
					for rank, l := range collective.NewLocal(size) {
						comm := collective.Collective(l)
						if rank == wrong {
							comm = &unfit{Local: l, from: c.from, how: c.how}
						}
						queue := Queue(new(HostQueue))
						if rank == wrong && c.how == noCapture {
							queue = new(uncapturing)
						}
						all.Go(func() { got[rank], errs[rank] = exchangeOn(queue, comm, m.widths) })
					}
					all.Wait()
					for rank := range size {
						if errs[rank] != nil || got[rank] != c.want {
							t.Errorf("rank %d has exchange %v, want %v, %v", rank, got[rank], c.want, errs[rank])
						}
					}
				})
			}
		}
	}
}

// exchangeOn returns how a rank with layers of these widths exchanges its updates.
func exchangeOn(queue Queue, comm collective.Collective, widths []int) (got exchange, err error) {
	alloc := allocator.NewMalloc(NewHostDriver())
	d := New(queue, alloc, true)
	if err := d.SetCollective(comm); err != nil {
		return 0, err
	}
	var weights []Tensor
	for i := range len(widths) - 1 {
		data := make([]float32, widths[i]*widths[i+1])
		for j := range data {
			data[j] = float32(1000*i + j%1000)
		}
		w, err := d.FromDense("weights", tensor.New(tensor.WithBacking(data), tensor.WithShape(widths[i], widths[i+1])))
		if err != nil {
			return 0, err
		}
		weights = append(weights, w)
	}
	was := slices.Clone(weights)
	same := func(when string) error {
		for i, w := range weights {
			h, err := d.Dense(w)
			if err != nil {
				return err
			}
			for j, v := range h.Float32s() {
				if v != float32(1000*i+j%1000) {
					return fmt.Errorf("%s weight %d of layer %d is %v", when, j, i, v)
				}
			}
		}
		return nil
	}
	err = errors.Join(d.DataParallel(weights, 4), same("in DataParallel"))
	got = d.reducer.exchange
	if moved := !slices.Equal(weights, was); moved != (got == scatters) {
		err = errors.Join(err, fmt.Errorf("exchange %v moves the weights: %v", got, moved))
	}
	err = errors.Join(err, d.EndDataParallel(), same("after EndDataParallel"), d.CloseCollective())
	for _, w := range weights {
		err = errors.Join(err, d.Free(w))
	}
	return got, errors.Join(err, alloc.Close(), comm.Close())
}
