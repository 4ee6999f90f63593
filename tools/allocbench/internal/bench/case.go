package bench

import (
	"errors"
	"fmt"

	"mlpool/allocator"
)

// A Scenario is a pattern of requests on which allocators are compared.
type Scenario struct {
	Name  string
	Doc   string
	Rate  bool // show operations per second
	Cases func(quick bool) []Case
}

// A Case is a scenario with its parameters. Its Run adds one or more rows, and finds Streams streams in the Bench.
type Case struct {
	Name    string
	Streams int
	Live    int64 // most bytes live at once, if it is a trace
	Run     func(*Bench) error
}

const (
	KiB = 1 << 10
	MiB = 1 << 20
)

// A random is a splitmix64 generator, which is simple to write in any language.
type random uint64

func (r *random) next() uint64 {
	*r += 0x9E3779B97F4A7C15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// below returns a number from 0 to n-1.
func (r *random) below(n int64) int64 { return int64(r.next() % uint64(n)) }

// Repeated returns a function that calls round often enough to be timed.
func (b *Bench) Repeated(round func() (int64, error)) func() (int64, error) {
	return func() (int64, error) {
		from := now()
		var ops int64
		for {
			n, err := round()
			ops += n
			if err != nil || b.Quick || b.Over.Load() || now()-from >= loopTime {
				return ops, err
			}
		}
	}
}

// OutOfMemory reports whether a request ran out of memory, after which the allocator works on.
func OutOfMemory(err error) bool {
	return errors.As(err, new(*allocator.OutOfMemoryError))
}

// SizeName writes a number of bytes that is a multiple of a binary unit.
func SizeName(bytes int64) string {
	switch {
	case bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes%MiB == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes%KiB == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d B", bytes)
}
