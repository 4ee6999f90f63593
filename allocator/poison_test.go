package allocator_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
)

// TestPoison writes one byte in or around a block and frees it.
func TestPoison(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	checkPoison := func(t *testing.T, b allocator.Block) {
		t.Helper()
		b.Size = min(b.Size, 4)
		if words(t, f, b) != 0 {
			t.Error("the block does not begin with a NaN")
		}
	}
	for _, c := range []struct {
		name          string
		bytes         int64
		at            int64 // offset of the byte written
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
			b := allocFrom(t, p, c.bytes, 1, "victim")
			checkPoison(t, b)
			ok(t, f.Write(b.Addr+uintptr(c.at), []byte{1}))
			err := p.Free(b, 1)
			var damage *allocator.RedzoneError
			if found := errors.As(err, &damage); found != (c.before+c.after > 0) || !found && err != nil ||
				found && !strings.Contains(err.Error(), `block "victim" of`) || found && (damage.Before != c.before || damage.After != c.after || damage.Tag != "victim") {
				t.Errorf("Free: %v, want %d words before and %d after", err, c.before, c.after)
			}
			checkPoison(t, b)
			if err := p.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
				t.Errorf("second Free: %v, want ErrDoubleFree", err)
			}
		})
	}
	closeOn(t, f, p)
}

// TestPoisonOfFailingFiller returns the errors of the Filler. A block whose Free fails can
// be freed again.
func TestPoisonOfFailingFiller(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	b := allocFrom(t, p, 100, 1, "kept")
	ok(t, p.RecordStream(b, 2))
	for _, c := range []struct {
		nth  int
		call string
	}{{1, "Differing"}, {2, "Differing"}, {1, "Fill"}} {
		f.FailAt(c.nth, c.call)
		injected(t, p.Free(b, 1))
	}
	f.FailAt(2, "Fill")
	if _, err := p.Alloc(100, 1, "refused"); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("Alloc with a failing filler: %v", err)
	}
	ok(t, p.Free(b, 1))
	closeOn(t, f, p)
}

// words returns the number of words of b that are not poison.
func words(t *testing.T, f *allocatortest.Fake, b allocator.Block) int {
	t.Helper()
	memory, err := f.Read(b.Addr, b.Size)
	ok(t, err)
	n := 0
	for ; len(memory) >= 4; memory = memory[4:] {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(memory)); !math.IsNaN(float64(v)) {
			n++
		}
	}
	return n
}

// A poisonedBlock opens a poisoned allocator with a block of 400 bytes on stream 1.
type poisonedBlock struct {
	name  string
	keeps bool // the memory stays after Free
	open  func(t *testing.T, f *allocatortest.Fake) (*allocator.Poison, allocator.Block)
}

// poisonedBlocks has blocks of every allocator that knows streams.
func poisonedBlocks() []poisonedBlock {
	of := func(kind string) func(*testing.T, *allocatortest.Fake) (*allocator.Poison, allocator.Block) {
		return func(t *testing.T, f *allocatortest.Fake) (*allocator.Poison, allocator.Block) {
			p := allocator.NewPoison(openers[kind](t, f), f)
			return p, allocFrom(t, p, 400, 1, "shared")
		}
	}
	return []poisonedBlock{
		{"pool", true, of("pool")},
		{"malloc", false, of("malloc")},
		{"async", false, of("async")},
	}
}

// TestPoisonOfSharedBlocks frees blocks that other streams may still use: the poison is
// written after their work.
func TestPoisonOfSharedBlocks(t *testing.T) {
	const own, other = 1, 2
	for _, c := range []struct {
		name   string
		record []allocator.Stream
		order  bool // other waits for own
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
				ok(t, f.Use(b.Addr, b.Size, own, 1))
				if c.order {
					f.Order(own, other)
				}
				for _, s := range c.record {
					ok(t, p.RecordStream(b, s), f.Use(b.Addr, b.Size, s, 1))
				}
				ok(t, f.Write(b.Addr, make([]byte, b.Size)))
				ok(t, p.Free(b, c.free))
				if of.keeps && words(t, f, b) != 0 {
					t.Error("the freed block is not all poison")
				}
				again := allocFrom(t, p, 400, own, "again")
				if words(t, f, again) != 0 {
					t.Error("the new block is not all poison")
				}
				ok(t, p.Free(again, own))
				closeOn(t, f, p)
			})
		}
	}
}

// TestPoisonOfRefusedOrder frees a block that another stream uses while the driver refuses
// to order the poison after that use: the block stays as it is and can be freed again.
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
				ok(t, p.RecordStream(b, 2), f.Use(b.Addr, b.Size, 2, 1), f.Write(b.Addr, make([]byte, b.Size)))
				f.FailAt(1, c.refused)
				injected(t, p.Free(b, c.free))
				if live, kept := len(p.Live()), words(t, f, b); live != 1 || kept != 100 {
					t.Errorf("%d live blocks, %d of 100 words unchanged", live, kept)
				}
				ok(t, p.Free(b, c.free))
				closeOn(t, f, p)
			})
		}
	}
}

