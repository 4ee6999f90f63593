package allocator_test

import (
	"math"
	"testing"
	"time"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// A scriptedClock advances by tick with each reading, and draws numbers by which every
// sampleEvery-th call is timed.
type scriptedClock struct {
	now      time.Duration
	calls    int
	pending  time.Duration // passes before the second reading from now
	readings int
}

const tick = 100 * time.Nanosecond

func (c *scriptedClock) read() time.Duration {
	if c.pending > 0 {
		if c.readings++; c.readings == 2 {
			c.now += c.pending
			c.pending = 0
		}
	}
	c.now += tick
	return c.now
}

func (c *scriptedClock) draw() uint32 {
	c.calls++
	if c.calls%allocator.SampleEvery == 0 {
		return 0
	}
	return math.MaxUint32
}

// sampled reports whether the next call will be timed.
func (c *scriptedClock) sampled() bool { return (c.calls+1)%allocator.SampleEvery == 0 }

// TestTimedPool makes 1300 pairs of calls that take one tick each and need no driver, and
// one longer call. It times 200 calls.
func TestTimedPool(t *testing.T) {
	const (
		pairs  = 1300
		plain  = 2 * pairs * tick
		takes  = time.Millisecond
		at     = 700 // the first pair that may take long
		missed = allocator.SampleEvery * tick
	)
	for _, c := range []struct {
		name        string
		interrupted time.Duration // the thread does not run during the call
		driver      bool          // the call gets its memory from the driver
		sampled     bool          // the call is timed
		want        time.Duration
	}{
		{"plain", 0, false, false, plain},
		{"an interruption in a call that is timed", 5 * time.Millisecond, false, true, plain - missed + 5*time.Millisecond + tick},
		{"an interruption in one that is not", 5 * time.Millisecond, false, false, plain},
		{"a long call", allocator.Outlier - tick, false, true, plain - missed + allocator.SampleEvery*allocator.Outlier},
		{"a driver's call in one that is not timed", 0, true, false, plain + takes + tick},
		// The two readings around the driver's call are in the timed one as well.
		{"a driver's call in one that is timed", 0, true, true, plain - missed + takes + tick + missed*2},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := &scriptedClock{}
			d := allocatortest.NewFake(deviceBytes).WithoutPages()
			d.Before(func(name string) {
				if name == "Malloc" || name == "Free" {
					clock.now += takes
				}
			})
			a := allocator.NewTimed(allocator.NewLimit(newPool(t, d, allocator.PoolOptions{}), 1<<30))
			if got := a.Time(); got != 0 {
				t.Errorf("new stopwatch shows %v", got)
			}
			a.Script(clock.read, clock.draw)
			pair := func() {
				t.Helper()
				must.OK(t, a.Free(allocFrom(t, a, 1000, 1, "pair"), 1))
			}
			pair()
			clock.calls = 0
			before := a.Time()
			done := false
			for i := range pairs {
				if i >= at && !done && clock.sampled() == c.sampled {
					done = true
					if c.driver {
						must.OK(t, a.Trim(0)) // its time does not count
					}
					if c.sampled {
						clock.pending = c.interrupted
					} else {
						clock.now += c.interrupted
					}
				}
				pair()
			}
			if got := a.Time() - before; !done || got != c.want {
				t.Errorf("%d pairs took %v by estimate, want %v", pairs, got, c.want)
			}
			closeOn(t, d, a)
		})
	}
}
