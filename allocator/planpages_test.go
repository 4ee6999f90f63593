package allocator_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// planChurn is a plan over a pool with virtual segments and little memory, on which repeated steps
// and random calls alternate.
type planChurn struct {
	*planRig
	random *rand.Rand
	kept   []modelBlock
}

// got keeps a block, or frees all kept blocks if there was no memory.
func (c *planChurn) got(b allocator.Block, on allocator.Stream, err error) bool {
	c.t.Helper()
	var oom *allocator.OutOfMemoryError
	if errors.As(err, &oom) {
		for len(c.kept) > 0 {
			c.free(0, c.kept[0].on)
		}
		return false
	}
	c.must(err)
	c.kept = append(c.kept, modelBlock{b, on})
	return true
}

func (c *planChurn) free(i int, on allocator.Stream) {
	c.t.Helper()
	b := c.kept[i]
	c.kept = slices.Delete(c.kept, i, i+1)
	c.fake.Order(b.on, on)
	c.must(c.Free(b.Block, on))
}

// step runs a program of requests. A block is freed when the third one after it is requested, on
// another stream than the step's if the program says so, or at random outlives the step.
func (c *planChurn) step(name string, on allocator.Stream, program []int64) {
	c.t.Helper()
	c.must(c.plan.Begin(name, on))
	var blocks []allocator.Block
	free := func(i int) {
		b := blocks[i]
		switch {
		case c.random.IntN(40) == 0:
			c.kept = append(c.kept, modelBlock{b, on})
		case b.Size%3 == 0:
			c.fake.Order(on, 4)
			c.must(c.Use(b, 4))
			c.must(c.RecordStream(b, 4))
			c.must(c.Free(b, on))
		case b.Size%5 == 0:
			c.fake.Order(on, 3)
			c.must(c.Free(b, 3))
		default:
			c.must(c.Free(b, on))
		}
	}
	freed := 0
	for _, bytes := range program {
		b, err := c.Alloc(bytes, on, name)
		var oom *allocator.OutOfMemoryError
		if errors.As(err, &oom) {
			break
		}
		c.must(err)
		if blocks = append(blocks, b); len(blocks) > 3 {
			free(freed)
			freed++
		}
	}
	for ; freed < len(blocks); freed++ {
		free(freed)
	}
	c.must(c.plan.End())
}

// outside makes a call outside steps.
func (c *planChurn) outside() {
	c.t.Helper()
	on := allocator.Stream(1 + c.random.IntN(4))
	switch op := c.random.IntN(12); {
	case op < 4:
		b, err := c.Alloc(1+c.random.Int64N(1<<(8+c.random.IntN(11))), on, "outside")
		c.got(b, on, err)
	case op < 8 && len(c.kept) > 0:
		c.free(c.random.IntN(len(c.kept)), on)
	case op == 8:
		c.must(c.Trim(c.random.Int64N(1 << 20)))
	case op == 9:
		c.must(c.plan.ReleaseStream(on))
	case op == 10:
		c.fake.Finish()
	}
}

// TestPlanOnPages runs steps between random calls on a small device, which has pages for the arena
// only at times.
func TestPlanOnPages(t *testing.T) {
	replays := int64(0)
	for seed := range uint64(30) {
		f := allocatortest.NewFake(1 << 20).WithPages(smallPage)
		c := &planChurn{openPlanRig(t, f, f, allocator.PoolOptions{Reuse: allocator.Reuse(seed % 3), Segments: allocator.SegmentsVirtual}), rand.New(rand.NewPCG(seed, 31)), nil}
		programs := map[string][]int64{}
		for _, name := range []string{"train", "validate"} {
			for range 4 + c.random.IntN(12) {
				programs[name] = append(programs[name], 1+c.random.Int64N(1<<(8+c.random.IntN(10))))
			}
		}
		for range fewer(120) {
			for _, name := range []string{"train", "validate"} {
				program := programs[name]
				if c.random.IntN(10) == 0 {
					program = slices.Clone(program)
					program[c.random.IntN(len(program))] = 1 + c.random.Int64N(200<<10)
				}
				c.step(name, allocator.Stream(1+c.random.IntN(8)/7), program)
				c.must(c.plan.Check())
				for range c.random.IntN(4) {
					c.outside()
					c.must(c.plan.Check())
				}
			}
		}
		for _, s := range c.plan.Plans() {
			replays += s.Replays
		}
		for len(c.kept) > 0 {
			c.free(0, c.kept[0].on)
		}
		c.must(c.Trim(0))
		if st := c.Stats(); st.Reserved != 0 || st.Allocated != 0 {
			t.Errorf("seed %d: after every free and Trim(0): %+v", seed, st)
		}
		c.close()
	}
	if replays == 0 {
		t.Error("no step kept to a plan")
	}
}

