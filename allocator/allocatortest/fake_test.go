package allocatortest

import (
	"errors"
	"strings"
	"testing"
)

// TestFakeFaults shows that the Fake reports what it is there to find.
func TestFakeFaults(t *testing.T) {
	const one, two = 1, 2
	for _, c := range []struct {
		name, want string
		run        func(f *Fake, addr uintptr) error
	}{
		{"reuse without order", "not ordered after its last use", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Use(addr, 512, one, 100), f.Use(addr+256, 512, two, 200))
		}},
		{"order in the wrong direction", "not ordered", func(f *Fake, addr uintptr) error {
			err := f.Use(addr, 512, one, 100)
			f.Order(two, one)
			return errors.Join(err, f.Use(addr, 512, two, 200))
		}},
		{"order before the last use", "not ordered", func(f *Fake, addr uintptr) error {
			err := f.Use(addr, 512, one, 100)
			f.Order(one, two)
			return errors.Join(err, f.Use(addr, 512, one, 100), f.Use(addr, 512, two, 200))
		}},
		{"finished but not seen to be", "not ordered", func(f *Fake, addr uintptr) error {
			err := f.Use(addr, 512, one, 100)
			f.Finish()
			return errors.Join(err, f.Use(addr, 512, two, 200))
		}},
		{"fill without order", "not ordered", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Use(addr, 512, one, 100), f.Fill(addr+256, 0, 512, two))
		}},
		{"use without order after a fill", "not ordered", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Fill(addr, 0, 512, two), f.Use(addr, 512, one, 100))
		}},
		{"comparison without order", "not ordered", func(f *Fake, addr uintptr) error {
			err := f.Fill(addr, 0, 512, one)
			_, early := f.Differing(addr, 0, 512, two)
			return errors.Join(err, early)
		}},
		{"fills with order", "", func(f *Fake, addr uintptr) error {
			err := errors.Join(f.Use(addr, 512, one, 100), f.Fill(addr, 0, 512, one))
			f.Order(one, two)
			_, late := f.Differing(addr, 0, 512, two)
			return errors.Join(err, late, f.Fill(addr, 1, 512, two))
		}},
		{"order", "", func(f *Fake, addr uintptr) error {
			err := f.Use(addr, 512, one, 100)
			f.Order(one, two)
			return errors.Join(err, f.Use(addr, 512, two, 200))
		}},
		{"order through a third stream", "", func(f *Fake, addr uintptr) error {
			err := f.Use(addr, 512, one, 100)
			f.Order(one, 3)
			f.Order(3, two)
			return errors.Join(err, f.Use(addr, 512, two, 200))
		}},
		{"synchronised", "", func(f *Fake, addr uintptr) error {
			err := f.Use(addr, 512, one, 100)
			f.Synchronize()
			return errors.Join(err, f.Use(addr, 512, two, 200))
		}},
		{"neighbours", "", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Use(addr, 512, one, 100), f.Use(addr+512, 512, two, 200))
		}},
		{"overlap", "overlaps", func(f *Fake, addr uintptr) error {
			return errors.Join(f.own(addr, 512, one, 100), f.own(addr+511, 10, one, 200))
		}},
		{"free in use", "may use it", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Use(addr, 512, one, 100), f.Free(addr))
		}},
		{"double free", "not allocated", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Free(addr), f.Free(addr))
		}},
		{"use after free", "not allocated", func(f *Fake, addr uintptr) error {
			return errors.Join(f.Free(addr), f.Use(addr, 4, one, 100))
		}},
		{"beyond the end", "not allocated", func(f *Fake, addr uintptr) error {
			return f.Use(addr, 4097, one, 100)
		}},
		{"unknown event", "does not exist", func(f *Fake, _ uintptr) error { return f.RecordEvent(77, one) }},
		{"destroyed stream", "destroyed", func(f *Fake, _ uintptr) error {
			event, err := f.NewEvent()
			f.DestroyStream(one)
			return errors.Join(err, f.RecordEvent(event, one), f.WaitEvent(one, event), f.WaitEvent(two, event))
		}},
		{"async double free", "not handed out", func(f *Fake, _ uintptr) error {
			addr, err := f.MallocAsync(100, one)
			return errors.Join(err, f.FreeAsync(addr, one), f.FreeAsync(addr, one))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFake(1 << 20)
			addr, err := f.Malloc(4096)
			if err != nil {
				t.Fatal(err)
			}
			err = c.run(f, addr)
			if faults := f.Faults(); (faults == nil) != (err == nil) {
				t.Errorf("returned %v, kept %v", err, faults)
			}
			switch {
			case c.want == "" && err != nil:
				t.Errorf("fault without reason: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want a fault that says %q", err, c.want)
			}
		})
	}
}

