package main

import (
	"errors"
	"fmt"

	"mlpool/allocator"
)

// A scenario is a pattern of requests on which allocators are compared.
type scenario struct {
	name  string
	doc   string
	rate  bool // show operations per second
	cases func(quick bool) []testCase
}

// A testCase is a scenario with its parameters. Its run adds one or more rows.
type testCase struct {
	name string
	run  func(*bench) error
}

const (
	kib = 1 << 10
	mib = 1 << 20
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

// repeated returns a function that calls round often enough to be timed.
func (b *bench) repeated(round func() (int64, error)) func() (int64, error) {
	return func() (int64, error) {
		from := now()
		var ops int64
		for {
			n, err := round()
			ops += n
			if err != nil || b.quick || b.over.Load() || now()-from >= loopTime {
				return ops, err
			}
		}
	}
}

// outOfMemory reports whether a request ran out of memory, after which the allocator works on.
func outOfMemory(err error) bool {
	var o *allocator.OutOfMemoryError
	return errors.As(err, &o)
}

// sizeName writes a number of bytes that is a multiple of a binary unit.
func sizeName(bytes int64) string {
	switch {
	case bytes%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes%mib == 0:
		return fmt.Sprintf("%d MiB", bytes>>20)
	case bytes%kib == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%d B", bytes)
}
