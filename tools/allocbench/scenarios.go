package main

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"mlpool/allocator"
)

// A scenario is a pattern of requests that allocators are compared by.
type scenario struct {
	name  string
	doc   string
	rate  bool // the figure to look at is operations per second
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

// scenarios are those that do not need a file, in the order in which they run.
func scenarios() []scenario {
	return []scenario{
		{"pair", "a block of one size, allocated and freed at once", false, pairCases},
		{"throughput", "10 000 blocks of 1 MiB, one after the other", true, throughputCases},
		{"mixed", "pairs of sizes from 64 KiB to 16 MiB in turn", false, mixedCases},
		{"threads", "pairs of 1 MiB on several threads, each with a stream of its own", true, threadCases},
		{"shared", "pairs of 1 MiB on several threads that share one stream", true, oneStreamCases},
		{"tf_threaded", "pairs of six sizes on several threads that share one stream (TensorFlow's BM_AllocationThreaded)", true, sharedCases},
		{"tf_delayed", "small blocks, each freed after a number of others was allocated (TensorFlow's BM_AllocationDelayed)", false, delayedCases},
		{"random", "uniform sizes, 73 % of the calls allocate, at most 16 000 MiB live (RMM's random_allocations)", false, randomCases},
		{"churn", "live blocks of 64 KiB to 16 MiB, freed and allocated anew", false, churnCases},
		{"live1000", "1000 blocks of 1 MiB live at once", false, liveCases},
		{"extreme", "columns of tables of 100 thousand to 10 million rows", false, extremeCases},
		{"multi_stream", "4 kernels of half a millisecond, each with a block of 8 bytes, from the first request to the last result (RMM's multi_stream_allocations)", false, multiStreamCases},
	}
}

// A random is a splitmix64 generator, small enough for any language to repeat
// its numbers.
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

// pair allocates a block and frees it.
func (b *bench) pair(bytes int64, s allocator.Stream) error {
	block, err := b.a.Alloc(bytes, s, "pair")
	if err != nil {
		return err
	}
	return b.a.Free(block, s)
}

const (
	roundPairs = 50     // pairs of a round
	longest    = 50_000 // requests of a round that is planned
)

// round does a round of about n requests that begin with those of a stream. To
// an allocator that plans it is a step, unless it is longer than any step and
// would take minutes to plan.
func (b *bench) round(n int, s allocator.Stream, requests func() (int64, error)) (int64, error) {
	if b.plan == nil || n > longest {
		return requests()
	}
	if err := b.plan.Begin("round", s); err != nil {
		return 0, err
	}
	ops, err := requests()
	return ops, errors.Join(err, b.plan.End())
}

// pairs does n pairs, in rounds, of the given sizes in turn, unless the time is
// up.
func (b *bench) pairs(n int64, s allocator.Stream, sizes ...int64) (int64, error) {
	if b.plan == nil {
		return b.pairLoop(n, s, sizes...)
	}
	var done int64
	for done < n && !b.over.Load() {
		ops, err := b.round(2*roundPairs, s, func() (int64, error) { return b.pairLoop(min(roundPairs, n-done), s, sizes...) })
		if done += ops; err != nil {
			return done, err
		}
	}
	return done, nil
}

// singlePairs returns a function that does a pair, the first of each round with
// what it takes to begin one, and a function that ends the last round.
func (b *bench) singlePairs(bytes int64, s allocator.Stream) (next, end func() error) {
	if b.plan == nil {
		return func() error { return b.pair(bytes, s) }, func() error { return nil }
	}
	pairs := 0
	next = func() error {
		if pairs%roundPairs == 0 {
			if pairs > 0 {
				if err := b.plan.End(); err != nil {
					return err
				}
			}
			if err := b.plan.Begin("round", s); err != nil {
				return err
			}
		}
		pairs++
		return b.pair(bytes, s)
	}
	return next, b.plan.End
}

// pairLoop is the loop in pairs.
func (b *bench) pairLoop(n int64, s allocator.Stream, sizes ...int64) (int64, error) {
	at := 0
	for i := range n {
		if b.over.Load() {
			return i, nil
		}
		if err := b.pair(sizes[at], s); err != nil {
			return i, err
		}
		if at++; at == len(sizes) {
			at = 0
		}
	}
	return n, nil
}

func pairCases(bool) []testCase {
	var cases []testCase
	for _, size := range []int64{512, 4 * kib, 64 * kib, mib, 16 * mib, 64 * mib} {
		name := sizeName(size)
		cases = append(cases, testCase{name, func(b *bench) error {
			s, err := b.NewStream()
			if err != nil {
				return err
			}
			n, err := b.count(func(n int64) (int64, error) { return b.pairs(n, s, size) })
			if err != nil {
				return err
			}
			b.holds(size)
			err = b.measure(name, "pair", 1, func() (int64, error) { return b.pairs(n, s, size) })
			if err != nil {
				return err
			}
			if !b.quick {
				n = min(max(n, leastTime), mostTimed)
			}
			next, end := b.singlePairs(size, s)
			return errors.Join(b.percentiles(n, next), end())
		}})
	}
	return cases
}

func throughputCases(quick bool) []testCase {
	n := int64(10_000)
	if quick {
		n = quickOps
	}
	return []testCase{{"10k x 1 MiB", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		if _, err := b.pairs(100, s, mib); err != nil {
			return err
		}
		b.holds(mib)
		return b.measure("10k x 1 MiB", "pair", 1, func() (int64, error) { return b.pairs(n, s, mib) })
	}}}
}

