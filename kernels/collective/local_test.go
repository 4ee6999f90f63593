package collective_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"mlpool/kernels/collective"
	"mlpool/kernels/ref"
)

func TestLocalExchanges(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 5, 8} {
		var all sync.WaitGroup
		for _, l := range collective.NewLocal(size) {
			all.Go(func() {
				if err := exchanges(l); err != nil {
					t.Error(err)
					l.Abort(err) // so that no other rank waits
				}
			})
		}
		all.Wait()
	}
}

func exchanges(l *collective.Local) error {
	size := l.Size()
	n := 64 * size
	w, free, err := l.AllocSymmetric((4*2 + 2) * n)
	if err != nil {
		return err
	}
	x, rounded := w+uintptr(4*n), w+uintptr(4*2*n)
	all := unsafe.Slice((*float32)(*(*unsafe.Pointer)(unsafe.Pointer(&w))), 2*n)
	inBF16 := unsafe.Slice((*ref.BF16)(*(*unsafe.Pointer)(unsafe.Pointer(&rounded))), n)
	update := func(rank, i, round int) float32 { return float32(round+i) / float32(3+rank) }
	want := make([]float32, n)
	for round := range 10 {
		for i := range n {
			all[n+i] = update(l.Rank(), i, round)
			sum := update(0, i, round)
			for rank := 1; rank < size; rank++ {
				sum += update(rank, i, round)
			}
			want[i] += sum
		}
		// After the fifth round each rank has its part of the weights only.
		u, first, end := collective.Updates{W: w, X: x, N: n}, 0, n
		if round >= 5 {
			u.Rounded, first, end = rounded, 64*l.Rank(), 64*(l.Rank()+1)
		}
		if err := l.Exchange(u, 0); err != nil {
			return err
		}
		if !slices.Equal(all[first:end], want[first:end]) {
			return fmt.Errorf("rank %d of %d, round %d: weights %v, want %v", l.Rank(), size, round, all[first:end], want[first:end])
		}
		for i, v := range want {
			if u.Rounded != 0 && inBF16[i] != ref.ToBF16(v) {
				return fmt.Errorf("rank %d of %d, round %d: weight %d in bf16 is %v, want %v", l.Rank(), size, round, i, inBF16[i].Float32(), v)
			}
		}
	}
	return errors.Join(free(), l.Close())
}
