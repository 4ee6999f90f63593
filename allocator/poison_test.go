package allocator_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

func TestPoison(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	memory := func(addr uintptr, n int64) []byte {
		t.Helper()
		m, err := f.Read(addr, n)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	float := func(m []byte) float32 {
		return math.Float32frombits(uint32(m[0]) | uint32(m[1])<<8 | uint32(m[2])<<16 | uint32(m[3])<<24)
	}
	for _, c := range []struct {
		name          string
		bytes         int64
		at            int64 // byte written, from the block's start
		before, after int64
	}{
		{"inside", 1000, 999, 0, 0},
		{"first byte before", 1000, -1, 1, 0},
		{"far before", 1000, -256, 1, 0},
		{"first word after", 1000, 1000, 0, 1},
		{"last word after", 1000, 1255, 0, 1},
		{"after an odd size", 1001, 1004, 0, 1},
		{"after nothing", 0, 0, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := p.Alloc(c.bytes, 1, "victim")
			if err != nil {
				t.Fatal(err)
			}
			if m := memory(b.Addr, c.bytes); c.bytes > 4 && !math.IsNaN(float64(float(m))) {
				t.Errorf("new block holds %v, want NaN", float(m))
			}
			if err := f.Write(b.Addr+uintptr(c.at), []byte{1}); err != nil {
				t.Fatal(err)
			}
			err = p.Free(b, 1)
			var damage *allocator.RedzoneError
			switch {
			case c.before+c.after == 0 && err != nil:
				t.Errorf("Free: %v", err)
			case c.before+c.after > 0 && !errors.As(err, &damage):
				t.Errorf("Free: %v, want a RedzoneError", err)
			case damage != nil && (damage.Before != c.before || damage.After != c.after || damage.Tag != "victim"):
				t.Errorf("damage %+v, want %d before and %d after", damage, c.before, c.after)
			}
			if m := memory(b.Addr, 4); c.bytes > 4 && !math.IsNaN(float64(float(m))) {
				t.Errorf("freed block holds %v, want NaN", float(m))
			}
			if err := p.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
				t.Errorf("second Free: %v, want ErrDoubleFree", err)
			}
		})
	}
	b, err := p.Alloc(100, 1, "kept")
	if err := errors.Join(err, p.RecordStream(b, 2)); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		nth  int
		call string
	}{{1, "Differing"}, {2, "Differing"}, {1, "Fill"}} {
		f.FailAt(c.nth, c.call)
		if err := p.Free(b, 1); !errors.Is(err, allocatortest.ErrInjected) {
			t.Errorf("Free with a failing filler: %v", err)
		}
	}
	f.FailAt(2, "Fill")
	if _, err := p.Alloc(100, 1, "refused"); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("Alloc with a failing filler: %v", err)
	}
	if err := p.Free(b, 1); err != nil {
		t.Error(err)
	}
	f.Synchronize()
	if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// words returns how many of a block's words are not the poison.
func words(t *testing.T, f *allocatortest.Fake, b allocator.Block) int {
	t.Helper()
	memory, err := f.Read(b.Addr, b.Size)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; len(memory) >= 4; memory = memory[4:] {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(memory)); !math.IsNaN(float64(v)) {
			n++
		}
	}
	return n
}

// poisonedBlock is a block of 400 bytes on stream 1.
type poisonedBlock struct {
	name  string
	keeps bool // its memory, once it is freed
	open  func(t *testing.T, f *allocatortest.Fake) (*allocator.Poison, allocator.Block)
}