func TestFakeFailAt(t *testing.T) {
	f := NewFake(1 << 20)
	f.FailAt(2, "Malloc")
	addr, err := f.Malloc(100)
	if err != nil {
		t.Fatalf("first Malloc: %v", err)
	}
	if _, _, err := f.MemInfo(); err != nil {
		t.Errorf("MemInfo: %v", err)
	}
	if _, err := f.Malloc(100); !errors.Is(err, ErrInjected) {
		t.Errorf("second Malloc: %v, want ErrInjected", err)
	}
	if err := f.Leftover(); err == nil {
		t.Error("an allocation is not reported as left over")
	}
	if err := errors.Join(f.Free(addr), f.Leftover(), f.Faults()); err != nil {
		t.Error(err)
	}
}

// TestFakeUses divides the bytes of an allocation among owners, and looks whether
// each byte still knows its last uses.
func TestFakeUses(t *testing.T) {
	type work struct {
		lo, hi int64
		stream uintptr
		owner  uint64
	}
	for _, c := range []struct {
		name  string
		first []work
		probe work // on a stream that is ordered after stream 1 alone
		right bool
	}{
		{"left of a later use", []work{{0, 100, 2, 10}, {40, 60, 2, 20}}, work{0, 40, 3, 30}, false},
		{"right of a later use", []work{{0, 100, 2, 10}, {40, 60, 2, 20}}, work{99, 100, 3, 30}, false},
		{"left of a later use by a stream that is waited for", []work{{0, 100, 1, 10}, {40, 60, 1, 20}}, work{0, 100, 3, 30}, true},
		{"both streams of an owner", []work{{0, 100, 2, 10}, {0, 100, 1, 10}}, work{0, 1, 3, 30}, false},
		{"owner's first bytes", []work{{0, 50, 1, 10}, {0, 100, 2, 10}}, work{0, 1, 3, 30}, false},
		{"owner's further bytes", []work{{0, 50, 1, 10}, {0, 100, 2, 10}}, work{99, 100, 3, 30}, false},
		{"owner's bytes beside", []work{{0, 100, 1, 10}, {0, 50, 2, 10}}, work{50, 100, 3, 30}, true},
		{"owner's bytes in two pieces", []work{{0, 20, 2, 10}, {80, 100, 2, 10}, {0, 100, 1, 10}}, work{80, 81, 3, 30}, false},
		{"between an owner's two pieces", []work{{0, 20, 2, 10}, {80, 100, 2, 10}, {0, 100, 1, 10}}, work{20, 80, 3, 30}, true},
		{"beside all", []work{{0, 50, 2, 10}}, work{50, 100, 3, 30}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFake(1 << 20)
			addr, err := f.Malloc(100)
			if err != nil {
				t.Fatal(err)
			}
			use := func(w work) error { return f.Use(addr+uintptr(w.lo), w.hi-w.lo, w.stream, w.owner) }
			for _, w := range c.first {
				if err := use(w); err != nil {
					t.Fatal(err)
				}
			}
			f.Order(1, 3)
			if err := use(c.probe); (err == nil) != c.right {
				t.Errorf("use afterwards: %v", err)
			}
		})
	}
}
