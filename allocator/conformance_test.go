package allocator_test

import (
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
)

// deviceBytes is the memory of the fake device that the suite runs on.
const deviceBytes = 1 << 30

func newPool(t testing.TB, d allocator.Driver, o allocator.PoolOptions) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(d, o)
	must.OK(t, err)
	return p
}

// onPages opens an allocator on small pages: chunks are stitched, and it takes a few
// steps more until the same ones are.
func onPages(t *testing.T, open func(f *allocatortest.Fake) allocator.Allocator) *allocatortest.Env {
	t.Helper()
	f := allocatortest.NewFake(deviceBytes).WithPages(smallPage)
	env := allocatortest.NewEnv(t, f, open(f))
	env.Caches, env.Returns, env.Settles = true, true, 12
	return env
}

func poolOnPages(o allocator.PoolOptions) func(*testing.T) *allocatortest.Env {
	return func(t *testing.T) *allocatortest.Env {
		return onPages(t, func(f *allocatortest.Fake) allocator.Allocator { return newPool(t, f, o) })
	}
}

func TestConformance(t *testing.T) {
	pool := func(o allocator.PoolOptions) func(*testing.T) *allocatortest.Env {
		return func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			p := newPool(t, f, o)
			if o.Segments != "" && p.Segments() != o.Segments {
				t.Fatalf("%s segments, asked for %s", p.Segments(), o.Segments)
			}
			env := allocatortest.NewEnv(t, f, p)
			env.Caches, env.Returns = true, true
			return env
		}
	}
	for _, strategy := range allocator.Strategies() {
		for _, kind := range segmentKinds(strategy) {
			t.Run("pool/"+strategy+"/"+kind, func(t *testing.T) {
				allocatortest.Run(t, pool(allocator.PoolOptions{Strategy: strategy, Segments: kind}))
			})
		}
	}
	kept := func(o allocator.PoolOptions) func(*testing.T) *allocatortest.Env {
		return func(t *testing.T) *allocatortest.Env {
			o.KeepMapped = true
			env := pool(o)(t)
			env.Returns = false
			if o.Segments == allocator.SegmentsMalloc {
				env.Limit = 0 // free segments do not become a larger one
			}
			return env
		}
	}
	for name, open := range map[string]func(*testing.T) *allocatortest.Env{
		"pool/kept mapped":               kept(allocator.PoolOptions{}),
		"pool/kept mapped/malloc":        kept(allocator.PoolOptions{Segments: allocator.SegmentsMalloc}),
		"pool/kept mapped/opportunistic": kept(allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}),
		"pool/opportunistic":             pool(allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}),
		"pool/same-stream":               pool(allocator.PoolOptions{Reuse: allocator.ReuseSameStream}),
		"pool/limit":                     pool(allocator.PoolOptions{MaxBytes: deviceBytes, GCThreshold: 0.5}),
		"pool/slack":                     pool(allocator.PoolOptions{Slack: 1}),
		"pool/pre-allocated":             pool(allocator.PoolOptions{PreallocateBytes: 64 << 20}),
		"pool/malloc/opportunistic":      pool(allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Reuse: allocator.ReuseOpportunistic}),
		"pool/malloc/same-stream":        pool(allocator.PoolOptions{Segments: allocator.SegmentsMalloc, Reuse: allocator.ReuseSameStream}),
		"pool/malloc/limit":              pool(allocator.PoolOptions{Segments: allocator.SegmentsMalloc, MaxBytes: deviceBytes, GCThreshold: 0.5}),
		"pool/malloc/pre-allocated":      pool(allocator.PoolOptions{Segments: allocator.SegmentsMalloc, PreallocateBytes: 64 << 20}),
		"pool/own placement":             pool(allocator.PoolOptions{Placement: newHighest}),
		"pool/own placement/malloc":      pool(allocator.PoolOptions{Placement: newHighest, Segments: allocator.SegmentsMalloc}),
		"pool/small pages":               poolOnPages(allocator.PoolOptions{}),
		"pool/small pages/opportunistic": poolOnPages(allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}),
		"pool/small pages/same-stream":   poolOnPages(allocator.PoolOptions{Reuse: allocator.ReuseSameStream}),
		"pool/small pages/pre-allocated": poolOnPages(allocator.PoolOptions{PreallocateBytes: 3<<20 + 1, GCThreshold: 0.4}),
		"pool/small pages/slack":         poolOnPages(allocator.PoolOptions{Slack: 0.1}),
		"async": func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			env := allocatortest.NewEnv(t, f, allocator.NewAsync(f))
			env.Returns = true
			return env
		},
		"malloc": func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			env := allocatortest.NewEnv(t, f, allocator.NewMalloc(f))
			env.Returns = true
			return env
		},
		"poison": func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(192 << 20) // all of which is written to
			return allocatortest.NewEnv(t, f, allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f))
		},
		"limit": func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			env := allocatortest.NewEnv(t, f, allocator.NewLimit(newPool(t, f, allocator.PoolOptions{}), 512<<20))
			env.Limit = 512 << 20
			return env
		},
		"trace": func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			return allocatortest.NewEnv(t, f, allocator.NewTrace(newPool(t, f, allocator.PoolOptions{}), 1000))
		},
		"timed": func(t *testing.T) *allocatortest.Env {
			f := allocatortest.NewFake(deviceBytes)
			return allocatortest.NewEnv(t, f, allocator.NewTimed(newPool(t, f, allocator.PoolOptions{})))
		},
	} {
		t.Run(name, func(t *testing.T) { allocatortest.Run(t, open) })
	}
}

// segmentKinds are those that a strategy can have.
func segmentKinds(strategy string) []string {
	if strategy == "buddy" {
		return []string{allocator.SegmentsMalloc}
	}
	return []string{allocator.SegmentsVirtual, allocator.SegmentsMalloc}
}

// skipUnderRace skips a long test of one goroutine, which the race detector makes slow.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if underRace() {
		t.Skip("one goroutine")
	}
}