// poisonedBlocks are blocks of every allocator that knows streams.
func poisonedBlocks() []poisonedBlock {
	alloc := func(t *testing.T, p *allocator.Poison) allocator.Block {
		t.Helper()
		b, err := p.Alloc(400, 1, "shared")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	of := func(open func(*testing.T, *allocatortest.Fake) allocator.Allocator) func(*testing.T, *allocatortest.Fake) (*allocator.Poison, allocator.Block) {
		return func(t *testing.T, f *allocatortest.Fake) (*allocator.Poison, allocator.Block) {
			p := allocator.NewPoison(open(t, f), f)
			return p, alloc(t, p)
		}
	}
	// planned returns a block of a step that was planned. So many steps came after it, and
	// maybe a request that took all memory for the pool.
	planned := func(later int, yields bool) func(*testing.T, *allocatortest.Fake) (*allocator.Poison, allocator.Block) {
		return func(t *testing.T, f *allocatortest.Fake) (*allocator.Poison, allocator.Block) {
			plan := newPlan(t, f)
			p := allocator.NewPoison(plan, f)
			step := func(body func()) {
				t.Helper()
				if err := plan.Begin("step", 1); err != nil {
					t.Fatal(err)
				}
				body()
				if err := plan.End(); err != nil {
					t.Fatal(err)
				}
			}
			freed := func() {
				if err := p.Free(alloc(t, p), 1); err != nil {
					t.Fatal(err)
				}
			}
			step(freed) // is learnt
			step(freed)
			if replays := plan.Plans()[0].Replays; replays != 1 {
				t.Fatalf("%d replays of the step, want 1", replays)
			}
			var b allocator.Block
			step(func() { b = alloc(t, p) })
			for range later {
				step(freed)
			}
			if yields {
				if _, err := p.Alloc(deviceBytes, 1, "too much"); err == nil {
					t.Fatal("more memory than there is")
				}
			}
			return p, b
		}
	}
	return []poisonedBlock{
		{"pool", true, of(func(t *testing.T, f *allocatortest.Fake) allocator.Allocator {
			return newPool(t, f, allocator.PoolOptions{})
		})},
		{"malloc", false, of(func(_ *testing.T, f *allocatortest.Fake) allocator.Allocator { return allocator.NewMalloc(f) })},
		{"async", false, of(func(_ *testing.T, f *allocatortest.Fake) allocator.Allocator { return allocator.NewAsync(f) })},
		{"plan, of no step", true, of(func(t *testing.T, f *allocatortest.Fake) allocator.Allocator { return newPlan(t, f) })},
		{"planned", true, planned(0, false)},
		{"planned, of a slab that another took the place of", true, planned(2, false)},
		{"planned, of a slab that the pool took over", true, planned(0, true)},
	}
}

// TestPoisonOfSharedBlocks frees blocks that other streams may use still: poison
// comes after their work.
func TestPoisonOfSharedBlocks(t *testing.T) {
	const own, other = 1, 2
	for _, c := range []struct {
		name   string
		record []allocator.Stream
		order  bool // own before other
		free   allocator.Stream
	}{
		{"own stream", nil, false, own},
		{"freed on a stream that waits", nil, true, other},
		{"recorded", []allocator.Stream{other}, true, own},
		{"recorded, freed there without order", []allocator.Stream{own}, false, other},
	} {
		for _, of := range poisonedBlocks() {
			t.Run(c.name+"/"+of.name, func(t *testing.T) {
				f := allocatortest.NewFake(deviceBytes)
				p, b := of.open(t, f)
				if err := f.Use(b.Addr, b.Size, own, 1); err != nil {
					t.Fatal(err)
				}
				if c.order {
					f.Order(own, other)
				}
				for _, s := range c.record {
					if err := errors.Join(p.RecordStream(b, s), f.Use(b.Addr, b.Size, s, 1)); err != nil {
						t.Fatal(err)
					}
				}
				if err := f.Write(b.Addr, make([]byte, b.Size)); err != nil {
					t.Fatal(err)
				}
				if err := p.Free(b, c.free); err != nil {
					t.Errorf("Free: %v", err)
				}
				if of.keeps {
					if got := words(t, f, b); got != 0 {
						t.Errorf("after Free %d words are not poison", got)
					}
				}
				again, err := p.Alloc(400, own, "again")
				if err != nil {
					t.Fatal(err)
				}
				if got := words(t, f, again); got != 0 {
					t.Errorf("of a new block %d words are not poison", got)
				}
				if err := p.Free(again, own); err != nil {
					t.Error(err)
				}
				f.Synchronize()
				if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPoisonOfRefusedOrder frees a block that another stream uses while the driver
// refuses to order poison after that: the block stays as it is, to be freed again.
func TestPoisonOfRefusedOrder(t *testing.T) {
	for _, of := range poisonedBlocks() {
		for _, c := range []struct {
			refused string
			free    allocator.Stream
		}{{"RecordEvent", 1}, {"WaitEvent", 1}, {"RecordEvent", 2}} {
			t.Run(fmt.Sprintf("%s/%s, freed on stream %d", of.name, c.refused, c.free), func(t *testing.T) {
				f := allocatortest.NewFake(deviceBytes)
				p, b := of.open(t, f)
				f.Order(1, 2)
				if err := errors.Join(p.RecordStream(b, 2), f.Use(b.Addr, b.Size, 2, 1), f.Write(b.Addr, make([]byte, b.Size))); err != nil {
					t.Fatal(err)
				}
				f.FailAt(1, c.refused)
				if err := p.Free(b, c.free); !errors.Is(err, allocatortest.ErrInjected) {
					t.Errorf("Free: %v, want the driver's refusal", err)
				}
				if live := p.Live(); len(live) != 1 {
					t.Errorf("%d blocks handed out, want the one", len(live))
				}
				if got := words(t, f, b); got != 100 {
					t.Errorf("%d words of 100 are as they were", got)
				}
				if err := p.Free(b, c.free); err != nil {
					t.Errorf("another Free: %v", err)
				}
				f.Synchronize()
				if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPoisonOfRefusedFree frees a block on another stream while the driver refuses that,
// after poison was queued there: what gets the memory once it is freed on its own stream
// comes after the poison.
func TestPoisonOfRefusedFree(t *testing.T) {
	for _, of := range poisonedBlocks() {
		refused := "RecordEvent"
		if of.name == "async" {
			refused = "FreeAsync"
		}
		for _, then := range []string{"nothing", "recorded", "released"} {
			t.Run(of.name+"/"+then, func(t *testing.T) {
				f := allocatortest.NewFake(deviceBytes)
				p, b := of.open(t, f)
				f.Order(1, 2)
				f.FailAt(1, refused)
				if err := p.Free(b, 2); !errors.Is(err, allocatortest.ErrInjected) {
					t.Fatalf("Free: %v, want the driver's refusal", err)
				}
				var err error
				switch then {
				case "recorded":
					err = p.RecordStream(b, 3)
				case "released":
					streams, _ := allocator.As[allocator.StreamReleaser](p)
					err = streams.ReleaseStream(2)
					f.DestroyStream(2)
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := p.Free(b, 1); err != nil {
					t.Errorf("another Free: %v", err)
				}
				again, err := p.Alloc(400, 1, "again")
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(f.Use(again.Addr, again.Size, 1, 1), p.Free(again, 1)); err != nil {
					t.Error(err)
				}
				f.Synchronize()
				if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPoisonOfRefusedFreeWithoutEvents does so where the driver cannot order streams.
func TestPoisonOfRefusedFreeWithoutEvents(t *testing.T) {
	for _, s := range []allocator.Stream{1, 3} {
		f := allocatortest.NewFake(deviceBytes)
		p := allocator.NewPoison(allocator.NewAsync(struct{ allocator.AsyncDriver }{f}), f)
		b, err := p.Alloc(400, 1, "shared")
		if err != nil {
			t.Fatal(err)
		}
		f.Order(1, 2)
		f.Order(1, s)
		f.FailAt(1, "FreeAsync")
		if err := p.Free(b, 2); !errors.Is(err, allocatortest.ErrInjected) {
			t.Fatalf("Free: %v, want the driver's refusal", err)
		}
		if err := p.Free(b, s); err != nil {
			t.Errorf("another Free, on stream %d: %v", s, err)
		}
		f.Synchronize()
		if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
			t.Error(err)
		}
	}
}

// streamless is an Allocator that knows no streams, recordingOnly one that has a method
// RecordStream of its own.
type (
	streamless    struct{ allocator.Allocator }
	recordingOnly struct{ allocator.Allocator }
)

func (recordingOnly) RecordStream(allocator.Block, allocator.Stream) error { return nil }

// TestPoisonOfOtherAllocators poisons what is not of this package.
func TestPoisonOfOtherAllocators(t *testing.T) {
	for _, c := range []struct {
		name   string
		wrap   func(allocator.Allocator) allocator.Allocator
		record error
		found  bool // damage of a block that was to be shared
	}{
		{"without streams", func(a allocator.Allocator) allocator.Allocator { return streamless{a} }, errors.ErrUnsupported, true},
		{"with RecordStream alone", func(a allocator.Allocator) allocator.Allocator { return recordingOnly{a} }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			p := allocator.NewPoison(c.wrap(newPool(t, f, allocator.PoolOptions{})), f)
			b, err := p.Alloc(400, 1, "shared")
			if err != nil {
				t.Fatal(err)
			}
			if err := p.RecordStream(b, 2); !errors.Is(err, c.record) {
				t.Errorf("RecordStream: %v, want %v", err, c.record)
			}
			if err := f.Write(b.Addr+400, []byte{1}); err != nil {
				t.Fatal(err)
			}
			var damage *allocator.RedzoneError
			if err := p.Free(b, 1); errors.As(err, &damage) != c.found || !c.found && err != nil {
				t.Errorf("Free: %v, damage found: %v, want %v", err, damage != nil, c.found)
			}
			f.Synchronize()
			if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPoisonOfChangedBlocks changes the size of a Block: where its red zones lie
// does not depend on it.
func TestPoisonOfChangedBlocks(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	for _, size := range []int64{0, -1, 500, 1 << 40} {
		for _, damaged := range []bool{false, true} {
			b, err := p.Alloc(1000, 1, "changed")
			if err != nil {
				t.Fatal(err)
			}
			if damaged {
				if err := f.Write(b.Addr+1000, []byte{1}); err != nil {
					t.Fatal(err)
				}
			}
			b.Size = size
			err = p.Free(b, 1)
			var e *allocator.RedzoneError
			if errors.As(err, &e) != damaged || !damaged && err != nil || damaged && (e.After != 1 || e.Block.Size != 1000) {
				t.Errorf("Free with size %d, damaged %v: %v", size, damaged, err)
			}
		}
	}
	f.Synchronize()
	if err := errors.Join(p.Close(), f.Faults(), f.Leftover()); err != nil {
		t.Error(err)
	}
}

// TestPoisonBesideCalls frees a block again, and closes, while a Free compares its
// red zones: the memory must stay until that has ended.
func TestPoisonBesideCalls(t *testing.T) {
	d := &stallingDriver{Fake: allocatortest.NewFake(deviceBytes)}
	p := allocator.NewPoison(allocator.NewMalloc(d), d)
	b, err := p.Alloc(1000, 1, "once")
	if err != nil {
		t.Fatal(err)
	}
	d.arm("Differing")
	freed, closed := make(chan error), make(chan error)
	go func() { freed <- p.Free(b, 1) }()
	<-d.inside
	if err := p.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("second Free: %v, want ErrDoubleFree", err)
	}
	go func() { closed <- p.Close() }()
	for { // until Close lets no call in
		err := p.Free(b, 1)
		if errors.Is(err, allocator.ErrClosed) {
			break
		}
		if !errors.Is(err, allocator.ErrDoubleFree) {
			t.Fatalf("Free beside Close: %v, want ErrDoubleFree or ErrClosed", err)
		}
		runtime.Gosched()
	}
	close(d.resume)
	if err := errors.Join(<-freed, <-closed, d.Faults(), d.Leftover()); err != nil {
		t.Error(err)
	}
}
