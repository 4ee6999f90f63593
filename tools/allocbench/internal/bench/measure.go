package bench

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"time"

	"mlpool/allocator"
	"mlpool/internal/stats"
)

// A Bench is one allocator in one case of a scenario.
type Bench struct {
	Device
	A       allocator.Allocator
	Streams []allocator.Stream // of the case
	ctx     context.Context
	Limits
	// memoryOnly leaves times out of the rows.
	memoryOnly bool

	// Over ends the loops: the time of a measurement is up, or the program ends.
	Over atomic.Bool

	live   atomic.Int64 // peak of bytes handed out
	Failed int64        // requests that found no memory
	Rows   []Row
}

// epoch is the origin of clock readings: a difference from it reads the monotonic clock, but not the
// wall clock.
var epoch = time.Now()

// Clock is the least time between two readings. It is subtracted from operations timed one by one;
// means come from loops without readings.
var Clock = func() time.Duration {
	least := time.Hour
	for range 10000 {
		from := now()
		least = min(least, now()-from)
	}
	return least
}()

// Within calls f, which must end soon after b.Over is set, and returns f's number of operations and whether
// the time was up before f returned.
func (b *Bench) Within(f func() (int64, error)) (ops int64, cut bool, err error) {
	b.Over.Store(false)
	var late atomic.Bool
	timer := time.AfterFunc(b.Most, func() { late.Store(true); b.Over.Store(true) })
	defer timer.Stop()
	stop := context.AfterFunc(b.ctx, func() { b.Over.Store(true) })
	defer stop()
	if ops, err = f(); err != nil {
		return ops, false, err
	}
	return ops, late.Load(), b.ctx.Err()
}

// collect frees garbage, so that the collector rests during a measurement. Quick runs measure nothing.
func (b *Bench) collect() {
	if !b.Quick {
		runtime.GC()
	}
}

// Measure times f, which returns the number of operations of its threads, and adds a row for them.
func (b *Bench) Measure(name, unit string, threads int, f func() (int64, error)) error {
	b.collect()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	earlier := b.A.Stats()
	var took time.Duration
	ops, cut, err := b.Within(func() (ops int64, err error) {
		from := now()
		ops, err = f()
		took = now() - from
		return ops, err
	})
	if err != nil {
		return err
	}
	stats := b.A.Stats()
	runtime.ReadMemStats(&after)
	if ops == 0 {
		return errors.New("the time limit is too short for a single operation")
	}
	n := float64(ops)
	r := Row{
		Case: name, Unit: unit, Ops: ops, Runs: 1, Cut: cut,
		Mean: float64(took) * float64(threads) / n, PerSecond: n / took.Seconds(),
		P50: math.NaN(), P99: math.NaN(), P999: math.NaN(),
		PeakLive: b.live.Load(), PeakReserved: stats.PeakReserved, Failed: b.Failed,
		DriverCalls: float64(stats.DriverCalls-earlier.DriverCalls) / n,
		HostWaits:   float64(stats.HostWaits-earlier.HostWaits) / n,
		GoAllocs:    float64(after.Mallocs-before.Mallocs) / n,
	}
	if mapped := stats.Mappings - earlier.Mappings; mapped > 0 {
		r.Created = stats.DriverMallocs - earlier.DriverMallocs
		r.Stitched = mapped - r.Created
	}
	if b.memoryOnly {
		for _, measured := range r.measured() {
			*measured = math.NaN()
		}
	}
	b.Rows = append(b.Rows, r)
	return nil
}

// percentiles times n calls of f one by one, or fewer if the time is up, and adds the percentiles to
// the last row.
func (b *Bench) percentiles(n int64, f func() error) error {
	if b.memoryOnly {
		return nil
	}
	samples := make([]time.Duration, n)
	for i := range samples {
		samples[i] = -1 // touch every page before the loop
	}
	b.collect()
	done, cut, err := b.Within(func() (done int64, err error) {
		for done < n && !b.Over.Load() {
			from := now()
			if err := f(); err != nil {
				return done, err
			}
			samples[done] = now() - from
			done++
		}
		return done, nil
	})
	if err != nil {
		return err
	}
	samples = samples[:done]
	at := func(share float64) float64 { return float64(max(stats.Quantile(samples, share)-Clock, 0)) }
	last := &b.Rows[len(b.Rows)-1]
	last.P50, last.P99, last.P999 = at(0.5), at(0.99), at(0.999)
	last.Cut = last.Cut || cut
	return nil
}

// The length of a loop of calls, unless the scenario sets it.
const (
	loopTime  = 100 * time.Millisecond
	leastOps  = 1000
	mostOps   = 4_000_000
	quickOps  = 100
	mostTimed = 200_000 // for percentiles
	leastTime = 10_000
)

// count returns the number of operations that take about loopTime, by trials of f, which also warm up
// the allocator.
func (b *Bench) count(f func(n int64) (int64, error)) (int64, error) {
	if b.Quick {
		_, err := f(quickOps / 2)
		return quickOps, err
	}
	var estimate time.Duration // for mostOps
	_, _, err := b.Within(func() (int64, error) {
		for n := int64(50); ; n *= 4 {
			from := now()
			done, err := f(n)
			took := now() - from
			if err != nil || done == 0 {
				return done, err
			}
			if took >= loopTime/10 || n >= mostOps || b.Over.Load() {
				estimate = time.Duration(float64(took) / float64(done) * mostOps)
				return done, nil
			}
		}
	})
	if err != nil || estimate <= 0 {
		return leastOps, err
	}
	return min(max(int64(float64(loopTime)/float64(estimate)*mostOps), leastOps), mostOps), nil
}

// Holds records that bytes bytes are handed out.
func (b *Bench) Holds(bytes int64) {
	for {
		most := b.live.Load()
		if bytes <= most || b.live.CompareAndSwap(most, bytes) {
			return
		}
	}
}

// now reads the clock.
func now() time.Duration { return time.Since(epoch) }
