package collective_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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

func addr(x []float32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(x))) }

func TestLocal(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			ranks := collective.NewLocal(size)
			got := make([][]float32, size)
			for _, err := range together(ranks, func(l *collective.Local) error {
				x := make([]float32, 5)
				for round := range 100 {
					for i := range x {
						x[i] = float32(round) + float32(i)/float32(3+l.Rank())
					}
					if err := l.AllReduce(addr(x), len(x), 0); err != nil {
						return err
					}
				}
				got[l.Rank()] = x
				return errors.Join(l.Err(), l.AllReduce(0, 0, 0), l.Close())
			}) {
				if err != nil {
					t.Error(err)
				}
			}
			want := make([]float32, 5)
			for rank := range size {
				for i := range want {
					want[i] += 99 + float32(i)/float32(3+rank)
				}
			}
			for rank, x := range got {
				if !slices.Equal(x, want) {
					t.Errorf("rank %d of %d has %v, want %v", rank, ranks[rank].Size(), x, want)
				}
			}
			if err := ranks[0].Close(); err == nil {
				t.Error("no error of closing twice")
			}
		})
	}
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

func TestLocalLeaks(t *testing.T) {
	ranks := collective.NewLocal(2)
	if _, _, err := ranks[0].AllocSymmetric(8); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ranks[0].Close(), ranks[1].Close()); err == nil || !strings.Contains(err.Error(), "1 allocations of symmetric memory were not freed") {
		t.Errorf("%v, want an error of memory that was not freed", err)
	}
}

func TestLocalEnds(t *testing.T) {
	died := errors.New("rank 1 is gone")
	for _, c := range []struct {
		name string
		f    func(*collective.Local) error
		want string
	}{
		{"one aborts", func(l *collective.Local) error {
			if l.Rank() == 1 {
				l.Abort(died)
				l.Abort(errors.New("another reason"))
				return l.Err()
			}
			x := make([]float32, 4)
			return l.AllReduce(addr(x), len(x), 0)
		}, died.Error()},
		{"not the same", func(l *collective.Local) error {
			x := make([]float32, 4)
			return l.AllReduce(addr(x), 3+l.Rank()/2, 0)
		}, "rank 2 all-reduces 4 numbers, and rank 0 all-reduces 3"},
		{"not the same collective", func(l *collective.Local) error {
			x, y := make([]float32, 6), make([]float32, 6)
			if l.Rank() == 1 {
				return l.Exchange(collective.Updates{W: addr(x), X: addr(y), N: 6}, 0)
			}
			return l.AllReduce(addr(x), 6, 0)
		}, "rank 1 exchanges 6 numbers, and rank 0 all-reduces 6"},
		{"one in bf16", func(l *collective.Local) error {
			x, y, z := make([]float32, 6), make([]float32, 6), make([]float32, 3)
			u := collective.Updates{W: addr(x), X: addr(y), N: 6}
			if l.Rank() == 1 {
				u.Rounded = addr(z)
			}
			return l.Exchange(u, 0)
		}, "rank 1 exchanges in bf16 6 numbers, and rank 0 exchanges 6"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for rank, err := range together(collective.NewLocal(3), c.f) {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("rank %d ends with %v, want %q", rank, err, c.want)
				}
			}
		})
	}
}
