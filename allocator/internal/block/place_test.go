package block

import (
	"fmt"
	"testing"
)

// TestTakeBest takes blocks at places out of one free block, or of the smallest of two that has one.
func TestTakeBest(t *testing.T) {
	const page = 4096
	for _, c := range []struct {
		at     Place
		ranges [2]Range // free
		size   int64
		want   uintptr
	}{
		{Place{}, [2]Range{{Addr: 256, Size: 512}}, 512, 256},
		{Place{Unit: page}, [2]Range{{Addr: page, Size: 512}}, 512, page},
		{Place{Unit: page}, [2]Range{{Addr: 256, Size: page - 256 + 512}}, 512, page},
		{Place{Unit: page}, [2]Range{{Addr: 256, Size: page}}, 512, 0},
		{Place{Unit: page, Offset: 256}, [2]Range{{Addr: 256, Size: page}}, 512, page - 256},
		{Place{Unit: page}, [2]Range{{Addr: 256, Size: 4 * page}, {Addr: 5*page + 256, Size: 2 * page}}, 512, 6 * page},
		{Place{Unit: page}, [2]Range{{Addr: 256, Size: 4 * page}, {Addr: 5*page + 256, Size: page}}, 512, page},
	} {
		for name, s := range strategies {
			if s.Rigid {
				continue
			}
			t.Run(fmt.Sprintf("%s/%+v", name, c), func(t *testing.T) {
				m := newModel(s)
				for _, g := range c.ranges {
					if g.Size > 0 {
						m.Coalesce(m.Hold(&g))
					}
				}
				n := m.TakeBest(c.size, c.at)
				if n == nil {
					if c.want != 0 {
						t.Fatalf("no block, want one at %#x", c.want)
					}
					return
				}
				if n.Addr() != c.want || n.Size() < c.size || n.Want != c.size {
					t.Errorf("%d bytes for %d at %#x, want %#x", n.Size(), n.Want, n.Addr(), c.want)
				}
				n.State = Owned
				if err := m.Check(); err != nil {
					t.Error(err)
				}
				m.Coalesce(n)
				m.Flush()
				var free []int64
				m.place.visit(0, func(n *Node) { free = append(free, n.Size()) })
				for _, g := range c.ranges {
					if g.Size > 0 && g.Size != free[0] && g.Size != free[len(free)-1] {
						t.Errorf("free blocks of %d bytes, want those of the ranges", free)
					}
				}
			})
		}
	}
}