func mixedCases(bool) []testCase {
	var sizes []int64
	for size := int64(64 * kib); size <= 16*mib; size *= 2 {
		sizes = append(sizes, size)
	}
	return []testCase{{"64 KiB - 16 MiB", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		n, err := b.count(func(n int64) (int64, error) { return b.pairs(n, s, sizes...) })
		if err != nil {
			return err
		}
		b.holds(16 * mib)
		return b.measure("64 KiB - 16 MiB", "pair", 1, func() (int64, error) { return b.pairs(n, s, sizes...) })
	}}}
}

// onThreads does n pairs on each of several goroutines, the i-th on streams[i].
func (b *bench) onThreads(n int64, streams []allocator.Stream, sizes ...int64) (int64, error) {
	type result struct {
		ops int64
		err error
	}
	results := make(chan result, len(streams))
	for _, s := range streams {
		go func() {
			ops, err := b.pairLoop(n, s, sizes...)
			results <- result{ops, err}
		}()
	}
	var ops int64
	var errs []error
	for range streams {
		r := <-results
		ops += r.ops
		errs = append(errs, r.err)
	}
	return ops, errors.Join(errs...)
}

func threadCases(bool) []testCase { return concurrent([]int{1, 2, 4, 8, 16}, false, mib) }

func oneStreamCases(bool) []testCase { return concurrent([]int{1, 2, 4, 8, 16}, true, mib) }

func sharedCases(bool) []testCase {
	return concurrent([]int{1, 4, 16}, true, 256, 4096, 16384, 524288, 512, 1048576)
}

func concurrent(threads []int, shared bool, sizes ...int64) []testCase {
	var cases []testCase
	for _, n := range threads {
		name := plural(n, "thread")
		cases = append(cases, testCase{name, func(b *bench) error {
			streams, err := b.streams(n)
			if err != nil {
				return err
			}
			for i := range streams {
				if shared {
					streams[i] = streams[0]
				}
			}
			if err := b.holdAll(streams, slices.Max(sizes)); err != nil {
				return err
			}
			each, err := b.count(func(n int64) (int64, error) { return b.onThreads(n, streams, sizes...) })
			if err != nil {
				return err
			}
			if !b.quick {
				each = max(each/int64(n), leastOps)
			}
			return b.measure(name, "pair", n, func() (int64, error) { return b.onThreads(each, streams, sizes...) })
		}})
	}
	return cases
}

