package device_test

import (
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/cudadriver"
	"mlpool/internal/must"
	"mlpool/kernels"
	"mlpool/kernels/kerneltest"
)

// gpu is an allocator on a GPU with streams, which it closes with the test.
type gpu struct {
	cudadriver.Driver
	kernels.Filler
	t       *testing.T
	a       allocator.Allocator
	streams []kernels.Stream
}

// openGPU makes an allocator with open and count streams.
func openGPU(t *testing.T, count int, open func() (allocator.Allocator, error)) *gpu {
	t.Helper()
	kerneltest.RequireGPU(t)
	g := &gpu{t: t}
	t.Cleanup(g.close)
	for range count {
		s, err := kernels.NewStream()
		must.OK(t, err)
		g.streams = append(g.streams, s)
	}
	var err error
	if g.a, err = open(); err != nil {
		t.Fatal(err)
	}
	return g
}

func openPool(t *testing.T, count int, o allocator.PoolOptions) *gpu {
	t.Helper()
	return openGPU(t, count, func() (allocator.Allocator, error) { return allocator.NewPool(cudadriver.Driver{}, o) })
}

func (g *gpu) close() {
	g.sync()
	if g.a != nil {
		g.must(g.a.Close())
	}
	for _, s := range g.streams {
		g.must(s.Close())
	}
}

// must reports a fault, also during the test's cleanup.
func (g *gpu) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Error(err)
	}
}

func (g *gpu) sync() {
	g.t.Helper()
	for _, s := range g.streams {
		g.must(s.Synchronize())
	}
}

func (g *gpu) alloc(bytes int64, on kernels.Stream) allocator.Block {
	g.t.Helper()
	b, err := g.a.Alloc(bytes, on.Handle(), g.t.Name())
	if err != nil {
		g.t.Fatalf("Alloc(%d): %v", bytes, err)
	}
	return b
}

func (g *gpu) free(b allocator.Block, on kernels.Stream) {
	g.t.Helper()
	g.must(g.a.Free(b, on.Handle()))
}

// write queues writes of value to all of b.
func (g *gpu) write(b allocator.Block, value uint32, on kernels.Stream) {
	g.t.Helper()
	g.must(g.Fill(b.Addr, value, b.Size, on.Handle()))
}

// holds checks that all of b is value, after the work queued on a stream.
func (g *gpu) holds(b allocator.Block, value uint32, on kernels.Stream) {
	g.t.Helper()
	if n, err := g.Differing(b.Addr, value, b.Size, on.Handle()); n != 0 || err != nil {
		g.t.Errorf("%d of %d words at %#x are not %#x, error %v", n, b.Size/4, b.Addr, value, err)
	}
}

var policies = []allocator.Reuse{allocator.ReuseWait, allocator.ReuseOpportunistic, allocator.ReuseSameStream}
