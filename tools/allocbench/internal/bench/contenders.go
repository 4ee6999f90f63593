package bench

import (
	"fmt"
	"slices"
	"strings"

	"mlpool/allocator"
	"mlpool/tools/allocbench/peers"
)

// A Contender is an allocator that the scenarios are run on.
type Contender struct {
	Name string
	Doc  string
	Open func(Device) (allocator.Allocator, error)
	// Driver says that each call is a driver call: without a GPU its time means nothing.
	Driver bool
	// MemoryOnly says that only the memory of another project's allocator is simulated: it runs on
	// a device without memory, and its times are left out.
	MemoryOnly bool
}

// OnGPU is the allocator that without a GPU is just a table of addresses. There it is measured only if
// -allocator names it.
const OnGPU = "cuda"

// NoAllocator only runs the loop of a scenario.
const NoAllocator = "none"

// MallocSegments is the pool on a device without virtual memory management.
const MallocSegments = "malloc segments"

// Contenders returns the allocators: every strategy of the pool, the default first, and those to
// compare with. To add one, add a line. A pool has virtual segments unless its contender, or its
// strategy, excludes them.
func Contenders() []Contender {
	var all []Contender
	for _, s := range allocator.Strategies() {
		all = append(all, pool(s, "the pool, placement "+s, allocator.PoolOptions{Strategy: s}))
	}
	return append(all,
		pool(MallocSegments, "the pool, where memory comes in segments of cudaMalloc; the others have virtual ones where the device maps pages, but for buddy", allocator.PoolOptions{Segments: allocator.SegmentsMalloc}),
		pool("slack 1/64", "the pool, which may reserve a sixty-fourth more than was ever handed out before memory is moved, and never more", allocator.PoolOptions{Slack: 1. / 64}),
		pool("slack 1/8", "the same with an eighth", allocator.PoolOptions{Slack: 1. / 8}),
		pool("slack 1/2", "the same with a half", allocator.PoolOptions{Slack: 1. / 2}),
		pool("slack 1", "the same with as much again", allocator.PoolOptions{Slack: 1}),
		pool("opportunistic", "the pool, where memory changes streams only once it is idle", allocator.PoolOptions{Reuse: allocator.ReuseOpportunistic}),
		pool("same-stream", "the pool, where memory never changes streams", allocator.PoolOptions{Reuse: allocator.ReuseSameStream}),
		decorated("trace", "the pool in a trace of the last 65 536 calls", func(a allocator.Allocator) allocator.Allocator { return allocator.NewTrace(a, 1<<16) }),
		decorated("limit", "the pool in a limit that is never reached", func(a allocator.Allocator) allocator.Allocator { return allocator.NewLimit(a, 1<<45) }),
		decorated("timed", "the pool in the stopwatch that train uses", func(a allocator.Allocator) allocator.Allocator { return allocator.NewTimed(a) }),
		Contender{Name: OnGPU, Doc: "cudaMallocAsync and cudaFreeAsync, every free checked", Open: openAsync, Driver: true},
		Contender{Name: "malloc", Doc: "cudaMalloc, and cudaFree after the stream's work", Open: func(d Device) (allocator.Allocator, error) { return allocator.NewMalloc(d), nil }, Driver: true},
		Simulated("torch", "PyTorch's caching allocator, by its rules: memory alone", func(d allocator.PageDriver) peers.Peer { return peers.Torch(d, peers.Settings{}) }),
		Simulated("torch-expandable", "the same with expandable_segments:True", func(d allocator.PageDriver) peers.Peer { return peers.TorchExpandable(d, peers.Settings{}) }),
		Contender{Name: NoAllocator, Doc: "no allocator: what the scenario itself costs", Open: func(Device) (allocator.Allocator, error) { return None{}, nil }},
	)
}

func pool(name, doc string, o allocator.PoolOptions) Contender {
	return Contender{Name: name, Doc: doc, Open: func(d Device) (allocator.Allocator, error) { return allocator.NewPool(d, o) }}
}

// decorated is a default pool in the decorator of wrap.
func decorated(name, doc string, wrap func(allocator.Allocator) allocator.Allocator) Contender {
	return Contender{Name: name, Doc: doc, Open: func(d Device) (allocator.Allocator, error) {
		p, err := allocator.NewPool(d, allocator.PoolOptions{})
		if err != nil {
			return nil, err
		}
		return wrap(p), nil
	}}
}

// Simulated is the allocator of another project, whose memory alone is measured.
func Simulated(name, doc string, open func(allocator.PageDriver) peers.Peer) Contender {
	return Contender{Name: name, Doc: doc, MemoryOnly: true, Open: func(d Device) (allocator.Allocator, error) {
		p := open(d.(*null).Device)
		return &simulation{allocator.NewAsync(p), p}, nil
	}}
}

// A simulation is the allocator of another project, with a map of its memory.
type simulation struct {
	*allocator.Async
	peer peers.Peer
}

// PoolUser returns the peer's UsePool of an allocator that has private pools; else a function that does nothing.
func PoolUser(a allocator.Allocator) func(private int32) {
	if s, ok := allocator.As[*simulation](a); ok {
		return s.peer.UsePool
	}
	return func(int32) {}
}

// Map is the peer's, with the tags of live blocks.
func (s *simulation) Map() allocator.Map {
	tags := map[uintptr]string{}
	for _, b := range s.Live() {
		tags[b.Addr] = b.Tag
	}
	m := s.peer.Map()
	for _, g := range m.Segments {
		for i := range g.Blocks {
			if b := &g.Blocks[i]; b.State == allocator.MapLive {
				b.Tag = tags[b.Addr]
			}
		}
	}
	return m
}

func openAsync(d Device) (allocator.Allocator, error) {
	p, err := d.Pool()
	if err != nil {
		return nil, err
	}
	return allocator.NewAsync(p), nil
}

// None always hands out the same address.
type None struct{}

func (None) Alloc(bytes int64, _ allocator.Stream, _ string) (allocator.Block, error) {
	return allocator.Block{Addr: allocator.Alignment, Size: bytes}, nil
}
func (None) Free(allocator.Block, allocator.Stream) error { return nil }
func (None) Stats() allocator.Stats                       { return allocator.Stats{} }
func (None) ResetPeaks()                                  {}
func (None) Trim(int64) error                             { return nil }
func (None) Live() []allocator.LiveBlock                  { return nil }
func (None) Close() error                                 { return nil }

// Named returns the contenders that a list with commas names; an empty list names all.
func Named(list string) ([]Contender, error) {
	return Choose("allocator", list, Contenders(), func(c Contender) string { return c.Name })
}

// Choose returns the contenders that a comma-separated list names, in the order of all; an empty
// list names all.
func Choose[T any](what, list string, all []T, name func(T) string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	var names []string
	var chosen []T
	for _, t := range all {
		names = append(names, name(t))
		if slices.Contains(wanted, name(t)) {
			chosen = append(chosen, t)
		}
	}
	for _, w := range wanted {
		if !slices.Contains(names, w) {
			return nil, fmt.Errorf("no %s %q: there are %s", what, w, strings.Join(names, ", "))
		}
	}
	return chosen, nil
}
