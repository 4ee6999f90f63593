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

// scenarios returns the scenarios that do not need a file, in the order in which they run.
func scenarios() []scenario {
	return []scenario{
		{"pair", "a block of one size, allocated and freed at once", false, pairCases},
		{"throughput", "10 000 blocks of 1 MiB, one after the other", true, throughputCases},
		{"mixed", "pairs of sizes from 64 KiB to 16 MiB in turn", false, mixedCases},
		{"threads", "pairs of 1 MiB on several threads, each with its own stream", true, threadCases},
		{"shared", "pairs of 1 MiB on several threads that share one stream", true, sharedCases},
		{"tf_threaded", "pairs of six sizes on several threads that share one stream (TensorFlow's BM_AllocationThreaded)", true, tfThreadedCases},
		{"tf_delayed", "small blocks, each freed after a number of others was allocated (TensorFlow's BM_AllocationDelayed)", false, tfDelayedCases},
		{"random", "uniform sizes, 73 % of the calls allocate, at most 16 000 MiB live (RMM's random_allocations)", false, randomCases},
		{"churn", "live blocks of 64 KiB to 16 MiB, freed and allocated again", false, churnCases},
		{"live1000", "1000 blocks of 1 MiB live at once", false, liveCases},
		{"extreme", "columns of tables of 100 thousand to 10 million rows", false, extremeCases},
		{"multi_stream", "4 kernels of half a millisecond, each with a block of 8 bytes, from the first request to the last result (RMM's multi_stream_allocations)", false, multiStreamCases},
	}
}

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