// TestPoisonOfRefusedFree frees a block on another stream, and the driver refuses after the
// poison was queued there. Once the block is freed on its own stream, the next use of the
// memory waits for that poison.
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
				injected(t, p.Free(b, 2))
				switch then {
				case "recorded":
					ok(t, p.RecordStream(b, 3))
				case "released":
					streams, _ := allocator.As[allocator.StreamReleaser](p)
					ok(t, streams.ReleaseStream(2))
					f.DestroyStream(2)
				}
				ok(t, p.Free(b, 1))
				again := allocFrom(t, p, 400, 1, "again")
				ok(t, f.Use(again.Addr, again.Size, 1, 1), p.Free(again, 1))
				closeOn(t, f, p)
			})
		}
	}
}

// TestPoisonOfRefusedFreeWithoutEvents does the same with a driver that cannot order streams.
func TestPoisonOfRefusedFreeWithoutEvents(t *testing.T) {
	for _, s := range []allocator.Stream{1, 3} {
		f := allocatortest.NewFake(deviceBytes)
		p := allocator.NewPoison(allocator.NewAsync(struct{ allocator.AsyncDriver }{f}), f)
		b := allocFrom(t, p, 400, 1, "shared")
		f.Order(1, 2)
		f.Order(1, s)
		f.FailAt(1, "FreeAsync")
		injected(t, p.Free(b, 2))
		ok(t, p.Free(b, s))
		closeOn(t, f, p)
	}
}

// recordingOnly is a foreign allocator whose RecordStream has no effect.
type recordingOnly struct{ allocator.Allocator }

func (recordingOnly) RecordStream(allocator.Block, allocator.Stream) error { return nil }

// TestPoisonOfOtherAllocators poisons allocators from outside the package.
func TestPoisonOfOtherAllocators(t *testing.T) {
	for _, c := range []struct {
		name   string
		wrap   func(allocator.Allocator) allocator.Allocator
		record error
		found  bool // damage of a block that RecordStream was called for
	}{
		{"without streams", func(a allocator.Allocator) allocator.Allocator { return foreign{a} }, errors.ErrUnsupported, true},
		{"with RecordStream alone", func(a allocator.Allocator) allocator.Allocator { return recordingOnly{a} }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			p := allocator.NewPoison(c.wrap(newPool(t, f, allocator.PoolOptions{})), f)
			b := allocFrom(t, p, 400, 1, "shared")
			if err := p.RecordStream(b, 2); !errors.Is(err, c.record) {
				t.Errorf("RecordStream: %v, want %v", err, c.record)
			}
			ok(t, f.Write(b.Addr+400, []byte{1}))
			var damage *allocator.RedzoneError
			if err := p.Free(b, 1); errors.As(err, &damage) != c.found || !c.found && err != nil {
				t.Errorf("Free: %v, damage found: %v, want %v", err, damage != nil, c.found)
			}
			closeOn(t, f, p)
		})
	}
}

// TestPoisonOfChangedBlocks changes the size of a Block, which does not move its red zones.
func TestPoisonOfChangedBlocks(t *testing.T) {
	f := allocatortest.NewFake(deviceBytes)
	p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
	for _, size := range []int64{0, -1, 500, 1 << 40} {
		for _, damaged := range []bool{false, true} {
			b := allocFrom(t, p, 1000, 1, "changed")
			if damaged {
				ok(t, f.Write(b.Addr+1000, []byte{1}))
			}
			b.Size = size
			err := p.Free(b, 1)
			var e *allocator.RedzoneError
			if errors.As(err, &e) != damaged || !damaged && err != nil || damaged && (e.After != 1 || e.Block.Size != 1000) {
				t.Errorf("Free with size %d, damaged %v: %v", size, damaged, err)
			}
		}
	}
	closeOn(t, f, p)
}

// TestPoisonDuringFree frees a block again, and closes, while a Free compares its red
// zones: the memory must stay until that Free has returned.
func TestPoisonDuringFree(t *testing.T) {
	d := &stallingDriver{Fake: allocatortest.NewFake(deviceBytes)}
	p := allocator.NewPoison(allocator.NewMalloc(d), d)
	b := allocFrom(t, p, 1000, 1, "once")
	d.arm("Differing")
	freed, closed := make(chan error), make(chan error)
	go func() { freed <- p.Free(b, 1) }()
	<-d.inside
	if err := p.Free(b, 1); !errors.Is(err, allocator.ErrDoubleFree) {
		t.Errorf("second Free: %v, want ErrDoubleFree", err)
	}
	go func() { closed <- p.Close() }()
	for { // until Close refuses calls
		err := p.Free(b, 1)
		if errors.Is(err, allocator.ErrClosed) {
			break
		}
		if !errors.Is(err, allocator.ErrDoubleFree) {
			t.Fatalf("Free during Close: %v, want ErrDoubleFree or ErrClosed", err)
		}
		runtime.Gosched()
	}
	close(d.resume)
	ok(t, <-freed, <-closed, d.Faults(), d.Leftover())
}
