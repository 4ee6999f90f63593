package fake

import (
	"iter"
	"slices"
	"sort"
)

// A run is the bytes with one value up to end.
type run[T any] struct {
	end   int64
	value T
}

// runs gives each byte from 0 to a size a value.
type runs[T any] []run[T]

// A piece is the part of a run within a range: the bytes from lo to hi.
type piece[T any] struct {
	lo, hi int64
	value  T
}

// newRuns returns runs of size bytes with the zero value.
func newRuns[T any](size int64) runs[T] { return runs[T]{{end: size}} }

// index returns the index of the run of byte at.
func (r runs[T]) index(at int64) int {
	return sort.Search(len(r), func(i int) bool { return r[i].end > at })
}

// over yields the pieces of the bytes from lo to hi, in order.
func (r runs[T]) over(lo, hi int64) iter.Seq[piece[T]] {
	return func(yield func(piece[T]) bool) {
		for i := r.index(lo); lo < hi; i++ {
			end := min(r[i].end, hi)
			if !yield(piece[T]{lo, end, r[i].value}) {
				return
			}
			lo = end
		}
	}
}

// set gives the bytes from lo to hi a value. There must be at least one.
func (r runs[T]) set(lo, hi int64, value T) runs[T] {
	first, last := r.index(lo), r.index(hi-1)
	var made [3]run[T]
	n := 0
	if start := r.start(first); start < lo {
		made[n] = run[T]{lo, r[first].value}
		n++
	}
	made[n] = run[T]{hi, value}
	n++
	if hi < r[last].end {
		made[n] = r[last]
		n++
	}
	return slices.Replace(r, first, last+1, made[:n]...)
}

// start returns the first byte of run i.
func (r runs[T]) start(i int) int64 {
	if i == 0 {
		return 0
	}
	return r[i-1].end
}
