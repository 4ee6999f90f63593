package allocator_test

import (
	"encoding/binary"
	"errors"
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
	f.FailAt(1, "Differing")
	if err := p.Free(b, 1); !errors.Is(err, allocatortest.ErrInjected) {
		t.Errorf("Free with a failing filler: %v", err)
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
		t.Run(c.name, func(t *testing.T) {
			f := allocatortest.NewFake(deviceBytes)
			p := allocator.NewPoison(newPool(t, f, allocator.PoolOptions{}), f)
			b, err := p.Alloc(400, own, "shared")
			if err := errors.Join(err, f.Use(b.Addr, b.Size, own, 1)); err != nil {
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
			if got := words(t, f, b); got != 0 {
				t.Errorf("after Free %d words are not poison", got)
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
