package allocator_test

import (
	"slices"
	"testing"

	"mlpool/allocator"
)

// smallPage makes chunks move all the time, in bytes.
const smallPage = 4 << 10

// fewer returns n, or less with -short, and under the race detector, which is slow and finds nothing
// in one goroutine.
func fewer(n int) int {
	if underRace() || testing.Short() {
		return n / 8
	}
	return n
}

// virtualStrategies are the strategies that allow virtual segments.
func virtualStrategies() []string {
	return slices.DeleteFunc(allocator.Strategies(), func(s string) bool { return s == "buddy" })
}

// TestTrimWaitsForGiversOnly trims a pool in which only one stream has unused memory, or enough of
// it. The host waits for that stream only, not for those whose segments are partly in use, nor for
// memory of a released stream.
func TestTrimWaitsForGiversOnly(t *testing.T) {
	const page, streams = 2 << 20, 20
	for _, kind := range []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t, allocator.PoolOptions{Segments: kind, SegmentBytes: page, MaxSegmentBytes: page, Reuse: allocator.ReuseSameStream})
			var blocks []allocator.Block
			for s := range allocator.Stream(streams) {
				blocks = append(blocks, r.alloc(page/2, s))
				rest := r.alloc(page/2, s)
				r.must(r.Free(rest, s))
			}
			for _, c := range []struct {
				name   string
				givers []allocator.Stream
				keep   int64
				waits  int
			}{
				{"one", []allocator.Stream{7}, streams * page, 1},
				{"released", []allocator.Stream{7}, streams * page, 0},
				{"two, of which one is enough", []allocator.Stream{7, 8}, (streams + 1) * page, 1},
			} {
				for _, s := range c.givers {
					r.must(r.Free(r.alloc(page, s), s))
				}
				if c.name == "released" {
					r.must(r.pool.ReleaseStream(7))
				}
				before := r.fake.Calls("SyncEvent")
				r.must(r.Trim(c.keep))
				if got := r.fake.Calls("SyncEvent") - before; got != c.waits {
					t.Errorf("%s: the host waited %d times, want %d", c.name, got, c.waits)
				}
				if got := r.Stats().Reserved; got != c.keep {
					t.Errorf("%s: %d bytes reserved, want %d", c.name, got, c.keep)
				}
			}
			for s, b := range blocks {
				r.must(r.Free(b, allocator.Stream(s)))
			}
			r.close()
		})
	}
}
