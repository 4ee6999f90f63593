package allocator_test

import (
	"fmt"
	"log"
	"slices"
	"sync"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// A pool serves repeated steps of work from its own memory: only the first step calls the
// driver. The driver here is a fake; on a GPU it is a cudadriver.Driver.
func ExamplePool() {
	const stream = 1
	pool, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for step := range 3 {
		before := pool.Stats()
		x, err := pool.Alloc(5<<20, stream, "activations")
		if err != nil {
			log.Fatal(err)
		}
		y, err := pool.Alloc(1<<20, stream, "gradients")
		if err != nil {
			log.Fatal(err)
		}
		// The work on x and y is queued on the stream here. It need not be done.
		for _, b := range []allocator.Block{x, y} {
			if err := pool.Free(b, stream); err != nil {
				log.Fatal(err)
			}
		}
		after := pool.Stats()
		fmt.Printf("step %d asked the driver for memory: %v\n", step, after.DriverMallocs > before.DriverMallocs)
	}
	stats := pool.Stats()
	fmt.Printf("%d MiB at the peak, %d MiB reserved\n", stats.PeakAllocated>>20, stats.PeakReserved>>20)
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// step 0 asked the driver for memory: true
	// step 1 asked the driver for memory: false
	// step 2 asked the driver for memory: false
	// 6 MiB at the peak, 6 MiB reserved
}

// A second stream uses a block: one copies the data that the other computes on. If it was named
// before the Free, it may still be at work then. The next use of the memory waits for it, on the
// device.
func ExamplePool_RecordStream() {
	const compute, copies = 1, 2
	device := allocatortest.NewFake(1 << 30)
	pool, err := allocator.NewPool(device, allocator.PoolOptions{})
	if err != nil {
		log.Fatal(err)
	}
	result, err := pool.Alloc(4<<20, compute, "result")
	if err != nil {
		log.Fatal(err)
	}
	// Kernels on compute write the result here. Then an event makes copies wait for them,
	// and a copy to the host is queued there.
	device.Order(compute, copies)
	if err := device.Use(result.Addr, result.Size, copies, 1); err != nil {
		log.Fatal(err)
	}
	if err := pool.RecordStream(result, copies); err != nil {
		log.Fatal(err)
	}
	if err := pool.Free(result, compute); err != nil {
		log.Fatal(err)
	}
	next, err := pool.Alloc(4<<20, compute, "next")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("during the copy, the same memory:", next.Addr == result.Addr)
	if err := pool.Free(next, compute); err != nil {
		log.Fatal(err)
	}
	device.Synchronize()
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// during the copy, the same memory: false
}

// A stream is released before it is destroyed: all streams may then use its free memory, under
// any policy. Here no stream may use the memory of another one.
func ExamplePool_ReleaseStream() {
	const first, second = 1, 2
	device := allocatortest.NewFake(1 << 30)
	pool, err := allocator.NewPool(device, allocator.PoolOptions{Reuse: allocator.ReuseSameStream})
	if err != nil {
		log.Fatal(err)
	}
	for _, stream := range []allocator.Stream{first, second} {
		b, err := pool.Alloc(64<<20, stream, "work")
		if err != nil {
			log.Fatal(err)
		}
		if err := pool.Free(b, stream); err != nil {
			log.Fatal(err)
		}
		if err := pool.ReleaseStream(stream); err != nil {
			log.Fatal(err)
		}
		device.DestroyStream(stream) // on a GPU, cudaStreamDestroy
	}
	fmt.Printf("%d MiB reserved for both\n", pool.Stats().PeakReserved>>20)
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 64 MiB reserved for both
}

// largest is an allocator that remembers the largest request to another one, which has all other
// methods. Like every allocator it may be called from any goroutine.
type largest struct {
	allocator.Allocator
	mu    sync.Mutex
	bytes int64
	tag   string
}

func (l *largest) Alloc(bytes int64, s allocator.Stream, tag string) (allocator.Block, error) {
	l.mu.Lock()
	if bytes > l.bytes {
		l.bytes, l.tag = bytes, tag
	}
	l.mu.Unlock()
	return l.Allocator.Alloc(bytes, s, tag)
}

// Unwrap lets As find the wrapped allocator.
func (l *largest) Unwrap() allocator.Allocator { return l.Allocator }

// A custom allocator wraps another one. As finds the wrapped one, here the pool, which can be told
// of a second stream.
func Example_decorator() {
	const compute, copies = 1, 2
	pool, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{})
	if err != nil {
		log.Fatal(err)
	}
	l := &largest{Allocator: pool}
	var a allocator.Allocator = l
	for _, r := range []struct {
		tag   string
		bytes int64
	}{{"batch", 200 << 10}, {"weights", 3 << 20}, {"loss", 4}} {
		b, err := a.Alloc(r.bytes, compute, r.tag)
		if err != nil {
			log.Fatal(err)
		}
		if recorder, ok := allocator.As[allocator.StreamRecorder](a); ok {
			if err := recorder.RecordStream(b, copies); err != nil {
				log.Fatal(err)
			}
		}
		if err := a.Free(b, compute); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("the largest request: %d bytes of %q\n", l.bytes, l.tag)
	if err := a.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the largest request: 3145728 bytes of "weights"
}

// callAgain replays the calls of a trace on another allocator.
func callAgain(events []allocator.TraceEvent, to allocator.MemoryResource) error {
	blocks := make(map[uintptr]allocator.Block) // by their addresses in the trace
	for _, e := range events {
		switch e.Action {
		case allocator.ActionAlloc:
			b, err := to.Alloc(e.Bytes, e.Stream, e.Tag)
			if err != nil {
				return err
			}
			blocks[e.Addr] = b
		case allocator.ActionFree:
			if err := to.Free(blocks[e.Addr], e.Stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// A Trace records the calls of a program. Replayed on another allocator, they show how much that
// one would reserve.
func ExampleTrace() {
	const stream = 1
	trace := allocator.NewTrace(allocator.NewMalloc(allocatortest.NewFake(1<<30)), 100)
	var blocks []allocator.Block
	for _, mib := range []int64{3, 5, 7} { // a program's requests
		b, err := trace.Alloc(mib<<20, stream, "layer")
		if err != nil {
			log.Fatal(err)
		}
		blocks = append(blocks, b)
	}
	for _, b := range blocks {
		if err := trace.Free(b, stream); err != nil {
			log.Fatal(err)
		}
	}
	events, overflow := trace.Events()
	fmt.Printf("%d calls, some were lost: %v\n", len(events), overflow)

	pool, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{})
	if err != nil {
		log.Fatal(err)
	}
	for range 100 { // as a program that trains
		if err := callAgain(events, pool); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("a pool reserves %d MiB for them, plain malloc %d MiB\n", pool.Stats().PeakReserved>>20, trace.Stats().PeakReserved>>20)
	for _, a := range []allocator.Allocator{pool, trace} {
		if err := a.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 6 calls, some were lost: false
	// a pool reserves 16 MiB for them, plain malloc 15 MiB
}

// highest is a placement that chooses the free block with the highest address.
type highest struct{ blocks []*allocator.FreeBlock }

func (h *highest) Insert(b *allocator.FreeBlock) { h.blocks = append(h.blocks, b) }

func (h *highest) Remove(b *allocator.FreeBlock) {
	h.blocks = slices.DeleteFunc(h.blocks, func(other *allocator.FreeBlock) bool { return other == b })
}

func (h *highest) Find(size int64) (best *allocator.FreeBlock) {
	for _, b := range h.blocks {
		if b.Size() >= size && (best == nil || b.Addr() > best.Addr()) {
			best = b
		}
	}
	return best
}

// A custom strategy has three methods; the pool still splits, coalesces and orders streams.
func ExamplePlacement() {
	const stream = 1
	pool, err := allocator.NewPool(allocatortest.NewFake(1<<30), allocator.PoolOptions{
		Placement: func() allocator.Placement { return &highest{} },
	})
	if err != nil {
		log.Fatal(err)
	}
	alloc := func() allocator.Block {
		b, err := pool.Alloc(64<<10, stream, "example")
		if err != nil {
			log.Fatal(err)
		}
		return b
	}
	free := func(b allocator.Block) {
		if err := pool.Free(b, stream); err != nil {
			log.Fatal(err)
		}
	}
	first, second := alloc(), alloc()
	free(first)
	third := alloc() // not where the first was, but behind the second
	fmt.Println("of the highest address:", third.Addr > second.Addr)
	free(second)
	free(third)
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// of the highest address: true
}