// holdAll has a block on every stream at once, so that what threads may need at
// the worst moment is there before they are timed.
func (b *bench) holdAll(streams []allocator.Stream, bytes int64) error {
	blocks := make([]allocator.Block, len(streams))
	for i, s := range streams {
		var err error
		if blocks[i], err = b.a.Alloc(bytes, s, "held"); err != nil {
			return err
		}
	}
	b.holds(int64(len(streams)) * bytes)
	var errs []error
	for i, s := range streams {
		errs = append(errs, b.a.Free(blocks[i], s))
	}
	return errors.Join(errs...)
}

func delayedCases(bool) []testCase {
	sizes := [...]int64{256, 4096, 16384, 4096, 512, 1024, 1024}
	var cases []testCase
	for _, delay := range []int{1, 10, 100, 1000} {
		name := "delay " + fmt.Sprint(delay)
		cases = append(cases, testCase{name, func(b *bench) error {
			s, err := b.NewStream()
			if err != nil {
				return err
			}
			blocks := make([]allocator.Block, delay)
			held := make([]bool, delay)
			at, size := 0, 0
			steps := func(n int64) (int64, error) {
				for i := range n {
					if b.over.Load() {
						return i, nil
					}
					if held[at] {
						held[at] = false
						if err := b.a.Free(blocks[at], s); err != nil {
							return i, err
						}
					}
					block, err := b.a.Alloc(sizes[size], s, "delayed")
					if err != nil {
						return i, err
					}
					blocks[at], held[at] = block, true
					if at++; at == delay {
						at = 0
					}
					if size++; size == len(sizes) {
						size = 0
					}
				}
				return n, nil
			}
			n, err := b.count(steps)
			if err != nil {
				return err
			}
			var live int64
			for i, block := range blocks {
				if held[i] {
					live += block.Size
				}
			}
			b.holds(live)
			if err := b.measure(name, "pair", 1, func() (int64, error) { return steps(n) }); err != nil {
				return err
			}
			for i, block := range blocks {
				if held[i] {
					err = errors.Join(err, b.a.Free(block, s))
				}
			}
			return err
		}})
	}
	return cases
}

func randomCases(quick bool) []testCase {
	nums, sizes := []int{1_000, 10_000, 100_000}, []int64{1, 4, 64, 256, 1024, 4096}
	if quick {
		nums, sizes = []int{quickOps}, []int64{1, 64}
	}
	var cases []testCase
	for _, num := range nums {
		for _, most := range sizes {
			name := fmt.Sprintf("%d <= %s", num, sizeName(most*mib))
			cases = append(cases, testCase{name, func(b *bench) error { return b.random(name, num, most*mib) }})
		}
	}
	return cases
}

// random does three rounds of the same requests. The first finds the allocator
// empty, the last finds it in a steady state; more would show how well the
// processor learns the sequence. Where the time limit ends a round, the next
// ones are left out.
func (b *bench) random(name string, num int, largest int64) error {
	s, err := b.NewStream()
	if err != nil {
		return err
	}
	blocks := make([]allocator.Block, 0, num)
	for round := range 3 {
		name := name + [...]string{" cold", " second", " warm"}[round]
		err := b.measure(name, "call", 1, func() (int64, error) {
			return b.round(2*num, s, func() (int64, error) { return b.randomRound(s, blocks, largest) })
		})
		if err != nil {
			return err
		}
		last := len(b.rows) - 1
		if b.rows[last].Cut {
			break
		}
		if round == 1 { // it only warms up
			b.rows = b.rows[:last]
		}
	}
	return nil
}

// randomRound does twice as many calls as blocks has room for, which is also how
// many of them allocate at most, and then frees what is left.
func (b *bench) randomRound(s allocator.Stream, blocks []allocator.Block, largest int64) (int64, error) {
	const most = 16000 * mib
	r := random(1)
	num := cap(blocks)
	var ops, bytes, peak int64
	allocs := 0
	drop := func(i int) error {
		block := blocks[i]
		blocks[i] = blocks[len(blocks)-1]
		blocks = blocks[:len(blocks)-1]
		bytes -= block.Size
		ops++
		return b.a.Free(block, s)
	}
	for range 2 * num {
		if b.over.Load() {
			break
		}
		size := 1 + r.below(largest)
		if len(blocks) == 0 || r.below(100) < 73 && allocs < num && bytes+size < most {
			block, err := b.a.Alloc(size, s, "random")
			if err == nil {
				blocks = append(blocks, block)
				allocs++
				bytes += size
				peak = max(peak, bytes)
				ops++
				continue
			}
			if !outOfMemory(err) {
				return ops, err
			}
			b.failed++
		}
		if len(blocks) > 0 {
			if err := drop(int(r.below(int64(num))) % len(blocks)); err != nil {
				return ops, err
			}
		}
	}
	for len(blocks) > 0 {
		if err := drop(len(blocks) - 1); err != nil {
			return ops, err
		}
	}
	b.holds(peak)
	return ops, nil
}

