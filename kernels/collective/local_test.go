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

// together runs f on each rank of a group and returns the errors. A rank with an error ends the group.
func together(ranks []*collective.Local, f func(*collective.Local) error) []error {
	errs := make([]error, len(ranks))
	var all sync.WaitGroup
	for i, r := range ranks {
		all.Go(func() {
			if errs[i] = f(r); errs[i] != nil {
				r.Abort(errs[i])
			}
		})
	}
	all.Wait()
	return errs
}

func TestLocalExchanges(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 5, 8} {
		for _, err := range together(collective.NewLocal(size), func(l *collective.Local) error {
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
		}) {
			if err != nil {
				t.Error(err)
			}
		}
	}
}