// TestPlanArenaIsRefused has the driver refuse the second page of an arena, and to release the first
// one, which stays reserved until the driver releases it.
func TestPlanArenaIsRefused(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes).WithPages(smallPage)
	d := &flaky{f, rand.New(rand.NewPCG(1, 1)), nil}
	r := openPlanRig(t, d, f, allocator.PoolOptions{})
	r.must(r.plan.Begin("a", 1))
	r.must(r.Free(r.alloc(16*smallPage), 1))
	r.must(r.plan.Trim(0))
	d.fails = map[string]int{"UnmapPages": 1}
	f.FailAt(2, "CreatePages")
	if err := r.plan.End(); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("End without an arena: %v", err)
	}
	r.must(r.plan.Check())
	if got := r.Stats().Reserved; got != smallPage {
		t.Errorf("%d bytes reserved, want the page that the driver did not take back", got)
	}
	d.fails = nil
	r.must(r.plan.Trim(0))
	if got := r.Stats().Reserved; got != 0 {
		t.Errorf("%d bytes reserved after Trim", got)
	}
	for range 3 {
		r.stepOn("a", 1, 16*smallPage)
	}

	// A step whose plan needs the arena again fails as any request does.
	r.must(r.plan.Trim(0))
	r.must(r.plan.Begin("a", 1))
	f.FailAt(1, "CreatePages")
	if _, err := r.Alloc(16*smallPage, 1, "refused"); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("Alloc without an arena: %v", err)
	}
	r.must(r.Free(r.alloc(16*smallPage), 1))
	r.must(r.plan.End())
	r.stepOn("a", 1, 16*smallPage)
	r.close()
}

// TestPlanSwaps requests larger and larger blocks outside of plans, one at a time. Unused segments go
// back before the next one is reserved, so that the largest is all that is reserved.
func TestPlanSwaps(t *testing.T) {
	const mib = 1 << 20
	f := allocatortest.NewFake(deviceBytes)
	r := openPlanRig(t, f, f, allocator.PoolOptions{Segments: allocator.SegmentsMalloc})
	for bytes := int64(mib); bytes <= 16*mib; bytes *= 2 {
		r.must(r.Free(r.alloc(bytes), 1))
	}
	if got := r.Stats().PeakReserved; got != 16*mib {
		t.Errorf("%d bytes reserved, want %d", got, 16*mib)
	}
	r.close()
}

// TestPlanArenaStays has the driver refuse once to release an arena that is to make room for a step of
// another name. The step continues with both, and the arena is released later.
func TestPlanArenaStays(t *testing.T) {
	const mib = 1 << 20
	f := allocatortest.NewFake(deviceBytes)
	r := openPlanRig(t, f, f, allocator.PoolOptions{Segments: allocator.SegmentsMalloc})
	for range 3 {
		r.stepOn("a", 1, mib)
	}
	f.FailAt(1, "Free")
	for range 3 {
		r.stepOn("b", 1, 2*mib)
	}
	if f.Failed() == "" {
		t.Error("the arena did not make way")
	}
	r.must(r.plan.Check())
	r.must(r.plan.Trim(0))
	if got := r.Stats().Reserved; got != 0 {
		t.Errorf("%d bytes reserved after Trim", got)
	}
	r.close()
}