// outOfMemory says whether an allocator had no memory, which it survives.
func outOfMemory(err error) bool {
	var o *allocator.OutOfMemoryError
	return errors.As(err, &o)
}

func churnCases(bool) []testCase {
	return []testCase{
		{"32 streams", func(b *bench) error { return b.churn("32 streams", 32) }},
		{"1 stream", func(b *bench) error { return b.churn("1 stream", 1) }},
		{"two temporaries", temporaries},
	}
}

// churn holds 32 blocks, dealt out over some streams, and replaces one after the
// other at random.
func (b *bench) churn(name string, streams int) error {
	ss, err := b.streams(streams)
	if err != nil {
		return err
	}
	var blocks [32]allocator.Block
	var bytes, peak int64
	r := random(1)
	fill := func(i int) error {
		size := int64(64*kib) << r.below(9)
		block, err := b.a.Alloc(size, ss[i%streams], "churn")
		if err != nil {
			return err
		}
		blocks[i] = block
		bytes += size
		peak = max(peak, bytes)
		return nil
	}
	for i := range blocks {
		if err := fill(i); err != nil {
			return err
		}
	}
	steps := func(n int64) (int64, error) {
		for done := range n {
			if b.over.Load() {
				return done, nil
			}
			i := int(r.below(32))
			bytes -= blocks[i].Size
			if err := b.a.Free(blocks[i], ss[i%streams]); err != nil {
				return done, err
			}
			if err := fill(i); err != nil {
				return done, err
			}
		}
		return n, nil
	}
	// As many for every allocator, because the peaks grow with their number.
	n := int64(50_000)
	if b.quick {
		n = quickOps
	}
	if _, err := b.within(func() error { _, err := steps(n); return err }); err != nil {
		return err
	}
	err = b.measure(name, "pair", 1, func() (int64, error) {
		done, err := steps(n)
		b.holds(peak)
		return done, err
	})
	if err != nil {
		return err
	}
	for i, block := range blocks {
		err = errors.Join(err, b.a.Free(block, ss[i%streams]))
	}
	return err
}

// temporaries takes two blocks of a random size and frees both, as a stage of a
// stream of data does.
func temporaries(b *bench) error {
	s, err := b.NewStream()
	if err != nil {
		return err
	}
	r := random(1)
	var peak int64
	steps := func(n int64) (int64, error) {
		for i := int64(0); i < n; i += 2 {
			if b.over.Load() {
				return i, nil
			}
			size := int64(64*kib) << r.below(9)
			peak = max(peak, 2*size)
			first, err := b.a.Alloc(size, s, "temporary")
			if err != nil {
				return i, err
			}
			second, err := b.a.Alloc(size, s, "temporary")
			if err != nil {
				return i, errors.Join(err, b.a.Free(first, s))
			}
			if err := errors.Join(b.a.Free(first, s), b.a.Free(second, s)); err != nil {
				return i, err
			}
		}
		return n, nil
	}
	n, err := b.count(steps)
	if err != nil {
		return err
	}
	return b.measure("two temporaries", "pair", 1, func() (int64, error) {
		done, err := steps(n &^ 1)
		b.holds(peak)
		return done, err
	})
}

