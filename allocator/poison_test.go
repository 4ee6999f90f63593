package allocator_test

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"mlpool/allocator"
	"mlpool/allocator/allocatortest"
	"mlpool/internal/must"
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
			must.OK(t, f.Write(b.Addr+uintptr(c.at), []byte{1}))
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
	must.OK(t, p.RecordStream(b, 2))
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
	must.OK(t, p.Free(b, 1))
	closeOn(t, f, p)
}

// words returns the number of words of b that are not poison.
func words(t *testing.T, f *allocatortest.Fake, b allocator.Block) int {
	t.Helper()
	memory, err := f.Read(b.Addr, b.Size)
	must.OK(t, err)
	n := 0
	for ; len(memory) >= 4; memory = memory[4:] {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(memory)); !math.IsNaN(float64(v)) {
			n++
		}
	}
	return n
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
	must.OK(t, <-freed, <-closed, d.Faults(), d.Leftover())
}