func liveCases(bool) []testCase {
	return []testCase{{"1000 x 1 MiB", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		blocks := make([]allocator.Block, 1000)
		if b.quick {
			blocks = blocks[:quickOps]
		}
		requests := func() (int64, error) {
			n := 0
			for n < len(blocks) && !b.over.Load() {
				var err error
				if blocks[n], err = b.a.Alloc(mib, s, "live"); err != nil {
					return int64(n), err
				}
				n++
			}
			b.holds(int64(n) * mib)
			for _, block := range blocks[:n] {
				if err := b.a.Free(block, s); err != nil {
					return int64(n), err
				}
			}
			return 2 * int64(n), nil
		}
		round := func() (int64, error) { return b.round(2*len(blocks), s, requests) }
		if err := b.measure("1000 x 1 MiB cold", "call", 1, round); err != nil {
			return err
		}
		return b.measure("1000 x 1 MiB warm", "call", 1, b.repeated(round))
	}}}
}

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

// extremeCases are queries on tables of very different length: three columns of
// 8 bytes and a mask of one for each row, freed together.
func extremeCases(quick bool) []testCase {
	n := int64(20_000)
	if quick {
		n = quickOps
	}
	rows := make([]int64, 1024)
	r := random(1)
	for i := range rows { // logarithmically uniform
		rows[i] = int64(1e5 * math.Pow(100, float64(r.next()>>11)/(1<<53)))
	}
	return []testCase{{"100 K - 10 M rows", func(b *bench) error {
		s, err := b.NewStream()
		if err != nil {
			return err
		}
		queries := func(n int64) (int64, error) {
			var columns [4]allocator.Block
			for i := range n {
				if b.over.Load() {
					return 8 * i, nil
				}
				count := rows[i%int64(len(rows))]
				for c := range columns {
					bytes := 8 * count
					if c == len(columns)-1 {
						bytes = count
					}
					var err error
					if columns[c], err = b.a.Alloc(bytes, s, "column"); err != nil {
						for _, column := range columns[:c] {
							err = errors.Join(err, b.a.Free(column, s))
						}
						return 8 * i, err
					}
				}
				b.holds(25 * count)
				for _, column := range columns {
					if err := b.a.Free(column, s); err != nil {
						return 8 * i, err
					}
				}
			}
			return 8 * n, nil
		}
		if err := b.measure("100 K - 10 M rows cold", "call", 1, func() (int64, error) { return queries(int64(len(rows))) }); err != nil {
			return err
		}
		return b.measure("100 K - 10 M rows warm", "call", 1, func() (int64, error) { return queries(n) })
	}}}
}

func multiStreamCases(bool) []testCase {
	var cases []testCase
	for _, prewarmed := range []bool{false, true} {
		for _, n := range []int{1, 2, 4} {
			name := plural(n, "stream")
			if prewarmed {
				name += " prewarmed"
			}
			cases = append(cases, testCase{name, func(b *bench) error { return b.multiStream(name, n, prewarmed) }})
		}
	}
	return cases
}

// multiStream times single rounds, the first of which finds the allocator empty
// unless every stream had a block before.
func (b *bench) multiStream(name string, streams int, prewarmed bool) error {
	const kernels, bytes, again = 4, 8, 20
	if err := b.Prepare(); err != nil {
		return err
	}
	ss, err := b.streams(streams)
	if err != nil {
		return err
	}
	if prewarmed {
		for _, s := range ss {
			if err := b.pair(bytes, s); err != nil {
				return err
			}
		}
	}
	b.holds(bytes)
	requests := func() (int64, error) {
		for k := range kernels {
			s := ss[k%streams]
			block, err := b.a.Alloc(bytes, s, "result")
			if err != nil {
				return 0, err
			}
			if err := errors.Join(b.Work(s, block.Addr), b.a.Free(block, s)); err != nil {
				return 0, err
			}
		}
		return 1, b.Synchronize()
	}
	round := func() error {
		_, err := b.round(2*kernels, ss[0], requests)
		return err
	}
	first := name
	if !prewarmed {
		first += " first"
	}
	if err := b.measure(first, "round", 1, func() (int64, error) { return 1, round() }); err != nil || prewarmed {
		return err
	}
	return b.measure(name+" again", "round", 1, func() (int64, error) {
		n := int64(0)
		for n < again && !b.over.Load() {
			if err := round(); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	})
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

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
